"""The HTTP API as clients see it, over a real uvicorn."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from atroposlib.api.server import ServerLimits, create_app
from atroposlib.api.waiting_groups import QueueLimits
from atroposlib.wire import GROUP_KEYS
from tests.atroposlib.api.groups import env_registration, firsts, registration, scored_group
from tests.atroposlib.api.serving import serving


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a fresh server in memory."""
    async with serving(create_app()) as url, aiohttp.ClientSession(url) as session:
        yield session


async def get(http: aiohttp.ClientSession, path: str, status: int = 200, **options: Any) -> Any:
    async with http.get(path, **options) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def post(http: aiohttp.ClientSession, path: str, body: Any, status: int = 200, **options: Any) -> Any:
    data = io.BytesIO(json.dumps(body).encode())
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    async with http.post(path, data=data, headers=headers, **options) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def start_run(http: aiohttp.ClientSession, **changes: Any) -> None:
    await post(http, "/register", registration(**changes).model_dump())
    assert await get(http, "/batch") == {"batch": None}


# --- the routes ---


async def test_before_a_trainer_registers_every_route_says_so(http):
    assert await get(http, "/") == {"message": "AtroposLib API"}
    assert await get(http, "/info") == {"batch_size": -1, "max_token_len": -1}
    assert await get(http, "/wandb_info") == {"group": None, "project": None}
    assert await get(http, "/batch") == {
        "status": "error",
        "message": "Trainer not registered. Call /register first.",
        "batch": [],
    }
    assert await get(http, "/latest_example") == {key: [] for key in GROUP_KEYS}
    status = await get(http, "/status")
    assert (status["current_step"], status["queue_size"]) == (0, 0)
    waits = await post(http, "/register-env", env_registration().model_dump())
    assert waits == {"status": "wait for trainer to start"}


async def test_a_run_from_registration_to_delivery(http):
    answer = await post(http, "/register", registration(starting_step=5).model_dump())
    assert isinstance(answer["uuid"], int)
    assert await get(http, "/info") == {"batch_size": 4, "max_token_len": 512}
    assert await get(http, "/wandb_info") == {"group": "group", "project": "project"}
    await get(http, "/batch")
    env = await post(http, "/register-env", env_registration().model_dump())
    assert (env["status"], env["env_id"], env["starting_step"]) == ("success", 0, 5)
    assert await post(http, "/scored_data", scored_group(0, env_id=0)) == {"status": "received"}
    listed = await post(http, "/scored_data_list", [scored_group(1, env_id=0), scored_group(2)])
    assert listed == {"status": "received", "groups_processed": 2}
    assert (await get(http, "/latest_example"))["tokens"][0][0] == 2
    batch = await get(http, "/batch")
    assert firsts(batch["batch"]) == [0, 1]
    assert (await get(http, "/status"))["current_step"] == 6
    assert await post(http, "/disconnect-env", {"env_id": 0}) == {"status": "success"}


async def test_a_delivered_group_has_all_keys_and_nothing_else(http):
    await start_run(http, batch_size=2)
    await post(http, "/scored_data", scored_group(3, extra="dropped", group_id="g", group_overrides={"group_size": 2}))
    (group,) = (await get(http, "/batch"))["batch"]
    given = scored_group(3, group_overrides={"group_size": 2})
    assert group == {key: given.get(key) for key in GROUP_KEYS}


async def test_every_key_arrives_as_it_was_sent(http):
    await start_run(http, batch_size=2)
    rows = [[0.5, -1.25, 1e-300], [0.0, 1.0, -3.5]]
    sent = scored_group(
        1,
        advantages=rows,
        ref_logprobs=rows,
        inference_logprobs=rows,
        messages=[
            [{"role": "user", "content": "hé\u2028"}, {"role": "assistant", "tool_calls": [{"id": "1"}]}],
            [{"role": "tool", "content": None, "reward": 0.5}],
        ],
        generation_params={"temperature": 0.7},
        overrides=[{"set_advantage_to_zero": True}, {}],
        group_overrides=None,
        images=[["data:image/png;base64,AA=="], None],
        distill_token_ids=[[[1, 2], [3], []], [[1], [2], [3]]],
        distill_logprobs=[[[-0.1, -2.0], [-0.3], []], [[-1.0], [-2.0], [-3.0]]],
    )
    await post(http, "/scored_data", sent)
    (group,) = (await get(http, "/batch"))["batch"]
    assert group == {**dict.fromkeys(GROUP_KEYS), **sent}


