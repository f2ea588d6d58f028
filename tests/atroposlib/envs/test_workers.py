"""Every task has an owner, ends when its owner ends, and cleans up."""

import asyncio
from typing import Any

import pytest

from atroposlib.envs.config import EvalHandlingEnum
from atroposlib.envs.groups import Failures
from atroposlib.envs.workers import WorkerPool, current_item, uninterrupted
from atroposlib.errors import ConfigError


def pool(handling: EvalHandlingEnum = EvalHandlingEnum.STOP_TRAIN, ratio: float = 0.5) -> WorkerPool:
    return WorkerPool(handling, ratio, Failures())


async def sleep_long(item_id: str) -> None:
    await asyncio.sleep(60)


async def test_a_worker_finds_its_item_and_forgets_it_when_done():
    seen: list[Any] = []
    async with pool() as workers:

        async def work(item_id: str) -> None:
            seen.append((workers.running_items[item_id].item, current_item.get()))

        running = workers.start("item", work, 0)
    assert seen == [("item", running)]
    assert workers.running_items == {}
    assert workers.workers == set()
    assert len(workers.durations) == 1


async def test_an_item_that_takes_too_long_is_cancelled_counted_and_tried_once_more():
    failures = Failures()
    workers = WorkerPool(EvalHandlingEnum.NONE, 1.0, failures)
    item: dict[str, int] = {}
    async with workers:
        workers.start(item, sleep_long, 0.01)
        await workers.wait(5)
        assert workers.backlog == [item]
        again = workers.start(workers.backlog.pop(), sleep_long, 0.01)
        assert again.repeated
        await workers.wait(5)
        assert workers.backlog == []
    assert failures == {"timeout": 2}


async def test_an_item_that_gave_a_group_before_it_timed_out_is_not_tried_again():
    async with pool() as workers:
        running = workers.start("item", sleep_long, 0.01)
        running.groups = 1
        await workers.wait(5)
        assert workers.backlog == []


async def test_a_timeout_inside_the_work_is_a_failure_of_its_own():
    async def work(item_id: str) -> None:
        raise TimeoutError("a socket")

    failures = Failures()
    async with WorkerPool(EvalHandlingEnum.NONE, 1.0, failures) as workers:
        workers.start("item", work, 60)
    assert failures == {"TimeoutError": 1}
    assert workers.backlog == []


async def test_a_failing_worker_does_not_end_the_others_but_a_wrong_setting_does():
    ended = []

    async def fail(item_id: str) -> None:
        raise KeyError("x")

    async def wrong(item_id: str) -> None:
        raise ConfigError("--env.x is wrong")

    async def work(item_id: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    async def run() -> None:
        async with pool() as workers:
            workers.start(1, work, 0)
            workers.start(2, fail, 0)
            await workers.wait(1)
            assert len(workers.workers) == 1
            workers.start(3, wrong, 0)
            await workers.wait(1)
            await asyncio.sleep(60)

    with pytest.raises(ConfigError, match=r"--env\.x"):
        await run()
    assert ended == ["cleaned up"]


async def test_cancelling_the_pool_waits_for_every_clean_up():
    ended = []

    async def work(item_id: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await uninterrupted(asyncio.sleep(0.01, ended.append(item_id)))

    async def run() -> None:
        async with pool() as workers:
            for number in range(3):
                workers.start(number, work, 0)
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(ended) == 3


async def test_evaluations_asked_for_meanwhile_do_not_add_up():
    began, go_on = [], asyncio.Event()

    async def evaluate() -> None:
        began.append(1)
        await go_on.wait()

    async with pool(EvalHandlingEnum.NONE) as workers:
        for _ in range(3):
            workers.request_evaluation()
            workers.start_due_evaluation(evaluate)
            await asyncio.sleep(0)
        assert len(began) == 1
        go_on.set()
        await workers.wait(5)
        workers.start_due_evaluation(evaluate)
    assert len(began) == 2


@pytest.mark.parametrize(
    ("handling", "room"),
    [(EvalHandlingEnum.STOP_TRAIN, 0), (EvalHandlingEnum.LIMIT_TRAIN, 2), (EvalHandlingEnum.NONE, 4)],
)
async def test_an_evaluation_leaves_as_much_room_as_its_handling_says(handling, room):
    async with pool(handling) as workers:
        assert workers.room(4) == 4
        workers.request_evaluation()
        assert workers.room(4) == room
        workers.start_due_evaluation(lambda: asyncio.sleep(0))
        assert workers.room(4) == room
    assert workers.room(4) == 4


async def test_with_stop_train_an_evaluation_waits_for_running_workers():
    began, go_on = [], asyncio.Event()

    async def work(item_id: str) -> None:
        await go_on.wait()

    async def evaluate() -> None:
        began.append(len(workers.workers))

    async with pool() as workers:
        workers.start("item", work, 0)
        workers.request_evaluation()
        workers.start_due_evaluation(evaluate)
        assert workers.evaluation is None
        go_on.set()
        await workers.wait(5)
        workers.start_due_evaluation(evaluate)
    assert began == [0]


async def test_items_that_fail_in_a_row_are_counted_until_one_gives_a_group_that_is_sent_or_left_out():
    async def fail(item_id: str) -> None:
        raise KeyError("x")

    async def give(item_id: str) -> None:
        running = current_item.get()
        assert running is not None
        running.left_out += 1

    async with pool() as workers:
        for number in range(3):
            workers.start(number, fail, 0)
            await workers.wait(5)
        assert workers.failed_in_a_row == 3
        workers.start(3, give, 0)
        await workers.wait(5)
        assert workers.failed_in_a_row == 0


# work that must not be broken off


async def test_uninterrupted_work_is_finished_before_the_cancellation_is_raised():
    done = []

    async def work() -> str:
        await asyncio.sleep(0.02)
        done.append(True)
        return "result"

    task = asyncio.create_task(uninterrupted(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [True]
    assert await uninterrupted(work()) == "result"


async def test_what_uninterrupted_work_raises_is_raised():
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await uninterrupted(work())
