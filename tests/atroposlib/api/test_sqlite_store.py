"""A queue with a store outlives its process: nothing that was acknowledged is lost, whatever is killed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from atroposlib.api.store import open_store
from atroposlib.api.trajectory_queue import TrajectoryQueue
from atroposlib.api.waiting_groups import QueueLimits
from atroposlib.errors import StoreError
from atroposlib.wire import EnvIdentifier
from tests.atroposlib.api.groups import env_registration, firsts, incoming, registration, scored_group
from tests.atroposlib.api.serving import ServerProcess


class Restarts:
    """A queue over one file, as often as it is started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queue = TrajectoryQueue(open_store(path))

    async def restart(self) -> TrajectoryQueue:
        await self.queue.flushed()
        self.queue.close()
        self.queue = TrajectoryQueue(open_store(self.path))
        return self.queue


@pytest.fixture
def restarts(tmp_path: Path) -> Iterator[Restarts]:
    restarts = Restarts(tmp_path / "folder" / "queue.db")
    restarts.queue.register(registration())
    restarts.queue.next_batch()
    yield restarts
    restarts.queue.close()


async def test_groups_environments_and_the_run_are_there_after_a_restart(restarts):
    env = restarts.queue.register_env(env_registration())
    restarts.queue.add([incoming(i, env_id=0) for i in range(3)])
    queue = await restarts.restart()
    assert queue.info() == {"batch_size": 4, "max_token_len": 512}
    assert queue.env_status(EnvIdentifier(env_id=0, run_id=env["run_id"]))["self_queue_size"] == 3
    assert queue.register_env(env_registration())["wandb_name"] == "env_1"
    assert firsts(queue.next_batch().groups) == [0, 1]


async def test_a_batch_in_flight_is_settled_as_without_a_restart(restarts):
    restarts.queue.add([incoming(i) for i in range(6)])
    received = restarts.queue.next_batch()
    restarts.queue.batch_sent(received.batch_id)
    queue = await restarts.restart()
    assert queue.status()["batches_in_flight"] == 1
    assert firsts(queue.next_batch().groups) == [2, 3]


async def test_a_batch_whose_sending_was_cut_short_comes_again(restarts):
    restarts.queue.add([incoming(i) for i in range(4)])
    restarts.queue.next_batch()
    queue = await restarts.restart()
    assert firsts(queue.next_batch().groups) == [0, 1]
    assert queue.status()["current_step"] == 1


async def test_a_batch_is_acknowledged_by_its_id_after_a_restart(restarts):
    restarts.queue.add([incoming(i) for i in range(4)])
    batch = restarts.queue.next_batch()
    queue = await restarts.restart()
    assert firsts(queue.next_batch(batch.batch_id).groups) == [2, 3]
    assert (await restarts.restart()).status()["batches_in_flight"] == 1


async def test_a_returned_batch_waits_in_its_old_place(restarts):
    restarts.queue.add([incoming(i) for i in range(4)])
    restarts.queue.next_batch()
    restarts.queue.register(registration(starting_step=3))
    queue = await restarts.restart()
    assert (queue.status()["queue_size"], queue.status()["current_step"]) == (4, 3)
    assert firsts(queue.next_batch().groups) == [0, 1]


async def test_ids_of_delivered_groups_are_known_after_a_restart(restarts):
    restarts.queue.add([incoming(0, group_id="a"), incoming(1, group_id="b")])
    restarts.queue.batch_sent(restarts.queue.next_batch().batch_id)
    restarts.queue.next_batch()
    queue = await restarts.restart()
    queue.add([incoming(0, group_id="a")])
    assert queue.status()["queue_size"] == 0


async def test_forgotten_ids_are_forgotten_in_the_file_too(tmp_path):
    path = tmp_path / "queue.db"
    queue = TrajectoryQueue(open_store(path), QueueLimits(group_ids=1))
    queue.add([incoming(0, group_id="a")])
    queue.add([incoming(1, group_id="b")])
    queue.close()
    store = open_store(path)
    assert list(store.load().group_ids) == ["b"]
    store.close()


