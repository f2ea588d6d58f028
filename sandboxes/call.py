"""One request to the runner: what is sent and what comes back for its id.

A call holds no more input than the runner gave it credit for, and no more output than its reader asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandboxes.frames import CHUNK, INPUT_WINDOW, Done, Frame, Kind, decode_done, decode_u32, encode_u32

if TYPE_CHECKING:
    from sandboxes.channel import Channel


@dataclass(frozen=True)
class Finished:
    """What a command left: head and tail of its streams, and how it ended."""

    out: bytes
    err: bytes
    done: Done


class Call:
    """One request under way. Made by ``Channel.begin``."""

    def __init__(self, channel: Channel, call_id: int) -> None:
        self.id = call_id
        self.finished: Finished | None = None
        self._channel = channel
        self._failure: Exception | None = None
        self._out = bytearray()
        self._err = bytearray()
        self._credit = INPUT_WINDOW
        self._changed = asyncio.Event()

    @property
    def over(self) -> bool:
        """Whether it finished or failed."""
        return self.finished is not None or self._failure is not None

    async def wait(self) -> Finished:
        """Wait for the end. Raises: SandboxClosed."""
        while not self.over:
            await self._change()
        return self._result()

    async def feed(self, data: bytes) -> None:
        """Send to its standard input; waits while the command does not read. After its end nothing is sent."""
        view = memoryview(data)
        while view and not self.over:
            if not self._credit:
                await self._change()
                continue
            piece = view[: min(self._credit, CHUNK)]
            self._credit -= len(piece)
            await self._channel.send(Frame(Kind.INPUT, self.id, bytes(piece)))
            view = view[len(piece) :]

    async def feed_end(self) -> None:
        """End its standard input."""
        if not self.over:
            await self._channel.send(Frame(Kind.INPUT_END, self.id))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The output of a streamed command as it comes. Raises: SandboxClosed."""
        while self._out or not self.over:
            if not self._out:
                await self._change()
                continue
            chunk = bytes(self._out)
            self._out.clear()
            yield chunk
            if not self.over:
                await self._channel.send(Frame(Kind.CREDIT, self.id, encode_u32(len(chunk))))
        self._result()

    def kill(self) -> None:
        """Kill the command with all that it started; its end still comes. Never waits."""
        if not self.over:
            self._channel.send_soon(Frame(Kind.KILL, self.id))

    def take(self, frame: Frame) -> None:
        """A frame of this call arrived. Raises: ProtocolError."""
        if frame.kind is Kind.OUT:
            self._out += frame.payload
        elif frame.kind is Kind.ERR:
            self._err += frame.payload
        elif frame.kind is Kind.CREDIT:
            self._credit += decode_u32(frame.payload)
        elif frame.kind is Kind.DONE:
            self.finished = Finished(bytes(self._out), bytes(self._err), decode_done(frame.payload))
        self._changed.set()

    def fail(self, failure: Exception) -> None:
        """No more will come."""
        if not self.over:
            self._failure = failure
            self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _result(self) -> Finished:
        if self._failure is not None:
            raise self._failure
        assert self.finished is not None
        return self.finished
