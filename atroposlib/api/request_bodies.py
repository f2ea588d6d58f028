"""ASGI middleware: request bodies are read whole, bounded, and unpacked where they come gzipped.

A body over the limit, packed or unpacked, is answered 413 before it is held in memory; gzip that is none, or ends too
early, 400; an encoding other than gzip 415. Only so many large bodies are held at one time, others wait in their
connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from typing import Final

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.answers import refusal

_OFF_LOOP_BYTES: Final = 32 * 1024
"""Smaller packed bodies are unpacked on the event loop; a thread would cost more than it saves."""
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16
_SMALL_BYTES: Final = 1024 * 1024
_LARGE_AT_ONCE: Final = 16


class BodyTooLarge(Exception):
    """The body is over the limit."""


class _ClientGone(Exception):
    """The client closed the connection before it had sent the whole body."""


def gunzip(packed: bytes, limit: int) -> bytes:
    """Unpack gzip of one or several members.

    Raises: BodyTooLarge (more than ``limit`` bytes come out), zlib.error (not gzip, damaged, or cut short).
    """
    parts: list[bytes] = []
    size = 0
    while packed:
        member = zlib.decompressobj(_GZIP_WINDOW)
        part = member.decompress(packed, limit - size + 1)
        size += len(part)
        if size > limit:
            raise BodyTooLarge
        if not member.eof:
            raise zlib.error("incomplete gzip stream")
        parts.append(part)
        packed = member.unused_data
    return b"".join(parts)


class RequestBodies:
    """See the module. ``limit`` is in bytes, for one body, packed as well as unpacked."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        length = headers.get("content-length")
        if length is None and "transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("gzip", "x-gzip", "identity"):
            await refusal(415, f"Content-Encoding {encoding!r}: send gzip or none")(scope, receive, send)
            return
        small = length is not None and length.isdecimal() and int(length) <= _SMALL_BYTES
        async with contextlib.nullcontext() if small else self._large:
            await self._pass_on(scope, receive, send, packed="gzip" in encoding)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, packed: bool) -> None:
        try:
            body = await self._read(scope, receive)
            if packed:
                body = await _gunzip_aside(body, self._limit)
        except _ClientGone:
            return
        except BodyTooLarge:
            await refusal(413, f"the body is over the limit of {self._limit} bytes")(scope, receive, send)
            return
        except zlib.error as error:
            await refusal(400, f"Invalid gzip payload: {error}")(scope, receive, send)
            return
        await self._app(_as_plain(scope, len(body)), _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        announced = Headers(scope=scope).get("content-length", "0")
        size = int(announced) if announced.isdecimal() else 0
        chunks: list[bytes] = []
        more = True
        while more:
            if size > self._limit:
                raise BodyTooLarge
            message = await receive()
            if message["type"] != "http.request":
                raise _ClientGone
            chunks.append(message.get("body", b""))
            size = max(size, sum(map(len, chunks)))
            more = message.get("more_body", False)
        return b"".join(chunks)


async def _gunzip_aside(packed: bytes, limit: int) -> bytes:
    if len(packed) < _OFF_LOOP_BYTES:
        return gunzip(packed, limit)
    return await anyio.to_thread.run_sync(gunzip, packed, limit)


def _as_plain(scope: Scope, length: int) -> Scope:
    scope = {**scope, "headers": list(scope["headers"])}
    headers = MutableHeaders(scope=scope)
    del headers["content-encoding"]
    headers["content-length"] = str(length)
    return scope


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once; what comes after it (that the client went away) is the server's to tell."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay
