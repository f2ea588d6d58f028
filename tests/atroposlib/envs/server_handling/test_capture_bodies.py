"""Wrong requests at the capture proxy: 400 with the name of the field, and the session goes on as if nothing was."""

import contextlib
import copy
import inspect
import io
import json

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.envs.server_handling.byte_tokenizer import CHATML_TEMPLATE, ByteTokenizer
from atroposlib.envs.server_handling.capture_bodies import read_chat, read_session, read_text
from atroposlib.envs.server_handling.capture_fields import ARGUMENTS_OF_TEMPLATES, WrongField
from atroposlib.errors import ConfigError
from tests.atroposlib.envs.server_handling.proxies import QUESTION

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}, "any": True}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
CHAT = {
    "model": "any",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "four", "tool_call_id": "c1"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "n": 1,
    "max_tokens": 9,
    "max_completion_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.5,
    "seed": 3,
    "stop": ["\n\n\n"],
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "logit_bias": {"65": 1},
    "logprobs": True,
    "top_logprobs": 0,
    "response_format": {"type": "text"},
    "stream": False,
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False},
    "extra_body": {"top_k": 5},
    "metadata": {"a": "b"},
    "user": "ann",
    "timeout": 9,
}
TEXT = {
    "prompt": [72, 105],
    **{name: CHAT[name] for name in ("n", "max_tokens", "seed", "stop", "stream", "extra_body")},
}
WRONG_VALUES = [None, True, -1, 0, 5, 0.5, 1e308, 10**30, "", "x", [], ["x"], [5], [None], [[1]], {}, {"x": 1}, [{}]]

deep = []
for _ in range(300):
    deep = [deep]