async def test_a_reset_empties_the_file(restarts):
    restarts.queue.register_env(env_registration())
    restarts.queue.add([incoming(i) for i in range(4)])
    restarts.queue.next_batch()
    restarts.queue.reset()
    queue = await restarts.restart()
    assert queue.info()["batch_size"] == -1
    assert queue.status()["queue_size"] == queue.status()["connected_envs"] == queue.status()["batches_in_flight"] == 0


async def test_many_changes_made_at_once_are_all_there(restarts):
    for i in range(300):
        restarts.queue.add([incoming(i)])
    queue = await restarts.restart()
    delivered = []
    while (batch := queue.next_batch()) is not None:
        queue.batch_sent(batch.batch_id)
        delivered += firsts(batch.groups)
    assert delivered == list(range(300))


async def test_a_request_that_is_given_up_takes_back_no_changes(restarts):
    restarts.queue.add([incoming(0)])
    waiting = asyncio.create_task(restarts.queue.flushed())
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await restarts.restart()).status()["queue_size"] == 1


def test_one_server_at_a_time_may_use_a_file(restarts):
    with pytest.raises(StoreError, match="in use by another server"):
        open_store(restarts.path)


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\x00 but no more"])
def test_a_file_that_is_no_store_is_left_alone(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"notes\.txt"):
        open_store(path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(StoreError, match="format 0"):
        open_store(path)


async def test_after_a_failed_write_nothing_is_acknowledged_any_more(tmp_path):
    path = tmp_path / "queue.db"
    queue = TrajectoryQueue(open_store(path))
    await queue.flushed()
    queue.add([incoming(0, env_id=None, group_id="a")])
    await queue.flushed()
    _break(queue)
    queue.add([incoming(1)])
    with pytest.raises(StoreError, match="restart the server"):
        await queue.flushed()
    queue.add([incoming(2)])
    with pytest.raises(StoreError):
        await queue.flushed()
    queue.close()
    again = TrajectoryQueue(open_store(path))
    assert again.status()["queue_size"] == 1
    again.close()


def _break(queue: TrajectoryQueue) -> None:
    """Hand the store a group that it has already, which no caller of the queue can do."""
    state = queue._store
    state.add(list(queue._waiting))


@pytest.mark.slow
async def test_a_server_killed_again_and_again_loses_nothing_it_acknowledged(tmp_path):
    """Posters repeat what was not acknowledged; the trainer acknowledges by id; the server dies five times."""
    server = ServerProcess("--store", str(tmp_path / "queue.db"))
    server.start()
    groups, posted, delivered = 300, set(), []

    async def until_answered(http, method, path, **options):
        while True:
            try:
                async with http.request(method, server.url + path, **options) as answer:
                    assert answer.status == 200
                    return answer.headers, await answer.json()
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)

    async def poster(http, numbers):
        for number in numbers:
            await until_answered(http, "POST", "/scored_data", json=scored_group(number, group_id=str(number)))
            posted.add(number)

    async def trainer(http):
        acknowledged = "0"
        while len(delivered) < groups:
            headers, answer = await until_answered(http, "GET", "/batch", params={"ack": acknowledged})
            acknowledged = headers.get("x-batch-id", acknowledged)
            delivered.extend(firsts(answer["batch"] or []))

    async def killer():
        for kill_after in range(40, 240, 40):
            while len(posted) < kill_after:
                await asyncio.sleep(0.005)
            server.kill()
            await asyncio.to_thread(server.start)

    try:
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
            await until_answered(http, "POST", "/register", json=registration().model_dump())
            for start in range(4):
                tasks.create_task(poster(http, range(start, groups, 4)))
            tasks.create_task(trainer(http))
            tasks.create_task(killer())
    finally:
        server.kill()
    assert sorted(delivered) == list(range(groups))
