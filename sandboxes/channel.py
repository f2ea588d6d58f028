"""The client of the runner: many calls at once over one pair of byte streams.

One reader task, owned by the channel, hands each frame to the call of its id. Promises:

- when the stream ends, every pending call fails with ``SandboxClosed``, and so does every later one;
- a call that is cancelled kills its command in the box;
- a call that the box does not take, or not answer, well after its time limit fails with ``SandboxTimeout``;
- neither side holds more than a window of bytes that the other has not taken, besides the captured output;
- it serves the event loop that opened it, and says so to a call from another one; ``close`` may come from any.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import AsyncIterable, AsyncIterator, Coroutine
from dataclasses import replace
from typing import Any, Protocol, Self

from sandboxes.call import Call, Finished
from sandboxes.errors import SandboxClosed, SandboxStartError, SandboxTimeout
from sandboxes.forks import keep_from_children
from sandboxes.frames import (
    CHUNK,
    Command,
    Frame,
    FrameBuffer,
    Hello,
    Kind,
    ProtocolError,
    Run,
    decode_hello,
    encode_cores,
    encode_u32,
)

logger = logging.getLogger(__name__)

ANSWER_GRACE_S = 20.0
"""How long after its time limit a call waits for the runner, which itself gives up 15 s after a kill."""

_STREAM_WINDOW = 1 << 20
_NO_CALL = 0


class ByteReader(Protocol):
    """What ``asyncio.StreamReader`` offers: some bytes, ``b""`` at the end."""

    async def read(self, n: int, /) -> bytes:
        """Up to ``n`` bytes."""
        ...


class ByteWriter(Protocol):
    """What ``asyncio.StreamWriter`` offers."""

    def write(self, data: bytes, /) -> None:
        """Queue bytes; never waits."""
        ...

    async def drain(self) -> None:
        """Wait until the queue is short."""
        ...

    def close(self) -> None:
        """End the stream."""
        ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Its ``socket``, as ``asyncio.StreamWriter`` has it."""
        ...