async def test_the_status_of_an_environment_is_asked_by_body_or_by_query(http):
    await start_run(http)
    env = await post(http, "/register-env", env_registration().model_dump())
    by_body = await get(http, "/status-env", json={"env_id": 0})
    by_query = await get(http, "/status-env", params={"env_id": 0, "run_id": env["run_id"]})
    assert by_body == by_query
    assert set(by_body) == {
        "current_step",
        "queue_size",
        "unallocated_fraction",
        "self_queue_size",
        "max_group_size",
        "env_weight",
    }
    assert (await get(http, "/status-env", 422))["status"] == "failure"


async def test_an_unknown_environment_is_told_to_register_again(http):
    await start_run(http)
    refused = await get(http, "/status-env", 404, json={"env_id": 3})
    assert refused["register_again"] is True
    refused = await post(http, "/scored_data", scored_group(env_id=-1), 404)
    assert refused["register_again"] is True
    assert (await post(http, "/disconnect-env", {"env_id": 3}))["status"] == "failure"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_reset_forgets_the_run(http, method):
    await start_run(http)
    await post(http, "/scored_data", scored_group())
    async with http.request(method, "/reset_data") as answer:
        assert await answer.text() == "Reset successful"
    assert (await get(http, "/batch"))["status"] == "error"
    assert (await get(http, "/status"))["queue_size"] == 0


async def test_a_full_queue_answers_503_and_when_to_come_again():
    app = create_app(limits=ServerLimits(queue=QueueLimits(groups=1)))
    async with serving(app) as url, aiohttp.ClientSession(url) as http:
        await post(http, "/scored_data", scored_group(0))
        async with http.post("/scored_data", json=scored_group(1)) as answer:
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) >= 1
        assert (await get(http, "/status"))["groups_refused"] == {"queue_full": 1}


# --- hostile and broken bodies ---

_GROUP = scored_group(0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**_GROUP, "scores": [0.5, float("nan")]}, "scores"),
        ({**_GROUP, "scores": [0.5, float("inf")]}, "scores"),
        ({**_GROUP, "scores": [0.5]}, "scores"),
        ({**_GROUP, "scores": 1.0}, "scores"),
        ({**_GROUP, "tokens": [[1, 2, 3], [10**30, 2, 3]]}, "tokens"),
        ({**_GROUP, "tokens": [[1, 2, 3], [-1, 2, 3]]}, "tokens"),
        ({**_GROUP, "tokens": [1, 2]}, "tokens"),
        ({**_GROUP, "tokens": [[[1]], [[2]]]}, "tokens"),
        ({**_GROUP, "tokens": [["a"] * 400] * 400}, "tokens"),
        ({"tokens": [], "masks": [], "scores": []}, "tokens"),
        ({**_GROUP, "masks": [[-100, 7, 8]]}, "masks"),
        ({**_GROUP, "masks": [[-100, 7, 8], [-100, 7]]}, "masks"),
        ({**_GROUP, "inference_logprobs": [[0.0], [0.0]]}, "inference_logprobs"),
        ({**_GROUP, "advantages": [[0.0] * 3, [0.0, 0.0, float("-inf")]]}, "advantages"),
        ({**_GROUP, "messages": [[{"content": "no role"}], []]}, "messages"),
        ({**_GROUP, "messages": [["text"], []]}, "messages"),
        ({**_GROUP, "overrides": [None, {}]}, "overrides"),
        ({**_GROUP, "distill_token_ids": [[[1]] * 3] * 2, "distill_logprobs": [[[]] * 3] * 2}, "distill_logprobs"),
        ({**_GROUP, "env_id": "first"}, "env_id"),
        ({**_GROUP, "group_id": "x" * 1000}, "group_id"),
        ({"tokens": [[1]]}, "masks"),
        ([_GROUP], ""),
        ("text", ""),
        (None, ""),
    ],
)
async def test_a_malformed_group_is_refused_by_the_name_of_its_field(http, body, field):
    refused = await post(http, "/scored_data", body, 422)
    assert refused.get("field", "") == field
    assert field in refused["error"]
    status = await get(http, "/status")
    assert (status["groups_refused"], status["queue_size"]) == ({"malformed_or_too_large": 1}, 0)


