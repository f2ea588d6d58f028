"""Cancel a coroutine at a chosen await."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def cancelled_at(number: int, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the current task, which is cancelled when it waits for the ``number``-th time."""
    return await _steps(number, coroutine)


@types.coroutine
def _steps(number: int, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    step, value, error = 0, None, None
    while True:
        try:
            awaited = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        step += 1
        task = asyncio.current_task()
        if step == number and task is not None:
            task.cancel()
        value, error = None, None
        try:
            value = yield awaited
        except BaseException as raised:  # noqa: BLE001 - it is thrown into the coroutine
            error = raised
