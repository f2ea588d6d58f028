"""The capture proxy, over real sockets: with OpenAI's own client, with bare HTTP, and as a ``ServerManager``."""

import asyncio
import json
import socket

import pytest

from atroposlib.envs.server_handling.byte_tokenizer import ByteTokenizer
from atroposlib.envs.server_handling.certificate import digest
from atroposlib.envs.server_handling.managed_server_proxy import _listen, main, read_servers
from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.errors import ConfigError, ContextFull, EngineRefused, EngineUnavailable
from tests.atroposlib.envs.server_handling.proxies import QUESTION

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"content": "I look.", "tool_calls": [{"name": "look", "arguments": {"at": "it"}}]}


async def test_an_openai_client_is_recorded_token_by_token_over_several_turns(start_proxy):
    proxy = await start_proxy([CALL, "4."])
    session = await proxy.create()
    async with proxy.client(session) as client:
        first = await client.chat.completions.create(model="any", messages=QUESTION, tools=TOOLS, seed=3, top_p=0.5)
        message = first.choices[0].message
        assert (first.choices[0].finish_reason, message.tool_calls[0].function.name) == ("tool_calls", "look")
        history = [*QUESTION, message.model_dump(exclude_none=True)]
        history += [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "four"}]
        second = await client.chat.completions.create(model="any", messages=history, tools=TOOLS, stop=["\n\n"])
    assert second.choices[0].message.content == "4."
    (node,) = await proxy.nodes(session)
    fed = proxy.engine.requests[-1].input_ids
    assert node["tokens"][: len(fed)] == fed
    assert node["metadata"]["turns"] == 2
    said = [number for number in node["masked_tokens"] if number != -100]
    assert proxy.engine.tokenizer.decode(said).endswith("4.<|im_end|>")
    certificate = node["metadata"]["certificate"]
    assert certificate["digest"] == digest(node["tokens"], node["masked_tokens"], node["logprobs"])
    asked = [request.arguments for request in proxy.engine.requests]
    assert [(a.get("seed"), a.get("top_p"), a.get("stop")) for a in asked] == [(3, 0.5, None), (None, None, ["\n\n"])]