async def test_optional_lists_that_are_empty_are_taken(http):
    await post(http, "/scored_data", {**_GROUP, "messages": [], "overrides": [], "inference_logprobs": []})


async def test_a_fault_in_a_list_names_the_group(http):
    bad = {**_GROUP, "scores": [1.0]}
    refused = await post(http, "/scored_data_list", [_GROUP, bad], 422)
    assert refused["error"].startswith("[1].scores")
    assert (await get(http, "/status"))["queue_size"] == 0


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"tokens":' * 50_000, b"NaN"])
async def test_bytes_that_are_no_group_are_refused(http, body):
    for path in ("/scored_data", "/scored_data_list", "/register", "/register-env"):
        async with http.post(path, data=body, headers={"content-type": "application/json"}) as answer:
            assert answer.status in (400, 422)
    assert await get(http, "/") == {"message": "AtroposLib API"}


async def test_numbers_that_json_cannot_say_back_are_refused_without_a_server_error(http):
    body = json.dumps({**registration().model_dump(), "batch_size": float("nan")})
    async with http.post("/register", data=body, headers={"content-type": "application/json"}) as answer:
        assert answer.status == 422
        assert "batch_size" in (await answer.json())["error"]
    messages = [[{"role": "user", "content": 10**30}], [{"role": "user", "content": "x"}]]
    await post(http, "/scored_data", {**_GROUP, "messages": messages}, 422)


# --- packed bodies ---

_PACKED = {"content-encoding": "gzip", "content-type": "application/json"}


@pytest.mark.parametrize("sequences", [2, 20_000])
async def test_gzipped_bodies_are_taken(http, sequences):
    packed = gzip.compress(json.dumps(scored_group(0, sequences)).encode())
    async with http.post("/scored_data", data=packed, headers=_PACKED) as answer:
        assert answer.status == 200
    assert (await get(http, "/status"))["queued_sequences"] == sequences


async def test_gzip_of_several_members_is_taken(http):
    text = json.dumps(scored_group(0)).encode()
    packed = gzip.compress(text[:20]) + gzip.compress(text[20:])
    async with http.post("/scored_data", data=packed, headers=_PACKED) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    "packed", [b"no gzip", gzip.compress(b"{}" * 1000)[:-9], gzip.compress(b"{}") + b"rest", b"\x1f\x8b"]
)
async def test_broken_gzip_is_refused(http, packed):
    async with http.post("/scored_data", data=packed, headers=_PACKED) as answer:
        assert answer.status == 400


async def test_other_encodings_are_refused(http):
    async with http.post("/scored_data", data=b"x", headers={"content-encoding": "br"}) as answer:
        assert answer.status == 415


async def test_bodies_over_the_limit_are_refused_packed_and_unpacked():
    app = create_app(limits=ServerLimits(body_bytes=1_000_000))
    bomb = gzip.compress(b" " * 500_000_000, compresslevel=1)
    assert len(bomb) > 1_000_000  # so the next one is small enough to be let in
    small_bomb = gzip.compress(b" " * 100_000_000, compresslevel=9)
    async with serving(app) as url, aiohttp.ClientSession(url) as http:
        for body, headers in (
            (io.BytesIO(bomb), _PACKED),
            (io.BytesIO(small_bomb), _PACKED),
            (io.BytesIO(b" " * 1_000_001), {}),
            (_chunks(), {}),
        ):
            async with http.post("/scored_data", data=body, headers=headers) as answer:
                assert answer.status == 413
        await post(http, "/scored_data", scored_group(0))


