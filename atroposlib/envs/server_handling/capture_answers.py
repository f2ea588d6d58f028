"""What a capture proxy sends: chat answers whole or as a stream of events, and errors as OpenAI's API words them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atroposlib.envs.server_handling.capture_session import NoTurnsLeft, TooManySessions, UnknownSession
from atroposlib.envs.server_handling.http_client import EngineBusy, encode_json
from atroposlib.errors import (
    ConfigError,
    ContextFull,
    EngineRefused,
    EngineUnavailable,
    NotTokenExact,
    RolloutInvalid,
)

Pieces = list[bytes]


class JsonResponse(Response):
    """Plain data, or answers of the ``openai`` package, as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode_json(content)


class ReportingResponse(Response):
    """Pieces that are sent one by one; ``delivered`` is called where the client was still there at the end."""

    def __init__(self, pieces: Pieces, media_type: str, delivered: Callable[[], None]) -> None:
        super().__init__(media_type=media_type)
        self._pieces = pieces
        self._delivered = delivered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = str(sum(map(len, self._pieces))).encode()
        headers = [(b"content-type", str(self.media_type).encode()), (b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        # only while an answer is incomplete can a client that hung up be told from one that is content
        hung_up = await Request(scope, receive).is_disconnected()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if not hung_up:
            self._delivered()


def error_response(status: int, message: str, kind: str, code: str, retry_after_s: float | None = None) -> Response:
    """``{"error": {"message", "type", "code"}}``."""
    headers = {} if retry_after_s is None else {"retry-after": str(max(1, round(retry_after_s)))}
    return JsonResponse({"error": {"message": message, "type": kind, "code": code}}, status, headers)


def failure_response(error: Exception) -> Response:
    """The answer to a request that raised one of this package's errors."""
    status, name, code = next((told for kind, *told in _FAILURES if isinstance(error, kind)), _UNEXPECTED)
    if isinstance(error, EngineRefused) and not isinstance(error, ContextFull):
        status = error.status if error.status and 400 <= error.status < 500 else status
    if isinstance(error, RolloutInvalid):
        code = error.reason
    retry_after_s = error.retry_after_s if isinstance(error, EngineBusy) else None
    return error_response(status, str(error), name, code, retry_after_s)


_UNEXPECTED: list[Any] = [500, "server_error", "internal_error"]
_FAILURES: tuple[tuple[Any, ...], ...] = (
    (UnknownSession, 404, "not_found_error", "session_not_found"),
    (TooManySessions, 429, "rate_limit_error", "too_many_sessions"),
    (NoTurnsLeft, 400, "invalid_request_error", "no_turns_left"),
    (ContextFull, 400, "invalid_request_error", "context_length_exceeded"),
    (EngineRefused, 400, "invalid_request_error", "engine_refused"),
    (EngineUnavailable, 503, "server_error", "engine_unavailable"),
    (NotTokenExact, 501, "server_error", "not_token_exact"),
    (RolloutInvalid, 422, "invalid_request_error", "invalid_rollout"),
    (ConfigError, 400, "invalid_request_error", "invalid_request"),
)
"""Status, type and code of each error; the first that fits counts."""


def plain(answer: Any) -> dict[str, Any]:
    """An answer of the ``openai`` package as plain data."""
    data: dict[str, Any] = orjson.loads(encode_json(answer))
    return data


def events_of(answer: Mapping[str, Any], with_usage: bool) -> Iterator[bytes]:
    """A finished chat answer as the events of a stream: role, content, calls, finish reason, usage, end."""
    head = {name: answer.get(name) for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in answer["choices"]:
        for delta in _deltas(choice["message"]):
            yield _event(head | {"choices": [_chunk(choice["index"], delta, None)]})
        yield _event(head | {"choices": [_chunk(choice["index"], {}, choice["finish_reason"])]})
    if with_usage:
        yield _event(head | {"choices": [], "usage": answer.get("usage")})
    yield b"data: [DONE]\n\n"


def text_events_of(answer: Mapping[str, Any], with_usage: bool) -> Iterator[bytes]:
    """A finished text completion as the events of a stream."""
    head = {name: answer.get(name) for name in ("id", "created", "model", "object")}
    for choice in answer["choices"]:
        yield _event(head | {"choices": [choice]})
    if with_usage:
        yield _event(head | {"choices": [], "usage": answer.get("usage")})
    yield b"data: [DONE]\n\n"


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": message.get("role", "assistant"), "content": message.get("content")}
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": index, **call}]}


def _chunk(index: int, delta: Mapping[str, Any], reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None}


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + encode_json(data) + b"\n\n"