class Channel:
    """A runner at the other end of two byte streams. Made by ``Channel.open``."""

    def __init__(self, reader: ByteReader, writer: ByteWriter) -> None:
        self.hello: Hello | None = None
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._ids = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._greeted = asyncio.Event()
        self._ending: str | None = None
        self._read_task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, reader: ByteReader, writer: ByteWriter, *, timeout_s: float = 30.0) -> Self:
        """Start reading and wait for the runner's greeting.

        Raises: SandboxStartError where it does not come. The streams are closed then.
        """
        channel = cls(reader, writer)
        keep_from_children(channel)
        channel._read_task = asyncio.create_task(channel._read(), name="sandbox channel")
        try:
            async with asyncio.timeout(timeout_s):
                await channel._greeted.wait()
        except TimeoutError:
            await channel.close()
            raise SandboxStartError(f"the runner of the box did not answer within {timeout_s:g} s") from None
        except BaseException:
            await channel.close()
            raise
        if channel.hello is None:
            await channel.close()
            raise SandboxStartError(f"the runner of the box did not start: {channel._ending}")
        return channel

    @property
    def closed(self) -> bool:
        """Whether the box is gone or was closed."""
        return self._ending is not None

    def descriptor(self) -> int:
        """Of the connection to the box; -1 where it is closed, or has none."""
        connection = self._writer.get_extra_info("socket")
        return -1 if connection is None else int(connection.fileno())

    async def begin(self, command: Command) -> Call:
        """Send a command. Whoever calls this sees to its end: ``wait``, or ``kill``.

        Raises: SandboxClosed, ValueError.
        """
        payload = command.encode()
        call = self._new_call()
        try:
            await self.send(Frame(Kind.RUN, call.id, payload))
        except asyncio.CancelledError:
            call.kill()
            raise
        return call

    async def run(self, command: Command, *, stdin: bytes = b"") -> Finished:
        """Run a command to its end; cancelled, it is killed.

        Raises: SandboxClosed, SandboxTimeout, ValueError.
        """
        if not stdin:
            async with self._running(command) as call:
                return await call.wait()

        async def once() -> AsyncIterator[bytes]:
            yield stdin

        return await self.run_fed(command, once())

    async def run_fed(self, command: Command, source: AsyncIterable[bytes]) -> Finished:
        """Run a command whose standard input is ``source``. An error of ``source`` kills the command and is raised.

        Raises: SandboxClosed, SandboxTimeout, ValueError.
        """
        async with self._running(replace(command, flags=command.flags | Run.INPUT)) as call:
            feeding = asyncio.create_task(_feed(call, source), name="sandbox input")
            waiting = asyncio.create_task(call.wait(), name="sandbox command")
            try:
                await asyncio.wait({feeding, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if feeding.done():
                    feeding.result()
                return await waiting
            finally:
                await _cancel(feeding, waiting)

    @contextlib.asynccontextmanager
    async def streaming(self, command: Command) -> AsyncIterator[Call]:
        """A command whose output is read by ``Call.chunks`` as it comes; killed where the block is left early.

        Raises: SandboxClosed, SandboxTimeout, ValueError.
        """
        async with self._running(replace(command, flags=command.flags | Run.STREAM)) as call:
            await self.send(Frame(Kind.CREDIT, call.id, encode_u32(_STREAM_WINDOW)))
            yield call

    async def peek(self, call: Call) -> Finished:
        """What a running command has written so far, or its end. Raises: SandboxClosed, SandboxTimeout."""
        if call.over:
            return await call.wait()
        answer = await self._ask(Kind.PEEK, encode_u32(call.id))
        # It may have ended in between: then its own DONE came before this answer.
        return await call.wait() if answer.done.unknown else answer

    async def end(self, call: Call) -> Finished:
        """Kill a command and wait for its end. Raises: SandboxClosed, SandboxTimeout."""
        call.kill()
        return await _soon(call.wait())

    async def ping(self, timeout_s: float) -> None:
        """A round trip to the runner, which asks nothing of the box. Raises: SandboxClosed, SandboxTimeout."""
        await self._ask(Kind.PEEK, encode_u32(_NO_CALL), timeout_s=timeout_s)

    def keep_to_cores(self, count: int, first: int) -> None:
        """Let the box run on so many of the machine's cores, from the ``first`` on in a ring. Raises: SandboxClosed."""
        self.send_soon(Frame(Kind.CORES, _NO_CALL, encode_cores(count, first)))

    def filter_calls(self, program: bytes) -> None:
        """Hold the box to a seccomp program from now on, where its kernel takes it. Raises: SandboxClosed."""
        self.send_soon(Frame(Kind.FILTER, _NO_CALL, program))

    async def kill_all(self) -> int:
        """Kill all processes of the box but the runner; returns how many. Raises: SandboxClosed, SandboxTimeout."""
        return (await self._ask(Kind.KILL_ALL)).done.status

    async def send(self, frame: Frame) -> None:
        """Write a frame, waiting while the box does not read. Raises: SandboxClosed."""
        self._require_own_loop()
        self.send_soon(frame)
        async with self._sending:
            try:
                await self._writer.drain()
            except (ConnectionError, OSError) as error:
                raise self._end(f"writing to it failed: {error}") from error

    def send_soon(self, frame: Frame) -> None:
        """Write a frame without waiting. Raises: SandboxClosed."""
        if self._ending is not None:
            raise self._end(self._ending)
        self._writer.write(frame.encode())

    async def close(self) -> None:
        """End the streams; pending calls fail with ``SandboxClosed``. May be called again."""
        self._end("it was closed")
        if asyncio.get_running_loop() is not self._loop:
            self._cut()
            return
        self._writer.close()
        if self._read_task is not None:
            await _cancel(self._read_task)

    def _cut(self) -> None:
        """End the streams where the loop that serves them runs no more."""
        with contextlib.suppress(OSError):  # the box has ended them already
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _require_own_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "a box is used from the event loop that opened it: await this there, or hand it over with "
                "asyncio.run_coroutine_threadsafe"
            )

    @contextlib.asynccontextmanager
    async def _running(self, command: Command) -> AsyncIterator[Call]:
        call: Call | None = None
        limit = None if command.time_limit_s is None else command.time_limit_s + ANSWER_GRACE_S
        try:
            async with asyncio.timeout(limit) as deadline:
                call = await self.begin(command)
                yield call
        except TimeoutError:
            if not deadline.expired():
                raise
            raise SandboxTimeout(f"the box did not answer within {limit:g} s") from None
        finally:
            if call is not None and not self.closed:
                call.kill()

    async def _ask(self, kind: Kind, payload: bytes = b"", *, timeout_s: float | None = None) -> Finished:
        call = self._new_call()
        return await _soon(self._answer(Frame(kind, call.id, payload), call), timeout_s)

    async def _answer(self, question: Frame, call: Call) -> Finished:
        await self.send(question)
        return await call.wait()

    def _new_call(self) -> Call:
        if self._ending is not None:
            raise self._end(self._ending)
        self._require_own_loop()
        call = Call(self, next(self._ids))
        self._calls[call.id] = call
        return call

    async def _read(self) -> None:
        frames = FrameBuffer()
        reason = "it ended"
        try:
            while data := await self._reader.read(4 * CHUNK):
                for frame in frames.feed(data):
                    self._take(frame)
        except (ConnectionError, OSError, ProtocolError) as error:
            reason = f"reading from it failed: {error}"
        except asyncio.CancelledError:
            reason = "the event loop that opened it has ended"
            raise
        finally:
            self._end(reason)

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            self.hello = decode_hello(frame.payload)
            self._greeted.set()
            return
        call = self._calls.get(frame.id)
        if call is None:
            raise ProtocolError(f"an answer to the unknown call {frame.id}")
        call.take(frame)
        if call.over:
            del self._calls[frame.id]

    def _end(self, reason: str) -> SandboxClosed:
        if self._ending is None:
            self._ending = reason
        closed = SandboxClosed(f"the box is closed: {self._ending}")
        for call in self._calls.values():
            call.fail(closed)
        self._calls.clear()
        self._greeted.set()
        return closed


async def _feed(call: Call, source: AsyncIterable[bytes]) -> None:
    async for data in source:
        await call.feed(data)
    await call.feed_end()


async def _soon(answer: Coroutine[Any, Any, Finished], timeout_s: float | None = None) -> Finished:
    timeout_s = ANSWER_GRACE_S if timeout_s is None else timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        raise SandboxTimeout(f"the box did not answer within {timeout_s:g} s") from None


async def _cancel(*tasks: asyncio.Task[object] | asyncio.Task[None] | asyncio.Task[Finished]) -> None:
    """Cancel own tasks and wait until they are gone."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