async def test_a_stream_carries_what_the_whole_answer_would(start_proxy):
    proxy = await start_proxy([CALL])
    session = await proxy.create()
    async with proxy.client(session) as client:
        stream = await client.chat.completions.create(
            model="any", messages=QUESTION, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    (call,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert (call.index, call.function.name, json.loads(call.function.arguments)) == (0, "look", {"at": "it"})
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["tool_calls"]
    assert chunks[-1].usage.completion_tokens > 0
    assert not {"stream", "stream_options"} & proxy.engine.requests[0].arguments.keys()
    assert len(await proxy.nodes(session)) == 1


async def test_several_choices_become_several_sequences(start_proxy):
    proxy = await start_proxy(["a", "b"])
    session = await proxy.create()
    answer = await proxy.ask(session, {"messages": QUESTION, "n": 2, "max_completion_tokens": 9, "temperature": 0.3})
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "b"]
    assert len(await proxy.nodes(session)) == 2
    assert proxy.engine.requests[0].arguments["max_tokens"] == 9


async def test_text_completions_are_recorded_too(start_proxy):
    proxy = await start_proxy(["there"])
    session = await proxy.create()
    async with proxy.client(session) as client:
        answer = await client.completions.create(model="any", prompt="Hello ")
    assert answer.choices[0].text == "there"
    (node,) = await proxy.nodes(session)
    assert node["full_text"] == "Hello there<|im_end|>"


# what is sent again


async def test_a_request_that_is_repeated_in_flight_waits_for_the_same_answer(start_proxy):
    proxy = await start_proxy(["one", "two"], delay_s=0.2)
    session = await proxy.create()
    answers = await asyncio.gather(*(proxy.ask(session) for _ in range(3)))
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["one"] * 3
    assert len(proxy.engine.requests) == len(await proxy.nodes(session)) == 1


@pytest.mark.parametrize("headers", [None, {"x-stainless-retry-count": "1"}])
async def test_a_request_that_is_repeated_afterwards_gets_the_same_answer(start_proxy, headers):
    proxy = await start_proxy(["one", "two"])
    session = await proxy.create()
    assert await proxy.ask(session) == await proxy.ask(session, headers=headers)
    assert len(proxy.engine.requests) == len(await proxy.nodes(session)) == 1


async def test_a_client_that_says_it_asks_for_the_first_time_gets_another_sample(start_proxy):
    proxy = await start_proxy(["one", "two"])
    session = await proxy.create()
    first = {"x-stainless-retry-count": "0"}
    answers = [await proxy.ask(session, headers=first) for _ in range(2)]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["one", "two"]
    assert len(await proxy.nodes(session)) == 2


async def test_a_client_that_gave_up_finds_its_answer_when_it_asks_again(start_proxy):
    proxy = await start_proxy(["one", "two"], delay_s=0.3)
    session = await proxy.create()
    async with proxy.client(session, timeout=0.2, max_retries=2) as client:
        answer = await client.chat.completions.create(model="any", messages=QUESTION)
    assert answer.choices[0].message.content == "one"
    assert len(proxy.engine.requests) == len(await proxy.nodes(session)) == 1


async def test_a_failure_is_told_until_a_repetition_makes_it_good(start_proxy):
    proxy = await start_proxy([EngineUnavailable("it burns"), "fine"])
    session = await proxy.create()
    told = await proxy.ask(session, status=503)
    assert told["error"] == {"message": "it burns", "type": "server_error", "code": "engine_unavailable"}
    path = f"/{session['uuid']}/nodes"
    assert (await proxy.call("GET", path, session))["failures"] == ["EngineUnavailable: it burns"]
    await proxy.ask(session)
    assert (await proxy.call("GET", path, session))["failures"] == []


# sessions


async def test_a_session_answers_to_its_own_secret_only(start_proxy):
    proxy = await start_proxy()
    session, other = await proxy.create(), await proxy.create()
    for secret in ("", "wrong", other["secret"]):
        told = await proxy.ask({**session, "secret": secret}, status=401)
        assert told["error"]["code"] == "invalid_api_key"
    assert await proxy.nodes(session) == []
    listed = await proxy.call("GET", "/sessions")
    assert [each["uuid"] for each in listed["sessions"]] == [session["uuid"], other["uuid"]]
    assert session["secret"] not in json.dumps(listed)


async def test_a_deleted_session_is_gone_and_takes_its_requests_with_it(start_proxy):
    proxy = await start_proxy(delay_s=5.0)
    session = await proxy.create()
    asking = asyncio.create_task(proxy.ask(session, status=404))
    while not proxy.engine.requests:
        await asyncio.sleep(0.01)
    await proxy.call("DELETE", f"/{session['uuid']}", session)
    assert (await asking)["error"]["code"] == "session_not_found"
    await proxy.ask(session, status=404)


async def test_a_session_that_nobody_uses_expires(start_proxy):
    proxy = await start_proxy(settings={"expires_after_s": 0.05})
    session = await proxy.create()
    await asyncio.sleep(0.1)
    assert (await proxy.ask(session, status=404))["error"]["code"] == "session_not_found"
    assert (await proxy.call("GET", "/health"))["sessions"] == 0


async def test_no_more_sessions_are_held_than_the_limit(start_proxy):
    proxy = await start_proxy(settings={"max_sessions": 1})
    await proxy.create()
    told = await proxy.call("POST", "/sessions/create", status=429)
    assert told["error"]["code"] == "too_many_sessions"


async def test_a_tree_tells_every_completion(start_proxy):
    proxy = await start_proxy(["one", "two"])
    session = await proxy.create(track_tree=True)
    await proxy.ask(session)
    history = [*QUESTION, {"role": "assistant", "content": "one"}, {"role": "user", "content": "And?"}]
    await proxy.ask(session, {"messages": history})
    told = await proxy.call("GET", f"/{session['uuid']}/nodes", session)
    assert (len(told["nodes"]), len(told["sequences"])) == (1, 2)


async def test_a_prompt_can_be_rendered_without_being_recorded(start_proxy):
    proxy = await start_proxy(["4."])
    session = await proxy.create()
    path = f"/{session['uuid']}/v1/chat/completions/render"
    rendered = await proxy.call("POST", path, session, json={"messages": QUESTION})
    assert await proxy.nodes(session) == []
    await proxy.ask(session)
    assert proxy.engine.requests[0].input_ids == rendered["prompt_token_ids"]
    assert proxy.engine.tokenizer.decode(rendered["prompt_token_ids"]) == rendered["prompt"]
    history = [*QUESTION, {"role": "assistant", "content": "4."}, {"role": "user", "content": "Sure?"}]
    again = await proxy.call("POST", path, session, json={"messages": history})
    assert again["prompt"].startswith(rendered["prompt"] + "4.")


async def test_messages_of_the_developer_are_those_of_the_system(start_proxy):
    proxy = await start_proxy()
    session = await proxy.create()
    await proxy.ask(session, {"messages": [{"role": "developer", "content": "Be brief."}, *QUESTION]})
    assert "<|im_start|>system\nBe brief." in proxy.engine.requests[0].text


# errors


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ([], 400, "invalid_request"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 422, "image_content"),
    ],
)
async def test_a_request_that_is_wrong_is_refused_in_openais_words(start_proxy, body, status, code):
    proxy = await start_proxy()
    told = await proxy.ask(await proxy.create(), body, status=status)
    assert told["error"].keys() == {"message", "type", "code"}
    assert told["error"]["code"] == code


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (ContextFull("too long"), 400, "context_length_exceeded"),
        (EngineRefused("no such field", status=422), 422, "engine_refused"),
        (EngineRefused("odd", status=None), 400, "engine_refused"),
        (ZeroDivisionError("a fault of ours"), 500, "internal_error"),
    ],
)
async def test_what_goes_wrong_at_the_engine_is_passed_on(start_proxy, failure, status, code):
    proxy = await start_proxy([failure])
    assert (await proxy.ask(await proxy.create(), status=status))["error"]["code"] == code


