"""ASGI middleware: who may talk to the server.

- With a token, every request but ``GET /`` needs ``Authorization: Bearer TOKEN``; without one, whoever reaches the
  port may.
- A request that a browser sends on behalf of some web page is refused, unless the page's origin is allowed: otherwise
  any page that a person opens on this machine could reset a run.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from atroposlib.api.answers import refusal


class AccessControl:
    """See the module."""

    def __init__(self, app: ASGIApp, token: str | None, allowed_origins: Collection[str]) -> None:
        self._app = app
        self._authorization = None if token is None else f"Bearer {token}".encode()
        self._origins = frozenset(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if not self._may_come_from(headers):
                await refusal(403, "requests from web pages are off; see run-api --allow-origin")(scope, receive, send)
                return
            if scope["path"] != "/" and not self._is_authorized(headers):
                await refusal(401, "send the header 'Authorization: Bearer TOKEN'")(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_authorized(self, headers: Headers) -> bool:
        if self._authorization is None:
            return True
        return secrets.compare_digest(headers.get("authorization", "").encode(), self._authorization)

    def _may_come_from(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is not None and ("*" in self._origins or origin in self._origins):
            return True
        own = origin is None or origin.partition("://")[2] == headers.get("host")
        return own and headers.get("sec-fetch-site", "none") in ("none", "same-origin")
