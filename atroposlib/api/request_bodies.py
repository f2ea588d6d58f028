"""ASGI middleware: request bodies are read whole, bounded, and unpacked where they come gzipped.

A body over the limit, packed or unpacked, is answered 413 before it is held in memory; gzip that is none, or ends too
early, 400; an encoding other than gzip 415. Only so many large bodies are held at one time, others wait in their
connections.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atroposlib.api.answers import refusal
from atroposlib.api.aside import Aside
from atroposlib.gzip_codec import BadGzip, GzipTooLarge, gunzip

_ASIDE_FROM_BYTES: Final = 32 * 1024  # which may be a thousand times as much, unpacked
_SMALL_BYTES: Final = 1024 * 1024
_LARGE_AT_ONCE: Final = 16


class _TooLarge(Exception):
    """The body is over the limit as it comes."""


class _ClientGone(Exception):
    """The client closed the connection before it had sent the whole body."""


class RequestBodies:
    """See the module. ``limit`` is in bytes, for one body, packed as well as unpacked."""

    def __init__(self, app: ASGIApp, limit: int, aside: Aside) -> None:
        self._app = app
        self._limit = limit
        self._aside = aside
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
                body = await self._aside.run(partial(gunzip, limit=self._limit), body, _ASIDE_FROM_BYTES)
        except _ClientGone:
            return
        except (_TooLarge, GzipTooLarge):
            await refusal(413, f"the body is over the limit of {self._limit} bytes")(scope, receive, send)
            return
        except BadGzip as error:
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
                raise _TooLarge
            message = await receive()
            if message["type"] != "http.request":
                raise _ClientGone
            chunks.append(message.get("body", b""))
            size = max(size, sum(map(len, chunks)))
            more = message.get("more_body", False)
        return b"".join(chunks)


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
