"""A pool of boxes of one backend: few start at once, in the order in which they were asked for; some wait ready.

    async with SandboxPool(docker.start, starting=4, warm=2) as pool:
        async with pool.box(spec) as box:
            ...

Promises: a box is used once and then closed, never handed on; whoever is cancelled while waiting or starting leaves no
box behind and lets the next one through; leaving the pool closes the boxes that wait ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

from sandboxes.base import Sandbox, SandboxSpec
from sandboxes.errors import SandboxClosed, SandboxError

logger = logging.getLogger(__name__)

StartSandbox = Callable[[SandboxSpec], Awaitable[Sandbox]]


class SandboxPool:
    """Starts boxes with ``start``: at most ``starting`` at once, keeping ``warm`` ready for each spec in use."""

    def __init__(self, start: StartSandbox, *, starting: int = 4, warm: int = 0) -> None:
        if starting < 1 or warm < 0:
            raise ValueError(f"starting={starting} must be at least 1, and warm={warm} at least 0")
        self._start = start
        self._warm = warm
        self._slots = asyncio.Semaphore(starting)
        self._ready: defaultdict[object, deque[Sandbox]] = defaultdict(deque)
        self._coming: defaultdict[object, int] = defaultdict(int)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @contextlib.asynccontextmanager
    async def box(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """A box for one use, closed at the end. Raises what the start raises, and as ``take`` does."""
        box = await self.take(spec)
        try:
            yield box
        finally:
            await box.close()

    async def take(self, spec: SandboxSpec) -> Sandbox:
        """A box that is ready, else a new one; the caller closes it.

        Raises: SandboxClosed where the pool was left, and what the start raises.
        """
        self._require_open()
        ready = self._ready[_key(spec)]
        box = None
        while ready and box is None:
            box = await self._living(ready.popleft())
        self._refill(spec)
        return box or await self._start_one(spec)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop what is starting and close what waits ready. Boxes that were taken belong to their takers."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        boxes = [box for ready in self._ready.values() for box in ready]
        self._ready.clear()
        results = await asyncio.gather(*(box.close() for box in boxes), return_exceptions=True)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            raise ExceptionGroup("boxes of the pool were not closed", errors)

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxClosed("the pool of boxes is closed")

    async def _living(self, box: Sandbox) -> Sandbox | None:
        """A box that waited may have died meanwhile: then it is closed, and there is none."""
        if not box.closed:
            return box
        await box.close()
        return None

    async def _start_one(self, spec: SandboxSpec) -> Sandbox:
        async with self._slots:
            self._require_open()
            return await self._start(spec)

    def _refill(self, spec: SandboxSpec) -> None:
        key = _key(spec)
        while len(self._ready[key]) + self._coming[key] < self._warm:
            self._coming[key] += 1
            self._own(self._start_warm(key, spec))

    async def _start_warm(self, key: object, spec: SandboxSpec) -> None:
        try:
            box = await self._start_one(spec)
        except SandboxError as error:
            # Whoever needs a box next starts one itself, and is told.
            logger.warning("A box could not be started in advance: %s", error)
            return
        finally:
            self._coming[key] -= 1
        self._ready[key].append(box)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="warm box")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _key(spec: SandboxSpec) -> object:
    """Equal for specs whose boxes are interchangeable."""
    values = [getattr(spec, field.name) for field in dataclasses.fields(spec)]
    return tuple(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values)
