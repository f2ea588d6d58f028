"""The end of a relay that is outside of the box."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from sandboxes.base import Pipe, Sandbox
from sandboxes.errors import SandboxError, SandboxStartError
from sandboxes.relay.binary import relay_path

logger = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Opens the place outside where a connection of the box ends."""

CHUNK = 64 << 10
WINDOW = 256 << 10
MOST_CONNECTIONS = 128
FRAMES_AHEAD = 8
LAST_WORDS = 2_000
START_TIMEOUT_S = 20.0
_HEADER = struct.Struct("<IIB")
_U32 = struct.Struct("<I")


class _Kind(IntEnum):
    PORT = 1
    OPEN = 2
    DATA = 3
    END = 4
    CLOSE = 5
    CREDIT = 6


@contextlib.asynccontextmanager
async def open_relay(box: Sandbox, connect: Connect) -> AsyncIterator[int]:
    """Yield a port of the box's loopback; each connection to it inside the box is one that ``connect`` opens.

    All of them end with the block. The box's user may end the relay; that cuts its own connections and no others.

    Raises: SandboxUnavailable where the backend has no ``pipe`` or the box's architecture no relay; SandboxStartError
    where the relay does not start in the box; SandboxClosed.
    """
    program = f"{box.spec.workdir.rstrip('/')}/.relay-{secrets.token_hex(8)}"
    speaking = box.pipe((program,), cwd="/", error_limit=LAST_WORDS)  # refused here, before anything is in the box
    await _put_into(box, program)
    async with speaking as pipe:
        relay = _Relay(pipe, connect)
        serving = asyncio.create_task(relay.serve(), name=f"relay of {box.id}")
        try:
            yield await relay.port(serving)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            await relay.close()


async def _put_into(box: Sandbox, target: str) -> None:
    told = await box.exec(["uname", "-m"], timeout_s=30)
    program = relay_path(told.output.strip())
    await box.write(target, await asyncio.to_thread(program.read_bytes), mode=0o700)


@dataclass(eq=False)
class _Connection:
    """One connection of the box. ``credit``: bytes that may still be sent into the box."""

    number: int
    incoming: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    """What the program sent; None at its end."""
    waiting: int = 0
    """How many bytes ``incoming`` holds: at most ``WINDOW``."""
    credit: int = WINDOW
    credited: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    """Whether the program sends no more."""
    gone: bool = False
    """Whether the relay knows this connection no more."""
    task: asyncio.Task[None] | None = None


class _Broken(Exception):
    """The other side does not keep to what was agreed."""