def places(value, place=()):
    """Every place in a body, each a path of names and indices."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield (*place, name)
        yield from places(entry, (*place, name))


def with_value(body, place, value):
    body = copy.deepcopy(body)
    holder = body
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = value
    return body


def with_message(**fields):
    return {"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "hi", **fields}]}


def with_call(call):
    return with_message(role="assistant", tool_calls=[call])


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("messages", {}),
        ("messages", {"messages": "hello"}),
        ("messages", {"messages": []}),
        ("messages[0]", {"messages": ["hello"]}),
        ("messages[0].role", {"messages": [{"content": "hello"}]}),
        ("messages[1].content", with_message(content=5)),
        ("messages[1].content[0]", with_message(content=["x"])),
        ("messages[1].content[0]", with_message(content=[{"type": "text"}])),
        ("messages[1].content[0].text", with_message(content=[{"type": "text", "text": 5}])),
        ("messages[1].tool_calls", with_message(role="assistant", tool_calls="x")),
        ("messages[1].tool_calls[0].function", with_call({"id": "x"})),
        ("messages[1].tool_calls[0].function", with_call({"id": "x", "function": "look"})),
        ("messages[1].tool_calls[0].function.arguments", with_call({"function": {"name": "look", "arguments": 5}})),
        ("messages[1].tool_call_id", with_message(role="tool", tool_call_id=5)),
        ("tools", {"messages": QUESTION, "tools": "x"}),
        ("tools[0]", {"messages": QUESTION, "tools": [{"type": "function"}]}),
        ("tools[0].function.name", {"messages": QUESTION, "tools": [{"type": "function", "function": {}}]}),
        (
            "tools[0].function.parameters",
            {"messages": QUESTION, "tools": [{"function": {"name": "a", "parameters": 5}}]},
        ),
        ("chat_template_kwargs", {"messages": QUESTION, "chat_template_kwargs": "x"}),
        ("chat_template_kwargs.chat_template", {"messages": QUESTION, "chat_template_kwargs": {"chat_template": "x"}}),
        ("extra_body", {"messages": QUESTION, "extra_body": "x"}),
        ("extra_body", {"messages": QUESTION, "extra_body": {"extra_body": {}}}),
        ("echo", {"messages": QUESTION, "extra_body": {"echo": True}}),
        ("logit_bias.65", {"messages": QUESTION, "logit_bias": {"65": "x"}}),
        ("stop[1]", {"messages": QUESTION, "stop": ["x", 5]}),
        ("stream_options", {"messages": QUESTION, "stream_options": 5}),
        ("metadata", {"messages": QUESTION, "metadata": deep}),
        *(("n", {"messages": QUESTION, "n": n}) for n in (-1, 0, 10**9, "3", 1.5, True)),
        *(("max_tokens", {"messages": QUESTION, "max_tokens": limit}) for limit in ("a", 0, -2, 10**30, [1])),
        *(("temperature", {"messages": QUESTION, "temperature": value}) for value in ("hot", -1)),
    ],
)
def test_a_wrong_field_is_named(param, body):
    with pytest.raises(WrongField) as caught:
        read_chat(json.dumps(body).encode(), CHATML_TEMPLATE)
    assert caught.value.name == param
    assert str(caught.value).startswith(f"{param}: ")


@pytest.mark.parametrize(
    ("param", "prompt"),
    [
        ("prompt", 5),
        ("prompt", None),
        ("prompt", []),
        ("prompt[0]", ["a", "b"]),
        ("prompt[1]", [65, -1]),
        ("prompt[1]", [65, True]),
        ("prompt[1]", [65, 259]),
        ("prompt[0]", [10**30]),
    ],
)
def test_a_wrong_prompt_is_named(param, prompt):
    with pytest.raises(WrongField) as caught:
        read_text(json.dumps({"prompt": prompt}).encode(), vocabulary=259)
    assert caught.value.name == param


@pytest.mark.parametrize(
    ("param", "wanted"),
    [
        ("max_rollout_tokens", {"max_rollout_tokens": -5}),
        ("max_rollout_tokens", {"max_rollout_tokens": 0}),
        ("track_tree", {"track_tree": "yes"}),
        ("tool_parser", {"tool_parser": "no"}),
        ("tool_parser", {"tool_parser": ["hermes"]}),
        ("colour", {"colour": "red"}),
    ],
)
async def test_a_session_names_what_is_wrong_with_it(start_proxy, param, wanted):
    proxy = await start_proxy()
    told = await proxy.call("POST", "/sessions/create", json=wanted, status=400)
    assert told["error"]["param"] == param
    assert (await proxy.call("GET", "/health"))["sessions"] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_openais_client_does_not_repeat_what_is_wrong(start_proxy, stream):
    proxy = await start_proxy()
    async with proxy.client(await proxy.create(), max_retries=5) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="any", messages=with_call({"id": "x"})["messages"], stream=stream
            )
    assert caught.value.param == "messages[1].tool_calls[0].function"
    assert "x-stainless-retry-count" in caught.value.request.headers
    assert caught.value.request.headers["x-stainless-retry-count"] == "0"


@pytest.mark.parametrize(("path", "right"), [("chat/completions", CHAT), ("completions", TEXT)])
async def test_no_wrong_value_anywhere_is_a_fault_of_the_proxy(start_proxy, path, right):
    proxy = await start_proxy(
        lambda request: {"content": "I look.", "tool_calls": [{"name": "look", "arguments": {"at": "it"}}]}
    )
    session = await proxy.create()
    url, key = f"{proxy.url}/{session['uuid']}/v1/{path}", {"authorization": f"Bearer {session['secret']}"}
    before = await proxy.call("POST", f"/{session['uuid']}/v1/{path}", session, json=right)
    first = (await proxy.nodes(session))[0]
    told = {}
    for place in places(right):
        for value in WRONG_VALUES:
            async with proxy.http.post(url, json=with_value(right, place, value), headers=key) as answer:
                told[place, json.dumps(value)] = answer.status
                if answer.status == 400:
                    error = (await answer.json())["error"]
                    assert (error["type"], bool(error["param"])) == ("invalid_request_error", True)
    assert {case for case, status in told.items() if status not in (200, 400, 422)} == set()
    assert {place for place, _ in told if all(told[place, json.dumps(value)] == 200 for value in WRONG_VALUES)} <= {
        place for place in places(right) if {"metadata", "user", "parameters", "top_k", "enable_thinking"} & {*place}
    } | {place for place in places(right) if place[-1] in ("include_usage", "type")}
    assert await proxy.call("POST", f"/{session['uuid']}/v1/{path}", session, json=right) == before
    nodes = await proxy.nodes(session)
    assert first["tokens"] in [node["tokens"] for node in nodes]
    choices = sum(request.arguments.get("n") or 1 for request in proxy.engine.requests)
    assert sum(len(node["tokens"]) > 0 for node in nodes) == choices
    assert all(len(node["tokens"]) == len(node["masked_tokens"]) == len(node["logprobs"]) for node in nodes)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(list(places(CHAT))), ANYTHING)
def test_a_chat_is_read_or_refused(place, value):
    with contextlib.suppress(ConfigError):
        wanted = read_chat(json.dumps(with_value(CHAT, place, value)).encode(), CHATML_TEMPLATE)
        assert all(isinstance(message, dict) for message in wanted.arguments["messages"])


@given(st.binary() | st.text().map(str.encode) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_no_body_is_a_fault_of_ours(body):
    with contextlib.suppress(ConfigError):
        read_chat(body, "")
    with contextlib.suppress(ConfigError):
        read_text(body, 259)
    with contextlib.suppress(ConfigError):
        read_session(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"hello", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b'{"temperature": NaN}', 'near \'{"temperature": NaN'),
        (b'{"temperature": 1e999}', "number is infinity"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'"x"', "object"),
        (b'{"messages": [' + b"5," * 3_000_000 + b"5]}", "messages[0]: expected an object"),
    ],
    ids=["empty", "broken", "text", "bytes", "nan", "huge number", "deep", "list", "null", "string", "6 MB"],
)
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x"])
async def test_a_body_that_is_no_request_is_refused(start_proxy, body, said, kind):
    proxy = await start_proxy()
    session = await proxy.create()
    for path in ("chat/completions", "chat/completions/render"):
        url, headers = f"/{session['uuid']}/v1/{path}", {"content-type": kind}
        told = await proxy.call("POST", url, session, data=io.BytesIO(body), headers=headers, status=400)
        assert said in told["error"]["message"]
        assert len(told["error"]["message"]) < 4001
    assert (await proxy.ask(session))["choices"][0]["message"]["content"] == "Hm."
    assert len(await proxy.nodes(session)) == 1


async def test_ten_megabytes_are_told_to_be_too_long_and_are_not_read_for_strangers(start_proxy):
    proxy = await start_proxy(max_model_len=1000)
    session = await proxy.create()
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 10_000_000}]}).encode()

    async def ask(who, status):
        path = f"/{who['uuid']}/v1/chat/completions"
        told = await proxy.call("POST", path, who, data=io.BytesIO(body), status=status)
        return told["error"]["code"]

    assert await ask(session, 400) == "context_length_exceeded"
    assert await ask({**session, "secret": "wrong"}, 401) == "invalid_api_key"
    assert await ask({**session, "uuid": "0" * 32}, 404) == "session_not_found"
    await proxy.ask(session)
    assert len(await proxy.nodes(session)) == 1


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_no_limit_is_what_there_is_room_for(start_proxy, field):
    proxy = await start_proxy(max_model_len=100)
    session = await proxy.create()
    await proxy.ask(session, {"messages": QUESTION, field: -1})
    (request,) = proxy.engine.requests
    assert request.arguments["max_tokens"] == 100 - len(request.input_ids)


async def test_fields_in_extra_body_are_fields_of_the_body(start_proxy):
    proxy = await start_proxy()
    session = await proxy.create()
    await proxy.ask(session, {"messages": QUESTION, "seed": 1, "extra_body": {"seed": 2, "top_k": 5}})
    await proxy.ask(session, {"messages": QUESTION, "seed": 2, "top_k": 5})
    (request,) = proxy.engine.requests
    assert (request.arguments["seed"], request.arguments["top_k"]) == (2, 5)


def test_no_argument_of_a_tokenizer_is_taken_for_a_variable_of_its_template():
    from transformers import PreTrainedTokenizerBase

    named = [inspect.signature(of.apply_chat_template).parameters for of in (PreTrainedTokenizerBase, ByteTokenizer)]
    assert {*named[0], *named[1]} - {"kwargs", "variables"} <= ARGUMENTS_OF_TEMPLATES
