"""How many requests one engine works on at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from types import TracebackType


class RequestSlots:
    """A bound on the requests in flight, first come, first served.

    A request that has to wait is woken by the one that ends; nothing polls. The bound may be changed at any time: a
    smaller one takes effect as requests end. Use as ``async with slots:``.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = max(1, capacity)
        self.limit = self.capacity
        self.in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def load(self) -> float:
        """Requests running and waiting, as a share of the limit (above 1: some wait)."""
        return (self.in_use + len(self._waiting)) / self.limit

    def set_weight(self, weight: float) -> None:
        """Limit the requests to this share of the capacity; at least one stays."""
        self.limit = max(1, int(self.capacity * weight))
        self._wake()

    async def __aenter__(self) -> None:
        if self.in_use < self.limit and not self._waiting:
            self.in_use += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()
            else:
                with contextlib.suppress(ValueError):  # the one that ended may have dropped it already
                    self._waiting.remove(turn)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        self.in_use -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.in_use < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_use += 1
                turn.set_result(None)
