"""Few boxes starting at once, and some that wait ready.

    async with SandboxPool(docker.start, starting=4, warm=2) as pool:
        async with pool.box(spec) as box:
            ...

Promises:

- a box is used once and then closed, never handed on; one that waited is asked for a sign of life before it is given;
- whoever asks first is served first, among those who want the same spec, and starts begin in the order of the asking;
- waiting is bounded, in number (``queue``) and in time (``patience_s``), and ``waiting`` says who waits since when;
- whoever is cancelled while waiting leaves no box behind; leaving the pool closes the boxes that wait ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from sandboxes.base import Sandbox, SandboxSpec
from sandboxes.errors import PoolBusy, SandboxClosed, SandboxError

logger = logging.getLogger(__name__)

_SPECS_KEPT = 8
"""Of how many specs, the last ones that were asked for, boxes stand ready."""
_REFILL_AFTER_S = 0.02
_WARM_UP_S = 20.0

StartSandbox = Callable[[SandboxSpec], Awaitable[Sandbox]]


@dataclass(frozen=True)
class Waiting:
    """Someone who waits for a box."""

    who: str
    spec: SandboxSpec
    seconds: float


@dataclass(frozen=True)
class _Offer:
    box: Sandbox
    waited: bool
    """Whether the box stood ready before it was asked for, and may have died meanwhile."""


@dataclass(eq=False)
class _Waiter:
    who: str
    spec: SandboxSpec
    key: object
    since: float
    offer: asyncio.Future[_Offer]


class SandboxPool:
    """Starts boxes with ``start``: at most ``starting`` at once, keeping ``warm`` ready for each spec in use.

    At most ``queue`` callers wait at once, each for ``patience_s`` seconds.
    """

    def __init__(
        self, start: StartSandbox, *, starting: int = 4, warm: int = 0, queue: int = 1024, patience_s: float = 600.0
    ) -> None:
        if starting < 1 or warm < 0 or queue < 1:
            raise ValueError(f"starting={starting} and queue={queue} must be at least 1, and warm={warm} at least 0")
        self._start = start
        self._warm = warm
        self._most_starting = starting
        self._queue = queue
        self._patience_s = patience_s
        self._waiters: deque[_Waiter] = deque()
        self._ready: defaultdict[object, deque[Sandbox]] = defaultdict(deque)
        self._coming: defaultdict[object, int] = defaultdict(int)
        self._kept: dict[object, SandboxSpec] = {}
        """Specs of which boxes stand ready, the one that was asked for last at the end."""
        self._starts: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._refilling: asyncio.TimerHandle | None = None
        self._closed = False

    @contextlib.asynccontextmanager
    async def box(self, spec: SandboxSpec, *, who: str | None = None) -> AsyncIterator[Sandbox]:
        """A box for one use, closed at the end. Raises as ``take`` does."""
        box = await self.take(spec, who=who)
        try:
            yield box
        finally:
            await box.close()

    async def take(self, spec: SandboxSpec, *, who: str | None = None) -> Sandbox:
        """A box that is ready, else a new one; the caller closes it. ``who`` is what ``waiting`` shows.

        Raises: SandboxClosed where the pool was left, PoolBusy where too many wait or it took too long, and what the
        start raises.
        """
        self._require_open()
        if len(self._waiters) >= self._queue:
            raise PoolBusy(f"{len(self._waiters)} callers wait for a box already (queue={self._queue})")
        waiter = _Waiter(who or _current_name(), spec, _key(spec), time.monotonic(), _new_future())
        self._keep(waiter)
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._patience_s) as patience:
                return await self._served(waiter)
        except TimeoutError as error:
            if not patience.expired():
                raise
            others = sum(other is not waiter for other in self._waiters)
            raise PoolBusy(
                f"{waiter.who} got no box within {self._patience_s:g} s: {sum(self._coming.values())} are starting, "
                f"{others} others wait"
            ) from error
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def waiting(self) -> list[Waiting]:
        """Who waits for a box, the longest first."""
        now = time.monotonic()
        return [Waiting(waiter.who, waiter.spec, now - waiter.since) for waiter in self._waiters]

    def ready(self, spec: SandboxSpec) -> int:
        """How many boxes of this spec stand ready."""
        return len(self._ready[_key(spec)])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop what is starting and close what waits ready. Boxes that were taken belong to their takers."""
        self._closed = True
        if self._refilling is not None:
            self._refilling.cancel()
        for waiter in self._waiters:
            _fail(waiter, SandboxClosed("the pool of boxes is closed"))
        for task in self._starts:
            task.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        for key in list(self._ready):
            self._end_ready(key)
        results = await asyncio.gather(*self._ends, return_exceptions=True)
        errors = [result for result in results if isinstance(result, Exception)]
        if errors:
            raise ExceptionGroup("boxes of the pool were not closed", errors)

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxClosed("the pool of boxes is closed")

    # ---- one who waits

    async def _served(self, waiter: _Waiter) -> Sandbox:
        """The first living box that is offered; a dead one sends its taker back to the head of the queue."""
        while True:
            self._serve()
            offer = await self._offer_to(waiter)
            if await self._lives(offer):
                return offer.box
            self._require_open()
            waiter.offer = _new_future()
            self._waiters.appendleft(waiter)

    async def _offer_to(self, waiter: _Waiter) -> _Offer:
        try:
            return await waiter.offer
        except asyncio.CancelledError:
            if waiter.offer.done() and not waiter.offer.cancelled() and waiter.offer.exception() is None:
                self._place(waiter.key, waiter.offer.result().box)
            raise

    async def _lives(self, offer: _Offer) -> bool:
        try:
            if offer.waited:
                await offer.box.check_alive()
        except SandboxError as error:
            logger.warning("A box that waited ready has died: %s", error)
            await offer.box.close()
            return False
        except BaseException:
            await offer.box.close()
            raise
        return True

    # ---- boxes

    def _serve(self) -> None:
        """Give what is ready to those who wait, and start what they lack, as far as may start at once."""
        if self._closed:
            return
        for waiter in self._still_waiting():
            if self._ready[waiter.key]:
                self._give(waiter, _Offer(self._ready[waiter.key].popleft(), waited=True))
        self._start_all([(waiter.key, waiter.spec) for waiter in self._unserved()])
        if self._refilling is None and self._short():
            # A little later: whoever was just given a box runs its first command undisturbed.
            self._refilling = asyncio.get_running_loop().call_later(_REFILL_AFTER_S, self._refill)

    def _refill(self) -> None:
        self._refilling = None
        if not self._closed:
            self._start_all(self._short())

    def _start_all(self, wanted: list[tuple[object, SandboxSpec]]) -> None:
        for key, spec in wanted[: max(0, self._most_starting - sum(self._coming.values()))]:
            self._coming[key] += 1
            self._own(self._start_one(key, spec))

    def _unserved(self) -> list[_Waiter]:
        """Those for whom no box is on its way, in order."""
        under_way = dict(self._coming)
        unserved = []
        for waiter in self._still_waiting():
            if under_way.get(waiter.key, 0) > 0:
                under_way[waiter.key] -= 1
            else:
                unserved.append(waiter)
        return unserved

    def _short(self) -> list[tuple[object, SandboxSpec]]:
        """The specs of the boxes that should stand ready, and neither do nor are on their way; none while some wait."""
        waiting = Counter(waiter.key for waiter in self._waiters)
        short = []
        for key, spec in self._kept.items():
            missing = self._warm - len(self._ready[key]) - self._coming.get(key, 0) + waiting[key]
            short += [(key, spec)] * max(0, missing)
        return [] if self._unserved() else short

    def _keep(self, waiter: _Waiter) -> None:
        """Boxes of this spec stand ready from now on, and those of the one that was not asked for longest end."""
        self._kept.pop(waiter.key, None)
        self._kept[waiter.key] = waiter.spec
        while len(self._kept) > _SPECS_KEPT:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._end_ready(oldest)

    async def _start_one(self, key: object, spec: SandboxSpec) -> None:
        try:
            box = await self._start(spec)
            if self._first_waiting_for(key) is None:
                await self._warm_up(box)
        except Exception as error:  # noqa: BLE001 - whoever waits for the box raises it
            self._tell_failure(key, error)
        else:
            self._place(key, box)
        finally:
            self._coming[key] -= 1
            if not self._coming[key]:
                del self._coming[key]  # a run may ask for many specs, each once
        self._serve()

    async def _warm_up(self, box: Sandbox) -> None:
        """Run the shells once, so that they are in memory when the box is used."""
        try:
            await box.exec("sh -c true", timeout_s=_WARM_UP_S)
        except BaseException:
            self._end(box)
            raise

    def _place(self, key: object, box: Sandbox) -> None:
        """A new box goes to the first who waits for it, else it stands ready, else nobody needs it."""
        waiter = self._first_waiting_for(key)
        if waiter is not None:
            self._give(waiter, _Offer(box, waited=False))
        elif key in self._kept and len(self._ready[key]) < self._warm and not self._closed:
            self._ready[key].append(box)
        else:
            self._end(box)

    def _first_waiting_for(self, key: object) -> _Waiter | None:
        return next((waiter for waiter in self._still_waiting() if waiter.key == key), None)

    def _still_waiting(self) -> list[_Waiter]:
        """Those who wait, without those who were cancelled a moment ago and have not run since."""
        return [waiter for waiter in self._waiters if not waiter.offer.done()]

    def _give(self, waiter: _Waiter, offer: _Offer) -> None:
        self._waiters.remove(waiter)
        waiter.offer.set_result(offer)

    def _tell_failure(self, key: object, error: Exception) -> None:
        waiter = self._first_waiting_for(key)
        if waiter is None:
            # Not tried again until someone asks, who is told then.
            logger.warning("A box could not be started in advance: %s", error)
            self._kept.pop(key, None)
            self._end_ready(key)
        else:
            self._waiters.remove(waiter)
            _fail(waiter, error)

    def _end_ready(self, key: object) -> None:
        for box in self._ready.pop(key, ()):
            self._end(box)

    def _end(self, box: Sandbox) -> None:
        task = asyncio.create_task(box.close(), name=f"end {box.id}")
        self._ends.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ends.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("A box of the pool was not closed", exc_info=task.exception())

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="start a box")
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)


def _new_future() -> asyncio.Future[_Offer]:
    return asyncio.get_running_loop().create_future()


def _fail(waiter: _Waiter, error: Exception) -> None:
    if not waiter.offer.done():
        waiter.offer.set_exception(error)


def _current_name() -> str:
    task = asyncio.current_task()
    return task.get_name() if task is not None else "someone"


def _key(spec: SandboxSpec) -> object:
    """Equal for specs whose boxes are interchangeable."""
    values = [getattr(spec, field.name) for field in dataclasses.fields(spec)]
    return tuple(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values)
