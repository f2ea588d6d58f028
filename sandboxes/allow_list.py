"""The only hosts that a box may reach, for a box that has no network.

A port on the box's loopback leads, over the channel of its runner, to a proxy in this process, which opens connections
to the listed hosts and to nothing else. What can be reached is decided outside of the box, by the name that the box
asks for; it resolves no names and has no route. Programs find the port by the usual variables (``HTTPS_PROXY``, …).
What else the server of a listed host serves, under other names, is within reach of a box that asks for it there.

Each entry is ``host`` (ports 80 and 443) or ``host:port``; ``*.host`` is every name below it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from sandboxes.errors import SandboxStartError
from sandboxes.relay import open_relay
from sandboxes.runner_sandbox import RunnerSandbox

logger = logging.getLogger(__name__)

_PORTS = (80, 443)
_HEAD_LIMIT = 64 << 10
_HEAD_S = 30.0
_CONNECT_S = 30.0
_MOST_CONNECTIONS = 256
_LOOKUPS = 2
"""Of names at once, for each box: they take threads that all boxes share."""
_CHUNK = 64 << 10
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")  # resolvers end a name at a NUL, and read others in their own way
_OF_THE_PROXY = ("connection", "host", "keep-alive")


@dataclass(frozen=True)
class Host:
    """An entry of the list."""

    name: str
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Host:
        """Raises: ValueError."""
        parts = urlsplit(f"//{text}")
        name = parts.hostname or ""
        if name in ("", "*.") or "*" in name.removeprefix("*.") or parts.path or parts.username:
            raise ValueError(f"{text!r} is no host: write a name, `*.name`, or one of them with `:port`")
        return cls(name, (parts.port,) if parts.port else _PORTS)

    def allows(self, name: str, port: int) -> bool:
        """Whether a connection to ``name`` is one to this entry."""
        below = self.name.startswith("*.") and name.endswith(self.name[1:]) and _NAME.fullmatch(name) is not None
        return port in self.ports and (below or name == self.name)


@dataclass(frozen=True)
class _Request:
    """What a client asks of the proxy; ``head`` is what the host is sent first, nothing for a tunnel."""

    name: str
    port: int
    head: bytes


class HostProxy:
    """An HTTP proxy whose connections come from ``connect`` and lead to ``hosts`` alone."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = [Host.parse(host) for host in hosts]
        self._tasks: set[asyncio.Task[None]] = set()
        self._lookups = asyncio.Semaphore(_LOOKUPS)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to this proxy; no one else can make one. Raises: ConnectionRefusedError where there are many."""
        if len(self._tasks) >= _MOST_CONNECTIONS:
            raise ConnectionRefusedError(f"{_MOST_CONNECTIONS} connections of the box are open already")
        theirs, ours = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours, limit=_HEAD_LIMIT)
        task = asyncio.create_task(self._serve(reader, writer), name="proxied connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.open_connection(sock=theirs)

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._carry(_parse(head), reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError) as error:
            logger.debug("a connection of a box broke off: %s", error)
        except ValueError as error:
            writer.write(_answer(400, str(error)))
        finally:
            writer.close()

    async def _carry(self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not any(host.allows(request.name, request.port) for host in self._hosts):
            logger.info("a box was refused a connection to %s:%d", request.name, request.port)
            writer.write(_answer(403, f"{request.name}:{request.port} is not among the hosts that this box may reach"))
            return
        try:
            async with asyncio.timeout(_CONNECT_S):
                from_host, to_host = await self._open(request.name, request.port)
        except (OSError, TimeoutError) as error:
            writer.write(_answer(502, f"{request.name}:{request.port} cannot be reached: {error}"))
            return
        try:
            if request.head:
                to_host.write(request.head)
            else:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, to_host))
                both.create_task(_copy(from_host, writer))
        except* OSError as broken:
            logger.debug("a connection of a box broke off: %s", broken.exceptions[0])
        finally:
            to_host.close()

    async def _open(self, name: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with self._lookups:
            places = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        problem = OSError("it has no address")
        for *_, address in places:
            try:
                return await asyncio.open_connection(str(address[0]), port)
            except OSError as error:
                problem = error
        raise problem


class OpenHosts:
    """The way out of one box, held open by a task of its own. Made by ``open``."""

    def __init__(self, box: RunnerSandbox, hosts: Sequence[str]) -> None:
        self._proxy = HostProxy(hosts)
        self._port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._hold(box), name=f"hosts of {box.id}")

    @classmethod
    async def open(cls, box: RunnerSandbox, hosts: Sequence[str]) -> Self:
        """Raises: ValueError for what is no host, and as ``open_relay`` does."""
        way = cls(box, hosts)
        try:
            either: set[asyncio.Future[Any]] = {way._task, way._port}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not way._port.done():
                way._task.result()
        except BaseException:
            await way.close()
            raise
        return way

    @property
    def environment(self) -> Mapping[str, str]:
        """What tells programs of the box where to ask."""
        url = f"http://127.0.0.1:{self._port.result()}"
        names = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), url) | {"NO_PROXY": "localhost,127.0.0.1,::1"}
        return names | {name.lower(): value for name, value in names.items()}

    async def close(self) -> None:
        """End it. Raises nothing of the box, which may be gone."""
        self._closing.set()
        for result in await asyncio.gather(self._task, return_exceptions=True):
            if isinstance(result, Exception):
                logger.debug("the way out of a box ended by: %s", result)

    async def _hold(self, box: RunnerSandbox) -> None:
        try:
            async with open_relay(box, self._proxy.connect) as port:
                self._port.set_result(port)
                await self._closing.wait()
        finally:
            await self._proxy.close()


async def open_hosts(box: RunnerSandbox) -> None:
    """Give a box whose spec lists hosts its way to them; nothing where the spec lists none.

    Raises: SandboxStartError for what is no host, and as ``open_relay`` does.
    """
    if isinstance(box.spec.network, str):
        return
    try:
        way = await OpenHosts.open(box, box.spec.network)
    except ValueError as error:
        raise SandboxStartError(f"the network of a box: {error}") from error
    box.accompany(way.close, way.environment)


def _parse(head: bytes) -> _Request:
    """Raises: ValueError."""
    first, *fields = head.decode("latin-1").split("\r\n")
    try:
        method, target, version = first.split(" ")
    except ValueError:
        raise ValueError("this is a proxy of HTTP: send a request with an absolute URL, or CONNECT") from None
    if method == "CONNECT":
        parts = urlsplit(f"//{target}")
        return _Request(parts.hostname or "", parts.port or 443, b"")
    parts = urlsplit(target)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"cannot go to {target}: a proxy is asked for http://…, or to CONNECT")
    path = parts._replace(scheme="", netloc="").geturl() or "/"
    kept = [field for field in fields if field and not _is_of_the_proxy(field)]
    lines = [
        f"{method} {path} {version}",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Connection: close",
        *kept,
        "",
        "",
    ]
    return _Request(parts.hostname, parts.port or 80, "\r\n".join(lines).encode("latin-1"))


def _is_of_the_proxy(field: str) -> bool:
    name = field.partition(":")[0].strip().lower()
    return name in _OF_THE_PROXY or name.startswith("proxy-")


def _answer(status: int, text: str) -> bytes:
    body = f"{text}\n".encode()
    return b"HTTP/1.1 %d Refused\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()
