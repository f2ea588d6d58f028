"""Fields of OpenAI's requests at the capture proxy: each reaches the engine or the template, or is refused by name."""

import inspect

import openai
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams

from atroposlib.envs.server_handling import capture_fields
from atroposlib.envs.server_handling.byte_tokenizer import CHATML_TEMPLATE, ByteTokenizer
from tests.atroposlib.envs.server_handling.proxies import QUESTION

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
TO_THE_ENGINE = {
    "temperature": 0.3,
    "top_p": 0.5,
    "seed": 3,
    "stop": ["\n"],
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "logit_bias": {"65": -100},
    "max_tokens": 7,
    "response_format": SCHEMA,
    "top_k": 5,
    "structured_outputs": {"regex": "a+"},
}
ASKS_FOR_NOTHING = {
    "best_of": 1,
    "echo": False,
    "function_call": "auto",
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "top_logprobs": 0,
    "verbosity": "medium",
    "audio": None,
}
REFUSED_IN_CHATS = {
    "add_generation_prompt": False,
    "audio": {"voice": "alloy", "format": "mp3"},
    "best_of": 3,
    "chat_template": "{{ messages }}",
    "continue_final_message": True,
    "documents": [{"text": "x"}],
    "echo": True,
    "function_call": {"name": "look"},
    "functions": [{"name": "look"}],
    "input_ids": [1, 2],
    "modalities": ["text", "audio"],
    "moderation": {"model": "m"},
    "parallel_tool_calls": False,
    "prediction": {"type": "content", "content": "x"},
    "prompt": "x",
    "prompt_embeds": "x",
    "prompt_logprobs": 1,
    "reasoning_effort": "high",
    "self": 1,
    "split": "eval",
    "tools": [{"type": "custom", "custom": {"name": "look"}}],
    "top_logprobs": 5,
    "truncate_prompt_tokens": 5,
    "use_beam_search": True,
    "verbosity": "low",
    "web_search_options": {},
}
REFUSED_IN_TEXTS = {
    "best_of": 3,
    "chat_template_kwargs": {"enable_thinking": False},
    "echo": True,
    "input_ids": [1],
    "logprobs": 1,
    "messages": QUESTION,
    "prompt_embeds": "x",
    "prompt_logprobs": 1,
    "self": 1,
    "split": "eval",
    "suffix": "x",
    "tools": [TOOL],
    "truncate_prompt_tokens": 5,
    "use_beam_search": True,
}
TAKEN = {"messages", "model", "n", "max_completion_tokens", "logprobs", "tool_choice", "tools", "prompt"}
"""What every other test of the proxy uses."""


async def engine_got(proxy, session, body):
    before = len(proxy.engine.requests)
    await proxy.ask(session, {"messages": QUESTION, **body})
    (request,) = proxy.engine.requests[before:]
    return request.arguments


@pytest.mark.parametrize("name", TO_THE_ENGINE)
async def test_what_the_engine_is_to_honour_reaches_it(start_proxy, name):
    proxy = await start_proxy()
    got = await engine_got(proxy, await proxy.create(), {name: TO_THE_ENGINE[name]})
    assert got[name] == TO_THE_ENGINE[name]


@pytest.mark.parametrize("name", capture_fields.ONLY_FOR_OPENAI)
async def test_what_concerns_openais_service_is_not_the_engines(start_proxy, name):
    proxy = await start_proxy()
    assert name not in await engine_got(proxy, await proxy.create(), {name: "x"})


@pytest.mark.parametrize("name", ASKS_FOR_NOTHING)
async def test_what_asks_for_nothing_is_taken_and_not_passed_on(start_proxy, name):
    proxy = await start_proxy()
    assert name not in await engine_got(proxy, await proxy.create(), {name: ASKS_FOR_NOTHING[name]})


@pytest.mark.parametrize("name", REFUSED_IN_CHATS)
async def test_what_a_chat_could_not_honour_is_refused_by_name(start_proxy, name):
    proxy = await start_proxy()
    session = await proxy.create()
    told = await proxy.ask(session, {"messages": QUESTION, name: REFUSED_IN_CHATS[name]}, status=400)
    error = told["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "unsupported_parameter", name)
    assert error["message"].startswith(f"{name}: ")
    state = await proxy.call("GET", f"/{session['uuid']}/nodes", session)
    assert (proxy.engine.requests, state["nodes"], state["failures"]) == ([], [], [])


@pytest.mark.parametrize("name", REFUSED_IN_TEXTS)
async def test_what_a_text_completion_could_not_honour_is_refused_by_name(start_proxy, name):
    proxy = await start_proxy()
    session = await proxy.create()
    path, body = f"/{session['uuid']}/v1/completions", {"prompt": "Hello", name: REFUSED_IN_TEXTS[name]}
    told = await proxy.call("POST", path, session, json=body, status=400)
    assert told["error"]["param"] == name


@pytest.mark.parametrize("stream", [True, False])
async def test_openais_client_names_the_field_that_is_refused(start_proxy, stream):
    proxy = await start_proxy()
    async with proxy.client(await proxy.create()) as client:
        with pytest.raises(openai.BadRequestError, match="run the calls of a turn one after the other") as caught:
            await client.chat.completions.create(
                model="any", messages=QUESTION, tools=[TOOL], parallel_tool_calls=False, stream=stream
            )
    assert (caught.value.param, caught.value.code) == ("parallel_tool_calls", "unsupported_parameter")


@pytest.mark.parametrize(
    ("params", "tested"),
    [
        (ChatParams, {*TO_THE_ENGINE, *ASKS_FOR_NOTHING, *REFUSED_IN_CHATS}),
        (TextParams, {*TO_THE_ENGINE, *REFUSED_IN_TEXTS}),
    ],
)
def test_no_field_of_openais_client_is_forgotten(params, tested):
    known = set(inspect.get_annotations(params))
    assert known - tested - TAKEN - {*capture_fields.ONLY_FOR_OPENAI, *capture_fields.HOW_IT_COMES} == set()


async def test_every_refused_field_has_a_test():
    assert {*capture_fields._REFUSED_IN_CHATS} <= {*REFUSED_IN_CHATS}
    assert {*capture_fields._REFUSED_IN_TEXTS} == {*REFUSED_IN_TEXTS}


# tools


@pytest.mark.parametrize(("choice", "shown"), [(None, True), ("auto", True), ("required", True), ("none", False)])
async def test_tools_are_shown_to_the_model_unless_it_may_call_none(start_proxy, choice, shown):
    proxy = await start_proxy(['<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'])
    answer = await proxy.ask(await proxy.create(), {"messages": QUESTION, "tools": [TOOL], "tool_choice": choice})
    assert ('"look"' in proxy.engine.requests[0].text) is shown
    assert bool(answer["choices"][0]["message"].get("tool_calls")) is shown
    assert "tool_choice" not in proxy.engine.requests[0].arguments


async def test_a_wish_that_nothing_enforces_is_counted(start_proxy):
    proxy = await start_proxy()
    session = await proxy.create()
    for content in ("2 + 2?", "3 + 3?"):
        messages = [{"role": "user", "content": content}]
        await proxy.ask(session, {"messages": messages, "tools": [TOOL], "tool_choice": "required"})
    await proxy.ask(session, {"messages": QUESTION, "tools": [TOOL], "tool_choice": "auto"})
    told = await proxy.call("GET", f"/{session['uuid']}/nodes", session)
    assert told["not_enforced"] == {"tool_choice": 2}


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "look"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        "any",
    ],
)
async def test_a_tool_that_has_to_be_called_is_refused_with_what_to_send_instead(start_proxy, choice):
    proxy = await start_proxy()
    body = {"messages": QUESTION, "tools": [TOOL], "tool_choice": choice}
    error = (await proxy.ask(await proxy.create(), body, status=400))["error"]
    assert (error["param"], error["code"]) == ("tool_choice", "unsupported_parameter")
    assert 'send "auto" or "none"' in error["message"]


# the template


async def test_effort_is_a_variable_of_the_template_where_it_has_one(start_proxy):
    template = "{{ reasoning_effort | default('middling') }}" + CHATML_TEMPLATE
    proxy = await start_proxy(tokenizer=ByteTokenizer(template))
    session = await proxy.create()
    assert "reasoning_effort" not in await engine_got(proxy, session, {"reasoning_effort": "high"})
    await proxy.ask(session, {"messages": QUESTION})
    assert [request.text.split("<")[0] for request in proxy.engine.requests] == ["high", "middling"]


# logprobs


async def test_logprobs_are_told_in_whole_answers_and_in_streams(start_proxy):
    proxy = await start_proxy(["four", {"content": "five", "tool_calls": [{"name": "look", "arguments": {}}]}])
    session = await proxy.create()
    async with proxy.client(session) as client:
        whole = await client.chat.completions.create(model="any", messages=QUESTION, logprobs=True)
        stream = await client.chat.completions.create(
            model="any", messages=QUESTION, tools=[TOOL], logprobs=True, stream=True
        )
        choices = [choice async for chunk in stream for choice in chunk.choices]
    told = whole.choices[0].logprobs.content
    assert "".join(each.token for each in told) == "four<|im_end|>"
    pieces = [choice.logprobs.content for choice in choices if choice.logprobs]
    assert len(pieces) == 1
    assert "".join(each.token for each in pieces[0]).startswith("five\n<tool_call>")
    first, second = [node["logprobs"] for node in await proxy.nodes(session)]
    assert [each.logprob for each in told] == first[-len(told) :]
    assert [each.logprob for each in pieces[0]] == second[-len(pieces[0]) :]
