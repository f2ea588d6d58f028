"""Worker processes: what a call does to one of them, and to no other call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from atroposlib.envs.reward_fns.workers.outcomes import Call, Done, Failed
from atroposlib.envs.reward_fns.workers.pool import WorkerPool
from atroposlib.envs.reward_fns.workers.threads import DaemonThreads
from tests.machine import wait_until


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(workers=1)
    yield made
    made.close()


def calls(*args: object, limit_s: float = 20.0) -> list[Call]:
    return [Call((each,), limit_s) for each in args]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_calls_come_back_in_order_each_with_its_outcome(pool):
    outcomes = pool.run(int, calls("1", "two", "3"))
    assert [outcomes[0].value, outcomes[2].value] == [1, 3]
    assert outcomes[1] == Failed("ValueError: invalid literal for int() with base 10: 'two'")
    assert all(each.seconds >= 0 for each in outcomes if isinstance(each, Done))


def test_a_call_that_takes_too_long_costs_itself_only(pool):
    outcomes = pool.run(time.sleep, [Call((0,), 20), Call((60,), 0.3), Call((0,), 20)])
    assert [type(each) for each in outcomes] == [Done, Failed, Done]
    assert outcomes[1] == Failed("took longer than 0.3 s")


def test_a_worker_that_takes_too_long_is_killed_and_reaped(pool):
    [pid] = [each.value for each in pool.run(os.getpid, [Call((), 20)])]
    pool.run(time.sleep, [Call((60,), 0.2)])
    assert not psutil.pid_exists(pid)
    assert pid not in pool.pids()


def test_a_call_that_ends_its_process_costs_itself_only(pool):
    outcomes = pool.run(os._exit, calls(3, 4))
    assert outcomes == [Failed("ended its process with exit code 3"), Failed("ended its process with exit code 4")]
    [killed] = pool.run(os.kill, [Call((0, signal.SIGKILL), 20)])  # 0: its own group
    assert killed == Failed("ended its process by SIGKILL (out of memory?)")
    assert isinstance(pool.run(int, calls("1"))[0], Done)


def test_a_call_may_not_eat_the_memory_of_the_machine():
    pool = WorkerPool(workers=1, memory_bytes=512 << 20)
    try:
        too_much, enough = pool.run(bytearray, calls(1 << 30, 1 << 10))
    finally:
        pool.close()
    assert too_much == Failed("took more memory than it may have")
    assert isinstance(enough, Done)


def test_a_setup_that_fails_is_told_for_every_call(pool):
    outcomes = pool.run(int, calls("1", "2"), setup=(int, "one"))
    assert {each.reason for each in outcomes} == {
        "could not be set up: ValueError: invalid literal for int() with base 10: 'one'"
    }
    assert isinstance(pool.run(int, calls("1"), setup=(int, "1"))[0], Done)


def test_what_a_call_prints_does_not_disturb_the_answers(pool):
    assert [each.value for each in pool.run(print, calls("noise", "more noise"))] == [None, None]


def test_functions_that_cannot_be_pickled_are_an_error_of_the_caller(pool):
    with pytest.raises((AttributeError, TypeError, Exception), match="pickle"):
        pool.run(lambda: 1, [Call((), 1)])


def test_idle_workers_serve_again(pool):
    pids = {pool.run(os.getpid, [Call((), 20)])[0].value for _ in range(5)}
    assert len(pids) == 1
    assert {*pool.pids()} == pids


async def test_all_workers_compute_at_once(tmp_path: Path):
    pool = WorkerPool(workers=2)
    try:
        batches = [pool.arun(_meet, [Call((tmp_path / str(i),), 20)]) for i in range(2)]
        outcomes = await asyncio.gather(*batches)
    finally:
        pool.close()
    assert len({outcome.value for [outcome] in outcomes}) == 2


def _meet(place: Path) -> int:
    """Return once both workers are here: alone, a worker would wait until it is killed."""
    place.touch()
    while len([*place.parent.iterdir()]) < 2:
        time.sleep(0.01)
    return os.getpid()


async def test_a_cancelled_batch_gives_its_worker_back(pool):
    running = asyncio.create_task(pool.arun(time.sleep, [Call((0.2,), 20)] * 100))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(15):
        [outcome] = await pool.arun(int, calls("1"))
    assert isinstance(outcome, Done)


def test_a_closed_pool_leaves_no_process_and_no_waiting_caller():
    pool = WorkerPool(workers=1)
    [pid] = [each.value for each in pool.run(os.getpid, [Call((), 20)])]
    pool.close()
    pool.close()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("order", ["import time; time.sleep(600)", "while True: pass", "len(str(7 ** (7 ** 12)))"])
def test_no_worker_outlives_a_parent_that_was_killed(order):
    program = textwrap.dedent(
        f"""
        import sys, threading
        from atroposlib.envs.reward_fns.workers.pool import WorkerPool
        from atroposlib.envs.reward_fns.workers.outcomes import Call
        pool = WorkerPool(workers=1)
        pool.run(int, [Call(("1",), 60)])
        print(*pool.pids(), flush=True)
        pool.run(exec, [Call(({order!r},), 600)])
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: gone(worker))


def test_a_program_ends_although_a_thread_of_a_reward_does_not():
    program = textwrap.dedent(
        """
        from atroposlib.envs.reward_fns.workers.threads import DaemonThreads
        import threading
        started = threading.Event()
        DaemonThreads(1, "x").submit(lambda: (started.set(), threading.Event().wait()))
        started.wait()
        """
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_threads_are_started_as_they_are_needed_and_not_beyond_their_number():
    threads = DaemonThreads(2, "x")
    assert [threads.submit(int, "7").result(10) for _ in range(5)] == [7] * 5
    assert len(threads._threads) == 1
    futures = [threads.submit(time.sleep, 0.05) for _ in range(6)]
    assert [future.result(10) for future in futures] == [None] * 6
    assert len(threads._threads) == 2
    threads.close()
