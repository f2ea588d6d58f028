"""Streams of the capture proxy: what a client gets while the answer is under way, and when it fails."""

import asyncio
import json

import openai
import pytest

from atroposlib.errors import ContextFull, EngineUnavailable
from tests.atroposlib.envs.server_handling.proxies import QUESTION

ENGINE_S = 0.8
STREAMED = {"messages": QUESTION, "stream": True}
WITH_USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Comments come many times in the time that the engine takes."""
    monkeypatch.setattr("atroposlib.envs.server_handling.capture_stream.WAITING_EVERY_S", 0.05)


def post(proxy, session, body=STREAMED):
    headers = {"authorization": f"Bearer {session['secret']}"}
    return proxy.http.post(f"{proxy.url}/{session['uuid']}/v1/chat/completions", json=body, headers=headers)


async def said_in(stream):
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def test_head_and_comments_come_while_the_engine_works(start_proxy):
    proxy = await start_proxy(["four"], delay_s=ENGINE_S)
    session = await proxy.create()
    async with post(proxy, session) as answer:
        first = await answer.content.readuntil(b"\n\n")
        told = await proxy.call("GET", f"/{session['uuid']}/nodes", session)
        rest = await answer.content.read()
    assert (answer.status, answer.content_type, first) == (200, "text/event-stream", b": waiting\n\n")
    assert (told["in_flight"], told["nodes"]) == (1, [])
    assert rest.count(b": waiting\n\n") > 1
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_an_answer_that_is_there_at_once_comes_without_comments(start_proxy):
    proxy = await start_proxy(["four"])
    async with post(proxy, await proxy.create()) as answer:
        content = await answer.read()
    assert content.startswith(b"data: {")
    assert b"waiting" not in content


async def test_openais_client_passes_over_comments_and_its_time_limit_on_reading_is_not_reached(start_proxy):
    proxy = await start_proxy(["four"], delay_s=2.0)
    limits = openai.Timeout(10, read=1.0)
    async with proxy.client(await proxy.create(), timeout=limits, max_retries=0) as client:
        stream = await client.chat.completions.create(model="any", messages=QUESTION, stream=True)
        assert await said_in(stream) == "four"
    assert len(proxy.engine.requests) == 1


@pytest.mark.parametrize("asked", [{}, WITH_USAGE])
async def test_text_completions_are_streamed_the_same_way(start_proxy, asked):
    proxy = await start_proxy(["four"], delay_s=ENGINE_S)
    async with proxy.client(await proxy.create()) as client:
        stream = await client.completions.create(model="any", prompt="2 + 2?", stream=True, **asked)
        chunks = [chunk async for chunk in stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "four"
    assert bool(chunks[-1].usage) == bool(asked)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
async def test_usage_comes_only_where_it_was_asked_for(start_proxy, options):
    proxy = await start_proxy(["four"])
    async with post(proxy, await proxy.create(), STREAMED | {"stream_options": options}) as answer:
        assert b"usage" not in await answer.read()


async def test_usage_is_the_last_event_and_the_others_say_that_they_have_none(start_proxy):
    proxy = await start_proxy(["four"])
    async with post(proxy, await proxy.create(), STREAMED | WITH_USAGE) as answer:
        lines = (await answer.read()).decode().split("\n\n")
    *others, last = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert [event["usage"] for event in others] == [None, None]
    assert (last["choices"], last["usage"]["total_tokens"] > 4) == ([], True)


# what fails


async def test_a_failure_after_the_head_is_an_error_of_openais_client(start_proxy):
    proxy = await start_proxy([EngineUnavailable("it burns")], delay_s=ENGINE_S)
    async with proxy.client(await proxy.create()) as client:
        stream = await client.chat.completions.create(model="any", messages=QUESTION, stream=True)
        with pytest.raises(openai.APIError, match="it burns") as caught:
            await said_in(stream)
    assert (caught.value.code, caught.value.type) == ("engine_unavailable", "server_error")


async def test_nothing_follows_an_error_so_that_it_is_not_taken_for_an_empty_answer(start_proxy):
    proxy = await start_proxy([EngineUnavailable("it burns"), "four"], delay_s=ENGINE_S)
    session = await proxy.create()
    async with post(proxy, session) as answer:
        content = await answer.read()
    assert answer.status == 200
    told = json.loads(content.replace(b": waiting\n\n", b"").removeprefix(b"data: "))
    assert told == {"error": {"message": "it burns", "type": "server_error", "code": "engine_unavailable"}}
    async with post(proxy, session) as answer:
        assert b'"four"' in await answer.read()
    assert len(await proxy.nodes(session)) == 1


async def test_what_fails_before_the_head_has_a_status(start_proxy):
    proxy = await start_proxy([ContextFull("too long")])
    async with proxy.client(await proxy.create()) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="any", messages=QUESTION, stream=True)
    assert caught.value.code == "context_length_exceeded"


async def test_a_session_that_is_deleted_ends_its_streams_with_an_error(start_proxy):
    proxy = await start_proxy(delay_s=20.0)
    session = await proxy.create()
    async with post(proxy, session) as answer:
        await answer.content.readuntil(b"\n\n")
        await proxy.call("DELETE", f"/{session['uuid']}", session)
        assert b'"code":"session_not_found"' in await answer.content.read()


# who hangs up


@pytest.mark.parametrize("again", [STREAMED, {"messages": QUESTION}, STREAMED | WITH_USAGE])
@pytest.mark.parametrize("early", [True, False])
async def test_who_hangs_up_while_waiting_finds_the_answer_when_asking_again(start_proxy, again, early):
    proxy = await start_proxy(["one", "two"], delay_s=ENGINE_S)
    session = await proxy.create()
    async with post(proxy, session) as answer:
        await answer.content.readuntil(b"\n\n")
        answer.close()
    if not early:
        while (await proxy.call("GET", f"/{session['uuid']}/nodes", session))["in_flight"]:
            await asyncio.sleep(0.02)
    async with post(proxy, session, again) as answer:
        assert b'"one"' in await answer.read()
    (node,) = await proxy.nodes(session)
    assert (len(proxy.engine.requests), node["metadata"]["turns"]) == (1, 1)


async def test_the_turn_after_a_broken_stream_continues_it(start_proxy):
    proxy = await start_proxy(["one", "two"], delay_s=ENGINE_S)
    session = await proxy.create()
    async with proxy.client(session, timeout=openai.Timeout(10, read=0.02), max_retries=0) as client:
        with pytest.raises(openai.APITimeoutError):
            await client.chat.completions.create(model="any", messages=QUESTION, stream=True)
    async with proxy.client(session) as client:
        stream = await client.chat.completions.create(model="any", messages=QUESTION, stream=True)
        assert await said_in(stream) == "one"
        history = [*QUESTION, {"role": "assistant", "content": "one"}, {"role": "user", "content": "And?"}]
        stream = await client.chat.completions.create(model="any", messages=history, stream=True)
        assert await said_in(stream) == "two"
    told = await proxy.call("GET", f"/{session['uuid']}/nodes", session)
    assert (told["forks"], [node["metadata"]["turns"] for node in told["nodes"]]) == ({}, [2])
