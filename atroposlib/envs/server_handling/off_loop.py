"""Work on texts, in a thread where it would hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LARGE_TEXT = 8_000
"""Characters from which on encoding, decoding and rendering leave the event loop.

To render and encode so many takes about two milliseconds; a thread costs half a millisecond of its own.
"""


CHARS_PER_ID = 4
"""About as many characters are in a token."""


async def off_loop(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """Run in a thread what is large, at once what is small."""
    if size < LARGE_TEXT:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)