async def _chunks() -> AsyncIterator[bytes]:
    for _ in range(20):
        yield b" " * 100_000


# --- leases over the wire ---


async def test_a_batch_names_itself_and_is_acknowledged_by_its_name(http):
    await start_run(http)
    await post(http, "/scored_data_list", [scored_group(i) for i in range(4)])
    seen = []
    acknowledged = 0
    for repeat in (True, False, False):
        async with http.get("/batch", params={"ack": acknowledged}) as answer:
            seen.append(firsts((await answer.json())["batch"]))
            acknowledged = acknowledged if repeat else int(answer.headers["x-batch-id"])
    assert seen == [[0, 1], [0, 1], [2, 3]]


async def test_a_trainer_that_hangs_up_while_a_batch_is_sent_loses_nothing():
    async with serving(create_app()) as url, aiohttp.ClientSession(url) as http:
        await start_run(http, batch_size=64)
        large = scored_group(0, 64, messages=[[{"role": "user", "content": "x" * 500_000}]] * 64)
        await post(http, "/scored_data", large)
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(b"GET /batch HTTP/1.1\r\nHost: here\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.transport.abort()
        while (status := await get(http, "/status"))["batches_in_flight"]:
            await asyncio.sleep(0.01)
        assert (status["queue_size"], status["current_step"]) == (1, 0)
        assert firsts((await get(http, "/batch"))["batch"]) == [0]


# --- many at a time ---


async def test_many_posters_and_trainers_at_a_time_lose_and_repeat_nothing(http):
    await start_run(http)
    groups, delivered = 200, []

    async def poster(numbers: range) -> None:
        for number in numbers:
            for _ in range(2):  # each post is repeated, as after a lost answer
                await post(http, "/scored_data", scored_group(number, group_id=str(number)))

    async def trainer() -> None:
        while len(delivered) < groups:
            batch = (await get(http, "/batch"))["batch"]
            delivered.extend(firsts(batch or []))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for start in range(8):
            tasks.create_task(poster(range(start, groups, 8)))
        for _ in range(3):
            tasks.create_task(trainer())
    assert sorted(delivered) == list(range(groups))


# --- access ---


async def test_a_token_is_asked_of_every_client_where_one_is_set():
    async with serving(create_app(token="secret")) as url, aiohttp.ClientSession(url) as http:
        await get(http, "/")
        for path in ("/status", "/batch", "/reset_data", "/openapi.json"):
            await get(http, path, 401)
        await get(http, "/status", 401, headers={"authorization": "Bearer wrong"})
        await post(http, "/scored_data", scored_group(), 401)
        await get(http, "/status", headers={"authorization": "Bearer secret"})


@pytest.mark.parametrize("headers", [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}])
async def test_web_pages_cannot_use_the_server_unless_allowed(http, headers):
    await post(http, "/scored_data", scored_group())
    await get(http, "/reset_data", 403, headers=headers)
    await post(http, "/scored_data", scored_group(), 403, headers=headers)
    assert (await get(http, "/status"))["queue_size"] == 1


async def test_an_allowed_page_can_use_the_server():
    origin = "http://page.example"
    async with serving(create_app(allowed_origins=[origin])) as url, aiohttp.ClientSession(url) as http:
        headers = {"origin": origin, "sec-fetch-site": "cross-site"}
        async with http.get("/status", headers=headers) as answer:
            assert answer.headers["access-control-allow-origin"] == origin
        asked = {**headers, "access-control-request-method": "POST"}
        async with http.options("/scored_data", headers=asked) as answer:
            assert answer.status == 200


# --- the module ---


_LAZY = """
import sys, atroposlib.api
assert "fastapi" not in sys.modules
from atroposlib.api import app
import atroposlib.api.server
assert app is atroposlib.api.server.app
assert not hasattr(atroposlib.api, "nothing_of_this_name")
"""


def test_importing_the_package_does_not_make_the_app():
    subprocess.run([sys.executable, "-c", _LAZY], check=True)
