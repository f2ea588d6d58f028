"""Answers of a capture proxy as streams of events.

An answer is whole before any of it is sent: its ids, its logprobs and its tool calls are checked first. A client that
asked for a stream meanwhile gets the head of the response and comments, so that no time limit on reading ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atroposlib.envs.server_handling.http_client import encode_json

WAITING_EVERY_S = 5.0
"""Seconds between two comments, well below the 30 to 60 after which clients and proxies give up a silent connection."""
WAITING = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """The events of an answer that may still be ``under_way``; ``outcome`` is what it came to.

    What ``outcome`` raises becomes an event, worded by ``failed``, after which nothing comes, not even ``[DONE]``: no
    client may take it for an empty answer. A client that hangs up ends the waiting, not the work. ``delivered`` is
    called where the client was still there at the end.
    """

    def __init__(
        self,
        under_way: asyncio.Future[Any],
        outcome: Callable[[], Awaitable[Mapping[str, Any]]],
        events: Callable[[Mapping[str, Any]], Iterable[bytes]],
        failed: Callable[[Exception], Mapping[str, Any]],
        delivered: Callable[[], None],
    ) -> None:
        super().__init__()
        self._under_way = under_way
        self._outcome = outcome
        self._events = events
        self._failed = failed
        self._delivered = delivered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        if await self._wait(receive, send):
            for piece in await self._pieces():
                await _send_body(send, piece)
        # only while an answer is incomplete can a client that hung up be told from one that is content
        hung_up = await Request(scope, receive).is_disconnected()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if not hung_up:
            self._delivered()

    async def _wait(self, receive: Receive, send: Send) -> bool:
        """Wait for the answer; False where the client hung up before."""
        hanging_up = asyncio.ensure_future(_hang_up(receive))
        ends: set[asyncio.Future[Any]] = {self._under_way, hanging_up}
        try:
            while not any(end.done() for end in ends):
                await _send_body(send, WAITING)
                await asyncio.wait(ends, timeout=WAITING_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            return not hanging_up.done()
        finally:
            hanging_up.cancel()
            await asyncio.gather(hanging_up, return_exceptions=True)

    async def _pieces(self) -> Iterable[bytes]:
        try:
            return self._events(await self._outcome())
        except Exception as error:  # noqa: BLE001 the head is gone, so this is the boundary of the request
            return [_event(self._failed(error))]


def events_of(answer: Mapping[str, Any], with_usage: bool) -> Iterator[bytes]:
    """A finished chat answer as the events of a stream: role, content, calls, finish reason, usage, end."""
    head = _head(answer, with_usage) | {"object": "chat.completion.chunk"}
    for choice in answer["choices"]:
        index, logprobs = choice["index"], choice.get("logprobs")
        for delta in _deltas(choice["message"]):
            yield _event(head | {"choices": [_chunk(index, delta, None, logprobs)]})
            logprobs = None  # they are added up by clients, so they come once
        yield _event(head | {"choices": [_chunk(index, {}, choice["finish_reason"], None)]})
    yield from _end(head, answer, with_usage)


def text_events_of(answer: Mapping[str, Any], with_usage: bool) -> Iterator[bytes]:
    """A finished text completion as the events of a stream."""
    head = _head(answer, with_usage) | {"object": answer.get("object")}
    for choice in answer["choices"]:
        yield _event(head | {"choices": [choice]})
    yield from _end(head, answer, with_usage)


def _head(answer: Mapping[str, Any], with_usage: bool) -> dict[str, Any]:
    """What all events share; where usage was asked for, all but the last say that they have none."""
    head = {name: answer.get(name) for name in ("id", "created", "model")}
    return head | ({"usage": None} if with_usage else {})


def _end(head: Mapping[str, Any], answer: Mapping[str, Any], with_usage: bool) -> Iterator[bytes]:
    if with_usage:
        yield _event({**head, "choices": [], "usage": answer.get("usage")})
    yield DONE


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    yield {"role": "assistant", "content": None, **said}
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": index, **call}]}


def _chunk(index: int, delta: Mapping[str, Any], reason: str | None, logprobs: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": reason, "logprobs": logprobs}


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + encode_json(data) + b"\n\n"


async def _send_body(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _hang_up(receive: Receive) -> None:
    """Return when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
