"""Synchronous calls over an asynchronous core: who waits, and what is seen while it does."""

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from environments.tool_context.bridge import BridgeError, bridged, bridged_method, run_from_sync

PAUSE_S = 0.02
colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def work(value, seconds=PAUSE_S):
    await asyncio.sleep(seconds)
    if isinstance(value, Exception):
        raise value
    return value


def wait(value, seconds=PAUSE_S):
    return run_from_sync(lambda: work(value, seconds))


async def test_a_sync_call_in_an_async_function_lets_others_go_on():
    async def reward(n):
        first = wait(n)
        await asyncio.sleep(0)
        return first, wait(n + 1)

    started = time.perf_counter()
    results = await asyncio.gather(*(bridged(reward, n) for n in range(100)))
    assert results == [(n, n + 1) for n in range(100)]
    assert time.perf_counter() - started < 50 * PAUSE_S


async def test_a_plain_function_is_bridged_as_well():
    assert await bridged(lambda: wait(1) + wait(2)) == 3


async def test_errors_come_through_with_their_traceback():
    with pytest.raises(ValueError, match="boom") as caught:
        await bridged(lambda: wait(ValueError("boom")))
    assert {"work", "wait"} <= {entry.name for entry in caught.traceback}


async def test_it_is_the_same_task_and_context():
    async def inside():
        colour.set("red")
        wait(0)
        return asyncio.current_task()

    assert await bridged(inside) is asyncio.current_task()
    assert colour.get() == "red"


async def test_timeouts_and_cancellation_arrive_in_the_sync_call():
    seen = []

    async def slow():
        try:
            wait(0, 60)
        except asyncio.CancelledError:
            seen.append(wait("cleaned"))
            raise

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(PAUSE_S):
            await bridged(slow)
    task = asyncio.create_task(bridged(slow))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cleaned", "cleaned"]


async def test_child_tasks_are_bridged_too():
    async def child(n):
        return wait(n)

    async def parent():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(child(n)) for n in range(3)]
        return [task.result() for task in tasks] + await asyncio.gather(child(3), child(4))

    assert await bridged(parent) == [0, 1, 2, 3, 4]


async def test_a_child_that_is_cancelled_before_it_starts_leaves_nothing():
    async def parent():
        task = asyncio.create_task(work(1))
        task.cancel()
        return await asyncio.gather(task, return_exceptions=True)

    (result,) = await bridged(parent)
    assert isinstance(result, asyncio.CancelledError)
    gc.collect()


async def test_threads_wait_for_the_loop_of_the_bridge():
    async def inside():
        return await asyncio.to_thread(wait, "from a thread"), threading.current_thread()

    result, thread = await bridged(inside)
    assert result == "from a thread"
    assert thread is threading.main_thread()


async def test_a_thread_without_context_uses_the_loop_it_is_given():
    loop = asyncio.get_running_loop()

    async def where():
        return asyncio.get_running_loop()

    with ThreadPoolExecutor(1) as pool:
        assert await asyncio.wrap_future(pool.submit(run_from_sync, where, loop)) is loop


async def test_elsewhere_on_a_loop_the_call_is_refused_with_a_way_out():
    with pytest.raises(BridgeError, match="aterminal"):
        wait(1)

    async def other():
        return wait(1)

    task = asyncio.create_task(other())
    with pytest.raises(BridgeError):
        await task


async def test_nesting_and_generators_work():
    async def numbers():
        for n in range(3):
            yield wait(n)

    async def outer():
        inner = await bridged(lambda: wait("in"))
        return inner, [n async for n in numbers()], sorted([2, 1], key=lambda n: wait(n))

    assert await bridged(outer) == ("in", [0, 1, 2], [1, 2])


async def test_a_bridged_method_keeps_its_name_and_is_bridged_once():
    async def compute_reward(value):
        """Words."""
        return wait(value)

    method = bridged_method(compute_reward)
    assert (method.__name__, method.__doc__) == ("compute_reward", "Words.")
    assert bridged_method(method) is method
    assert await method(7) == 7


def test_a_program_without_a_loop_simply_waits():
    assert wait(5) == 5
    program = (
        "import asyncio\n"
        "from environments.tool_context.bridge import run_from_sync\n"
        "print(run_from_sync(lambda: asyncio.sleep(0.01, 'done')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "done\n"
