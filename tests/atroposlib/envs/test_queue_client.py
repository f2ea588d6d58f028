"""A group is held until the server has it, once, whatever happens on the way."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.api.server import create_app
from atroposlib.envs.queue_client import QueueClient, encode_group
from atroposlib.errors import ConfigError, GroupRefused, QueueUnavailable, UnknownEnvironment
from atroposlib.wire import EnvRegistration
from tests.atroposlib.api.serving import serving as api_serving
from tests.atroposlib.envs.trainer import Trainer, numbers

REGISTRATION = EnvRegistration(max_token_length=10, desired_name="env", group_size=2)


def group(number: int = 1, **more: Any) -> dict[str, Any]:
    return {"tokens": [[number, 2]] * 2, "masks": [[-100, 2]] * 2, "scores": [0.0, 1.0], **more}


class TroubledServer:
    """Answers what it is told to, then ``{}``; keeps every request."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = []
        self.requests: list[tuple[str, Any]] = []
        self.retry_after = "0.1"

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append((request.path, json.loads(await request.read() or b"null")))
        status, body = self.answers.pop(0) if self.answers else (200, {})
        headers = {"Retry-After": self.retry_after} if status == 503 else {}
        return web.Response(status=status, body=orjson.dumps(body), headers=headers)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[QueueClient]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        client = QueueClient(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")
        try:
            yield client
        finally:
            await client.aclose()
            await runner.cleanup()

    @property
    def group_ids(self) -> list[str]:
        return [body["group_id"] for path, body in self.requests if path == "/scored_data"]


async def test_an_environment_registers_once_the_trainer_has_started():
    async with api_serving(create_app()) as url:
        client, trainer = QueueClient(url), Trainer(url)
        assert await client.register(REGISTRATION) is None
        await trainer.register()
        await trainer.start()
        answer = await client.register(REGISTRATION)
        assert answer is not None
        assert client.identity["env_id"] == answer["env_id"]
        assert (await client.run_info())["batch_size"] == 4
        assert (await client.wandb_info()) == {"group": "group", "project": "project"}
        assert (await client.status())["current_step"] == 0
        assert await client.send(group(5))
        assert await client.send(group(6))
        assert numbers((await trainer.take(1))[0]) == [5, 6]
        await client.disconnect()
        assert (await trainer.status())["connected_envs"] == 0
        await client.aclose()


async def test_a_retry_goes_under_the_same_id():
    server = TroubledServer()
    server.answers = [(500, {}), (502, {}), (200, {})]
    async with server.serving() as client:
        assert await client.send(group())
    assert len(server.group_ids) == 3
    assert len(set(server.group_ids)) == 1


async def test_a_group_that_has_an_id_keeps_it():
    server = TroubledServer()
    async with server.serving() as client:
        assert await client.send(group(group_id="mine"))
    assert server.group_ids == ["mine"]


async def test_a_refused_group_is_sent_once_and_named():
    server = TroubledServer()
    server.answers = [(422, {"error": "scores: not finite", "field": "scores"})]
    async with server.serving() as client:
        with pytest.raises(GroupRefused, match="scores: not finite") as refused:
            await client.send(group())
        assert refused.value.field == "scores"
        assert client.unsent == 0
    assert len(server.requests) == 1


async def test_a_full_server_gets_the_group_later():
    server = TroubledServer()
    server.answers = [(503, {"error": "full"})]
    async with server.serving() as client:
        assert not await client.send(group())
        assert await client.send_unsent() == 0, "asked again before the time the server named"
        async with asyncio.timeout(5):
            while await client.send_unsent() == 0:
                await asyncio.sleep(0.02)
        assert client.unsent == 0
    assert len(set(server.group_ids)) == 1


async def test_a_server_that_forgot_the_environment_gets_the_group_under_the_new_id():
    server = TroubledServer()
    registered = {"status": "success", "env_id": 7, "run_id": "new"}
    server.answers = [
        (404, {"error": "unknown", "register_again": True}),
        (404, {"error": "unknown", "register_again": True}),
        (200, registered),
    ]
    async with server.serving() as client:
        client.identity = {"env_id": 3, "run_id": "old"}
        assert not await client.send(group())
        with pytest.raises(UnknownEnvironment):
            await client.status()
        await client.register(REGISTRATION)
        assert await client.send_unsent() == 1
    sent = [body for path, body in server.requests if path == "/scored_data"]
    assert [(body["env_id"], body["run_id"]) for body in sent] == [(3, "old"), (7, "new")]


async def test_an_absent_server_is_named_and_the_group_is_kept():
    client = QueueClient("127.0.0.1:9")
    assert not await client.send(group())
    assert client.unsent == 1
    with pytest.raises(QueueUnavailable, match=r"http://127\.0\.0\.1:9.*--env.rollout_server_url"):
        await client.status()
    await client.aclose()


async def test_a_cancelled_send_keeps_the_group():
    client = QueueClient("http://127.0.0.1:9")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.send(group()), 0.05)
    assert client.unsent == 1
    await client.aclose()


