"""JSON over HTTP to the services of one run: no proxies, a limit on waiting, errors that name the address."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson

from trainer.errors import ServiceError, UsageError


class Unreachable(ServiceError):
    """No answer: refused, reset, or too slow. Trying again may help."""


class Refused(ServiceError):
    """An answer with an error status; asking the same again will not help unless the status is 5xx."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """The body of an answer as JSON (None where it has none), and its headers."""

    body: Any
    headers: Mapping[str, str]


class JsonClient:
    """Calls to one base address. ``token`` goes along as ``Authorization: Bearer``."""

    def __init__(self, base_url: str, *, timeout_s: float = 60.0, token: str | None = None) -> None:
        if urlsplit(base_url).scheme not in ("http", "https"):
            raise UsageError(f"{base_url!r} is not an http:// or https:// address.")
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        # services of a run are reached directly, whatever proxy the environment names for the outside
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str, **query: object) -> Answer:
        return self._call("GET", path, None, query)

    def post(self, path: str, body: object = None, **query: object) -> Answer:
        return self._call("POST", path, body, query)

    def _call(self, method: str, path: str, body: object, query: Mapping[str, object]) -> Answer:
        given = {name: value for name, value in query.items() if value is not None}
        url = f"{self.base_url}{path}" + (f"?{urlencode(given)}" if given else "")
        data = None if body is None else orjson.dumps(body)
        request = urllib.request.Request(url, data=data, headers=dict(self._headers), method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                return Answer(_json(response.read()), response.headers)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(f"{method} {url}: {error.code} {_text(error.read())}", error.code) from error
        except (OSError, http.client.HTTPException, orjson.JSONDecodeError) as error:
            reason = getattr(error, "reason", None) or error
            raise Unreachable(f"{method} {url}: {reason}") from error


def _json(content: bytes) -> Any:
    return orjson.loads(content) if content else None


def _text(content: bytes) -> str:
    return content[:500].decode("utf-8", "replace")