class _Relay:
    """Takes the relay's frames apart and carries each connection in a task of its own. One task writes, so that no
    frame is cut by another, nor by the end of the connection that it belongs to.

    What speaks from the box need not be the relay: whoever runs as its user may write in its name. So nothing is
    believed that would cost memory, and a frame that breaks the rules ends the relay.
    """

    def __init__(self, pipe: Pipe, connect: Connect) -> None:
        self._pipe = pipe
        self._connect = connect
        self._port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._connections: dict[int, _Connection] = {}
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue(FRAMES_AHEAD)

    async def port(self, serving: asyncio.Task[None]) -> int:
        """The port in the box, once it is known. Raises: SandboxStartError."""
        async with asyncio.timeout(START_TIMEOUT_S) as deadline:
            with contextlib.suppress(TimeoutError):
                waiting: set[asyncio.Future[Any]] = {serving, self._port}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._port.done():
            return self._port.result()
        told = "it said nothing in time" if deadline.expired() else await self._last_words()
        raise SandboxStartError(f"the relay did not start in the box: {told}")

    async def serve(self) -> None:
        """Read frames until the relay ends, or breaks the rules."""
        writing = asyncio.create_task(self._write(), name="what a relay is told")
        try:
            await self._serve()
        except _Broken as error:
            logger.warning("a relay is ended, since %s", error)
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            await self.close()

    async def _write(self) -> None:
        while True:
            await self._pipe.feed(await self._outgoing.get())

    async def _serve(self) -> None:
        waiting = bytearray()
        async for chunk in self._pipe.chunks():
            waiting += chunk
            while len(waiting) >= _HEADER.size:
                number, length, kind = _HEADER.unpack_from(waiting)
                if length > CHUNK:
                    raise _Broken(f"it sent a frame of {length} bytes")
                if len(waiting) < _HEADER.size + length:
                    break
                payload = bytes(waiting[_HEADER.size : _HEADER.size + length])
                del waiting[: _HEADER.size + length]
                self._take(number, kind, payload)

    async def close(self) -> None:
        """End all connections."""
        tasks = []
        for connection in self._connections.values():
            connection.gone = True
            if connection.task is not None:
                connection.task.cancel()
                tasks.append(connection.task)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connections.clear()

    async def _last_words(self) -> str:
        try:
            ended = await self._pipe.wait()
        except SandboxError as error:
            return str(error)
        return ended.output.strip() or f"it ended with {ended.exit_code}"

    def _take(self, number: int, kind: int, payload: bytes) -> None:
        known = self._connections.get(number)
        if kind == _Kind.PORT and not self._port.done():
            self._port.set_result(_number(payload))
        elif kind == _Kind.OPEN and known is None:
            self._begin(number)
        elif known is not None:
            self._take_for(known, kind, payload)

    def _begin(self, number: int) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            raise _Broken(f"it opened more than {MOST_CONNECTIONS} connections at once")
        connection = self._connections[number] = _Connection(number)
        connection.task = asyncio.create_task(self._carry(connection), name=f"relayed connection {number}")

    def _take_for(self, connection: _Connection, kind: int, payload: bytes) -> None:
        if kind in (_Kind.DATA, _Kind.END) and connection.ended:
            raise _Broken("it went on after the end of a connection")
        if kind == _Kind.DATA:
            if not payload:
                raise _Broken("it sent a frame of nothing")
            connection.waiting += len(payload)
            if connection.waiting > WINDOW:
                raise _Broken(f"it sent more than {WINDOW} bytes ahead")
            connection.incoming.put_nowait(payload)
        elif kind == _Kind.END:
            connection.ended = True
            connection.incoming.put_nowait(None)
        elif kind == _Kind.CREDIT:
            connection.credit = min(WINDOW, connection.credit + _number(payload))
            connection.credited.set()
        elif kind == _Kind.CLOSE and connection.task is not None:
            connection.gone = True
            del self._connections[connection.number]
            connection.task.cancel()

    async def _carry(self, connection: _Connection) -> None:
        """One connection, from its opening to its end on both sides."""
        try:
            reader, writer = await self._connect()
        except OSError as error:
            logger.warning("what a relay leads to cannot be reached: %s", error)
            await self._forget(connection)
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry_out(connection, writer))
                both.create_task(self._carry_in(connection, reader))
        except* ConnectionError as broken:
            logger.debug("a relayed connection broke off: %s", broken.exceptions[0])
        finally:
            writer.close()
            await self._forget(connection)

    async def _carry_out(self, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        while (data := await connection.incoming.get()) is not None:
            writer.write(data)
            await writer.drain()
            connection.waiting -= len(data)
            await self._send(connection.number, _Kind.CREDIT, _U32.pack(len(data)))
        if writer.can_write_eof():
            writer.write_eof()

    async def _carry_in(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        while True:
            while not connection.credit:
                connection.credited.clear()
                await connection.credited.wait()
            data = await reader.read(min(CHUNK, connection.credit))
            if not data:
                await self._send(connection.number, _Kind.END)
                connection.incoming.put_nowait(None)  # what the program may still say is heard by nobody
                return
            connection.credit -= len(data)
            await self._send(connection.number, _Kind.DATA, data)

    async def _forget(self, connection: _Connection) -> None:
        """Counted until the relay can know of it, so that one which reads nothing cannot open more and more."""
        if not connection.gone:
            await self._send(connection.number, _Kind.CLOSE)
        if self._connections.get(connection.number) is connection:
            del self._connections[connection.number]

    async def _send(self, number: int, kind: _Kind, payload: bytes = b"") -> None:
        await self._outgoing.put(_HEADER.pack(number, len(payload), kind) + payload)


def _number(payload: bytes) -> int:
    if len(payload) != _U32.size:
        raise _Broken(f"it sent {len(payload)} bytes for a number")
    number: int = _U32.unpack(payload)[0]
    return number
