"""Answers of the server: refusals in one form, and batches that report whether they arrived."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

import anyio
import anyio.to_thread
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atroposlib.api.in_flight import Batch
from atroposlib.api.trajectory_queue import TrajectoryQueue
from atroposlib.gzip_codec import gzip_compress
from atroposlib.wire import Refusal

_PIECE_BYTES: Final = 1024 * 1024
"""Event loops move what is left of a write after each part that the socket took: small writes keep that cheap."""


class JsonAnswer(Response):
    """Plain data as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def refusal(
    status: int, error: str, *, field: str = "", register_again: bool = False, retry_after_s: float | None = None
) -> JsonAnswer:
    """An answer that says what was wrong and what to change."""
    body: Refusal = {"status": "failure", "error": error}
    if field:
        body["field"] = field
    if register_again:
        body["register_again"] = True
    headers = {} if retry_after_s is None else {"retry-after": str(ceil(retry_after_s))}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return JsonAnswer(body, status, headers)


class BatchResponse(Response):
    """A batch, which is reported to the queue as sent or lost.

    It counts as sent when the transport took all of it and the client had not hung up by then. It is gzipped for
    clients on other machines that take gzip; on one machine packing would cost more than it saves.
    """

    def __init__(self, batch: Batch, queue: TrajectoryQueue) -> None:
        super().__init__()
        self._batch = batch
        self._queue = queue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = False
        try:
            await self._queue.flushed()
            arrived = await self._send(Request(scope, receive), send)
        finally:
            report = self._queue.batch_sent if arrived else self._queue.batch_lost
            report(self._batch.batch_id)

    async def _send(self, request: Request, send: Send) -> bool:
        parts = _parts_of(self._batch)
        headers = [(b"content-type", b"application/json"), (b"x-batch-id", str(self._batch.batch_id).encode())]
        if _is_remote(request) and "gzip" in request.headers.get("accept-encoding", ""):
            parts = [await anyio.to_thread.run_sync(gzip_compress, b"".join(parts))]
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", str(sum(map(len, parts))).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                piece = part[start : start + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        # A server waits for a slow client before it takes the next piece, not after it took the last.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        # Only while the answer is incomplete can it tell a client that hung up from one that is content.
        arrived = not await request.is_disconnected()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return arrived


def _parts_of(batch: Batch) -> list[bytes]:
    """The JSON of a batch, in parts that need no copy."""
    parts = [b'{"batch":[']
    for group in batch.groups:
        parts += [group.body, b","]
    parts[-1] = b"]}"
    return parts


def _is_remote(request: Request) -> bool:
    return request.client is not None and request.client.host not in ("127.0.0.1", "::1", "testclient")
