"""Work on large bodies, beside the event loop.

Few threads: this work holds the interpreter's lock for most of its time, so more of them would only take turns away
from the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread

T = TypeVar("T")


class Aside:
    """Runs functions in at most ``threads`` threads at a time."""

    def __init__(self, threads: int = 2) -> None:
        self._limiter = anyio.CapacityLimiter(threads)

    async def run(self, work: Callable[[bytes], T], body: bytes, from_bytes: int) -> T:
        """Return ``work(body)``, computed in a thread where the body has so many bytes.

        Smaller bodies are worked on at once: a thread would cost more than it saves.
        """
        if len(body) < from_bytes:
            return work(body)
        return await anyio.to_thread.run_sync(work, body, limiter=self._limiter)