async def test_what_is_kept_is_bounded():
    server = TroubledServer()
    server.answers = [(503, {})] * 2
    async with server.serving() as client:
        client.max_unsent = 2
        assert not await client.send(group(1))
        assert not await client.send(group(2))
        third = asyncio.create_task(client.send(group(3)))
        await asyncio.sleep(0)
        assert client.unsent == 2
        assert not third.done()
        async with asyncio.timeout(5):
            while not third.done():
                await client.send_unsent()
                await asyncio.sleep(0.02)
        assert third.result()
        assert client.unsent == 0


async def test_a_group_that_waits_for_room_is_kept_where_its_sender_is_cancelled():
    server = TroubledServer()
    server.answers = [(503, {})]
    async with server.serving() as client:
        client.max_unsent = 1
        assert not await client.send(group(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send(group(2)), 0.05)
        assert client.unsent == 2


async def test_a_date_as_retry_after_is_taken_for_a_second():
    server = TroubledServer()
    server.answers = [(503, {})]
    server.retry_after = "Wed, 21 Oct 2026 07:28:00 GMT"
    async with server.serving() as client:
        assert not await client.send(group())
        assert client.unsent == 1


async def test_a_server_in_trouble_is_away_whatever_it_is_asked():
    server = TroubledServer()
    server.answers = [(503, {"error": "the store is full"})] * 4
    async with server.serving() as client:
        with pytest.raises(QueueUnavailable, match="the store is full"):
            await client.status()


async def test_a_web_server_that_is_no_trajectory_server_is_an_error_on_one_line():
    server = TroubledServer()
    server.answers = [(501, {"detail": "<html>\n  Unsupported method\n</html>"})]
    async with server.serving() as client:
        with pytest.raises(ConfigError, match=r"<html> Unsupported method </html>; is --env.rollout_server_url"):
            await client.register(REGISTRATION)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_missing_token_names_the_setting(status):
    server = TroubledServer()
    server.answers = [(status, {"error": "no"})]
    async with server.serving() as client:
        with pytest.raises(ConfigError, match="rollout_server_token_env"):
            await client.run_info()


async def test_something_else_at_the_url_is_a_wrong_setting():
    server = TroubledServer()
    server.answers = [(404, {"detail": "Not Found"})]
    async with server.serving() as client:
        with pytest.raises(ConfigError, match="rollout_server_url"):
            await client.run_info()


# encoding


def decoded(value: dict[str, Any]) -> dict[str, Any]:
    body, headers = encode_group(value)
    plain = gzip.decompress(body) if headers else body
    return orjson.loads(plain)


def test_a_big_group_is_gzipped_and_a_small_one_is_not():
    assert encode_group(group())[1] == {}
    body, headers = encode_group({**group(), "tokens": [list(range(5000))] * 2})
    assert headers == {"Content-Encoding": "gzip"}
    assert len(body) < 20_000


def test_only_keys_that_the_server_knows_are_sent():
    assert decoded(group(anything=[1], group_id="x", images=None)) == group(group_id="x")


def test_arrays_odd_text_and_long_integers_can_be_sent():
    messages = [[{"role": "user", "content": "half \udc80 of a pair", "n": 10**30}]] * 2
    sent = decoded(group(inference_logprobs=[np.array([0.5, 1], dtype=np.float32)] * 2, messages=messages))
    assert sent["inference_logprobs"] == [[0.5, 1.0]] * 2
    assert sent["messages"][0][0]["n"] == pytest.approx(10**30)


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1),
    st.lists(st.floats(-50, 0, width=32), min_size=1),
    st.text(),
)
def test_ids_logprobs_and_text_arrive_exactly(ids, logprobs, text):
    value = group(inference_logprobs=[logprobs, logprobs], messages=[[{"role": "user", "content": text}]] * 2)
    value["tokens"] = [ids, ids]
    sent = decoded(value)
    assert sent["tokens"] == [ids, ids]
    assert sent["inference_logprobs"] == [logprobs, logprobs]
    assert sent["messages"][0][0]["content"] == text
