"""The standard streams of a container as an asyncio reader and writer.

Docker hands them over by upgrading an HTTP connection: what is written to it is the container's standard input, and
its output comes back in frames of ``u8 stream, 3 bytes of nothing, u32 length`` (big-endian) and the bytes.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandboxes import docker_daemon
from sandboxes.errors import SandboxStartError, SandboxUnavailable

if TYPE_CHECKING:
    from docker import DockerClient

_STDERR = 2
_FRAME_HEADER = struct.Struct(">BxxxI")
_READ_AHEAD = 1 << 20
_ERRORS_KEPT = 4096
_ATTACH_TIMEOUT_S = 30.0


class ContainerStream:
    """Standard input and output of a container, as the two ends that a ``Channel`` takes.

    It reads only when it is asked to, so a slow reader slows the container down and nothing piles up here. Where it
    breaks, ``ConnectionError`` says why the container ended, which ``why_ended`` finds out.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, why_ended: Callable[[], Awaitable[str]]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._why_ended = why_ended
        self._left_in_frame = 0
        self._errors = bytearray()

    async def read(self, size: int, /) -> bytes:
        """At least one byte of output and at most ``size``.

        Raises: ConnectionError at the end, naming its reason.
        """
        try:
            while not self._left_in_frame:
                await self._begin_frame()
            data = await self._reader.read(min(size, self._left_in_frame))
        except (asyncio.IncompleteReadError, OSError) as error:
            raise await self._ended() from error
        if not data:
            raise await self._ended()
        self._left_in_frame -= len(data)
        return data

    def write(self, data: bytes, /) -> None:
        """Queue bytes for the container's standard input."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Wait until the queue is short. Raises: ConnectionError, naming why the container ended."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise await self._ended() from error

    def close(self) -> None:
        """End the container's standard input, at which its runner kills what runs and ends."""
        self._writer.close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The ``socket`` of the connection, and what else ``asyncio.StreamWriter`` tells."""
        return self._writer.get_extra_info(name, default)

    async def _begin_frame(self) -> None:
        stream, length = _FRAME_HEADER.unpack(await self._reader.readexactly(_FRAME_HEADER.size))
        if stream == _STDERR:
            self._errors += await self._reader.readexactly(length)
            del self._errors[:-_ERRORS_KEPT]
        else:
            self._left_in_frame = length

    async def _ended(self) -> ConnectionError:
        last_words = self._errors.decode(errors="replace").strip()
        reason = await self._why_ended()
        return ConnectionError(f"{reason}; its last words: {last_words}" if last_words else reason)


async def attach(client: DockerClient, container_id: str, why_ended: Callable[[], Awaitable[str]]) -> ContainerStream:
    """Attach to a created container, before it starts, so that not a byte of it is missed.

    Raises: SandboxStartError, SandboxUnavailable.
    """
    try:
        async with asyncio.timeout(_ATTACH_TIMEOUT_S):
            reader, writer = await _open_connection()
            try:
                await _upgrade(reader, writer, f"/v{client.api.api_version}/containers/{container_id}/attach")
            except BaseException:
                writer.close()
                raise
    except TimeoutError as error:
        raise SandboxStartError(f"the Docker daemon did not attach within {_ATTACH_TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise SandboxStartError(f"the Docker daemon broke the attached connection off: {error}") from error
    return ContainerStream(reader, writer, why_ended)


async def _upgrade(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> None:
    writer.write(
        f"POST {path}?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
        "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n".encode()
    )
    await writer.drain()
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise SandboxStartError("the Docker daemon closed the connection instead of attaching") from error
    status = int(head.split(b" ", 2)[1])
    if status not in (101, 200):
        raise SandboxStartError(f"the Docker daemon did not attach: {_message(await reader.read(_ERRORS_KEPT))}")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["message"])
    except (ValueError, KeyError):
        return body.decode(errors="replace")


async def _open_connection() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(docker_daemon.host())
    if address.scheme == "unix":
        return await asyncio.open_unix_connection(address.path, limit=_READ_AHEAD)
    if address.scheme in ("tcp", "http", "https"):
        context = _tls_context()
        port = address.port or (2376 if context else 2375)
        return await asyncio.open_connection(address.hostname, port, ssl=context, limit=_READ_AHEAD)
    raise SandboxUnavailable(
        f"boxes cannot be reached over {docker_daemon.host()}: forward the daemon's socket to this machine "
        "and set DOCKER_HOST=unix:///path/to/socket"
    )


def _tls_context() -> ssl.SSLContext | None:
    """What the environment says of TLS (DOCKER_TLS_VERIFY, DOCKER_CERT_PATH), as the Docker SDK reads it."""
    from docker.utils import kwargs_from_env

    tls = kwargs_from_env().get("tls")
    if not tls:
        return None
    context = ssl.create_default_context(cafile=tls.ca_cert)
    if tls.cert:
        context.load_cert_chain(*tls.cert)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