async def test_a_session_is_refused_with_an_unknown_engine(start_proxy):
    proxy = await start_proxy()
    told = await proxy.call("POST", "/sessions/create", json={"base_url": "http://elsewhere/v1"}, status=400)
    assert told["error"]["code"] == "invalid_request"


async def test_an_engine_that_tells_no_ids_gets_no_session(start_proxy):
    proxy = await start_proxy(token_exact=False)
    told = await proxy.call("POST", "/sessions/create", status=501)
    assert told["error"]["code"] == "not_token_exact"


def test_answers_are_not_kept_back_until_the_packet_before_is_acknowledged():
    with _listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_web_pages_are_refused_and_so_are_huge_bodies(start_proxy, monkeypatch):
    proxy = await start_proxy()
    session = await proxy.create()
    await proxy.call("GET", "/health", status=403, headers={"origin": "http://evil.example"})
    monkeypatch.setattr("atroposlib.envs.server_handling.capture_proxy.MAX_BODY_BYTES", 100)
    told = await proxy.ask(session, {"messages": [{"role": "user", "content": "x" * 100}]}, status=413)
    assert told["error"]["code"] == "too_large"


async def test_a_token_guards_the_proxys_own_routes(start_proxy):
    proxy = await start_proxy(settings={"token": "sesame"})
    await proxy.call("POST", "/sessions/create", status=401)
    await proxy.call("GET", "/sessions", status=401)
    key = {"authorization": "Bearer sesame"}
    session = await proxy.call("POST", "/sessions/create", headers=key)
    await proxy.ask(session)
    assert (await proxy.call("POST", "/setup", headers=key))["token_exact"] is True
    (server,) = (await proxy.call("GET", "/servers", headers=key))["servers"]
    assert server["healthy"] is True
    assert (await proxy.call("GET", "/v1/models"))["data"][0]["id"] == "model"


# a ServerManager that uses the proxy


async def test_a_manager_records_through_the_proxy_what_it_would_record_itself(start_proxy):
    tokenizer = ByteTokenizer()

    async def play(manager):
        async with manager.managed_server(tokenizer=tokenizer, tool_call_parser="hermes") as managed:
            messages = list(QUESTION)
            for _ in range(2):
                answer = await managed.chat_completion(messages=messages, tools=TOOLS, extra_body={"top_k": 5})
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                calls = message.tool_calls or ()
                messages += [{"role": "tool", "tool_call_id": call.id, "content": "four"} for call in calls]
            (node,) = managed.get_state()["nodes"]
            certificate = managed.certificate(node)
        assert managed.get_state()["nodes"] == []
        return node, certificate

    proxy = await start_proxy([CALL, "4."])
    through, certified = await play(ServerManager([], proxy_url=proxy.url, use_proxy=True))
    itself, expected = await play(ServerManager([ScriptedServer([CALL, "4."])]))
    assert (through.tokens, through.masked_tokens, through.logprobs) == (
        itself.tokens,
        itself.masked_tokens,
        itself.logprobs,
    )
    assert certified["digest"] == expected["digest"]
    assert proxy.engine.requests[0].arguments["top_k"] == 5
    assert (await proxy.call("GET", "/sessions"))["sessions"] == []


async def test_a_manager_without_the_url_of_its_proxy_says_so():
    with pytest.raises(ConfigError, match="no proxy_url"):
        async with ServerManager([], use_proxy=True).managed_server():
            pass


# the command


def test_servers_are_read_from_a_list_or_with_what_they_share(tmp_path):
    file = tmp_path / "servers.json"
    file.write_text(json.dumps([{"base_url": "localhost:9001"}]))
    (config,), tokenizer = read_servers(file)
    assert (config.base_url, tokenizer) == ("http://localhost:9001/v1", None)
    servers = [{"base_url": "a:1", "server_type": "vllm"}, {"base_url": "b:1"}]
    file.write_text(json.dumps({"servers": servers, "model_name": "m", "tokenizer_name": "t"}))
    configs, tokenizer = read_servers(file)
    assert ([c.model_name for c in configs], configs[0].server_type, tokenizer) == (["m", "m"], "vllm", "t")


@pytest.mark.parametrize("content", ["{", "{}", "[]", '{"servers": [1]}', '[{"server_type": "no"}]'])
def test_a_file_that_lists_no_servers_exits_with_2(tmp_path, capsys, content):
    file = tmp_path / "servers.json"
    file.write_text(content)
    assert main(["--config", str(file)]) == 2
    assert "--config" in capsys.readouterr().err


def test_it_listens_on_this_machine_only_unless_it_has_a_token(tmp_path, capsys):
    file = tmp_path / "servers.json"
    file.write_text(json.dumps([{"base_url": "localhost:9001"}]))
    assert main(["--config", str(file), "--host", "0.0.0.0"]) == 2
    assert "--token-env" in capsys.readouterr().err
