"""What a capture proxy sends: answers that are whole, and errors as OpenAI's API words them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from atroposlib.envs.server_handling.capture_fields import UnsupportedField, WrongField
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

LONGEST_MESSAGE = 4000
"""Characters of an error; one that quotes a request may be as long as that."""


class JsonResponse(Response):
    """Plain data, or answers of the ``openai`` package, as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode_json(content)


class ReportingResponse(Response):
    """An answer as JSON; ``delivered`` is called where the client was still there at the end."""

    def __init__(self, content: Any, delivered: Callable[[], None]) -> None:
        super().__init__(encode_json(content), media_type="application/json")
        self._delivered = delivered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        # only while an answer is incomplete can a client that hung up be told from one that is content
        hung_up = await Request(scope, receive).is_disconnected()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        if not hung_up:
            self._delivered()


@dataclass(frozen=True)
class Failure:
    """An error as OpenAI's API tells it."""

    status: int
    message: str
    kind: str
    code: str
    retry_after_s: float | None = None
    param: str | None = None
    """The field of the request that is refused."""

    @property
    def body(self) -> dict[str, Any]:
        """``{"error": {"message", "type", "code"}}``, and ``param`` where a field is to blame."""
        error = {"message": self.message, "type": self.kind, "code": self.code}
        return {"error": error if self.param is None else {**error, "param": self.param}}

    def response(self) -> Response:
        """It as the answer to a request."""
        wait = self.retry_after_s
        headers = {} if wait is None else {"retry-after": str(max(1, round(wait)))}
        return JsonResponse(self.body, self.status, headers)


def failure_of(error: Exception) -> Failure:
    """What a request comes to that raised one of this package's errors, or another."""
    status, name, code = next((told for kind, *told in _FAILURES if isinstance(error, kind)), _UNEXPECTED)
    if isinstance(error, EngineRefused) and not isinstance(error, ContextFull):
        status = error.status if error.status and 400 <= error.status < 500 else status
    if isinstance(error, RolloutInvalid):
        code = error.reason
    retry_after_s = error.retry_after_s if isinstance(error, EngineBusy) else None
    param = error.name if isinstance(error, WrongField) else None
    return Failure(status, _shortened(str(error)), name, code, retry_after_s, param)


def _shortened(message: str) -> str:
    return message if len(message) <= LONGEST_MESSAGE else message[: LONGEST_MESSAGE - 1] + "…"


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
    (UnsupportedField, 400, "invalid_request_error", "unsupported_parameter"),
    (ConfigError, 400, "invalid_request_error", "invalid_request"),
)
"""Status, type and code of each error; the first that fits counts."""


def plain(answer: Any) -> dict[str, Any]:
    """An answer of the ``openai`` package as plain data."""
    data: dict[str, Any] = orjson.loads(encode_json(answer))
    return data
