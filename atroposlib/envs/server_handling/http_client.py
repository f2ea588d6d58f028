"""One HTTP connection pool to one engine: bytes out, JSON in, and errors that say what a retry would do."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from atroposlib.envs.server_handling.generation import PromptIds
from atroposlib.errors import EngineRefused, EngineUnavailable

if TYPE_CHECKING:
    import aiohttp

MAX_ANSWER_BYTES = 512 * 1024 * 1024
TRY_AGAIN_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 529})
LARGE_BODY = 512 * 1024
"""Bytes from which on a body is sent piece by piece, so that the event loop goes on meanwhile."""
_EXCERPT = 500

Shorten = Callable[[bytes], bytes]


class EngineBusy(EngineUnavailable):
    """A failure that the same request may outlive. ``retry_after_s`` is what the engine asked for, if it did."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineHttp:
    """Requests to one engine.

    The connections belong to the running event loop and are opened by the first request; a request under another loop
    opens new ones. Nothing is retried here. Header values never appear in an error.
    """

    def __init__(self, headers: Mapping[str, str], timeout_s: float) -> None:
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **headers}
        self._timeout_s = timeout_s
        self._session: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, url: str, body: Any, timeout_s: float | None = None, shorten: Shorten | None = None) -> Any:
        """Send ``body`` as JSON and return the decoded answer, its bytes passed through ``shorten`` first.

        Raises:
            EngineBusy: no connection, or a status that passes (408, 429, 5xx).
            EngineUnavailable: no answer within the timeout, or one that is not JSON.
            EngineRefused: any other status above 399.
        """
        content = await self._request("POST", url, encode_json(body), timeout_s)
        return _decode(url, shorten(content) if shorten else content)

    async def get(self, url: str, timeout_s: float | None = None) -> Any:
        """Like ``post``, for a GET; an answer without a body is ``None``."""
        return _decode(url, await self._request("GET", url, None, timeout_s))

    async def delete(self, url: str, timeout_s: float | None = None) -> Any:
        """Like ``get``, for a DELETE."""
        return _decode(url, await self._request("DELETE", url, None, timeout_s))

    async def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    async def _request(self, method: str, url: str, body: bytes | None, timeout_s: float | None) -> bytes:
        import aiohttp

        seconds = timeout_s or self._timeout_s
        data = io.BytesIO(body) if body is not None and len(body) > LARGE_BODY else body
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=min(30.0, seconds))
        try:
            async with self._open_session().request(
                method, url, data=data, headers=self._headers, timeout=timeout
            ) as answer:
                content = await _read(url, answer)
                status, retry_after = answer.status, answer.headers.get("retry-after")
        except aiohttp.ConnectionTimeoutError as error:
            raise EngineBusy(f"{url} did not accept a connection in time; is the engine running there?") from error
        except TimeoutError as error:
            raise EngineUnavailable(f"{url} did not answer within {seconds:g} s; raise --openai.timeout") from error
        except aiohttp.ClientConnectionError as error:
            raise EngineBusy(f"no connection to {url} ({error}); is the engine running there?") from error
        except aiohttp.ClientPayloadError as error:
            raise EngineBusy(f"{url} broke off in the middle of its answer ({error})") from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise EngineRefused(f"{url!r} is not a URL of an engine; set --openai.base_url") from error
        except aiohttp.ClientError as error:
            raise EngineUnavailable(f"{url} does not speak HTTP as expected ({error})") from error
        if status >= 400:
            raise _refusal(url, status, content, retry_after)
        return content

    def _open_session(self) -> Any:
        import aiohttp

        loop = asyncio.get_running_loop()
        if self._session is None or self._session.closed or self._loop is not loop:
            # the number of requests in flight is bounded by RequestSlots; a second bound here would only hide it
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            self._session = aiohttp.ClientSession(connector=connector)
            self._loop = loop
        return self._session


def encode_json(body: Any) -> bytes:
    """JSON of plain data, pydantic models and numpy arrays; a lone surrogate, which is no text, becomes ``?``."""
    try:
        return orjson.dumps(body, default=_as_json, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(body, default=_plain, ensure_ascii=False).encode("utf-8", "replace")


def _as_json(value: Any) -> Any:
    return orjson.Fragment(value.json) if isinstance(value, PromptIds) else _plain(value)


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent to an engine")


async def _read(url: str, answer: aiohttp.ClientResponse) -> bytes:
    if answer.content_length is not None and answer.content_length <= MAX_ANSWER_BYTES:
        return await answer.read()
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise EngineUnavailable(f"{url} answered with more than {MAX_ANSWER_BYTES} bytes; nothing of it is used")
    return bytes(content)


def _decode(url: str, content: bytes) -> Any:
    if not content.strip():
        return None
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return _decode_leniently(url, content)


def _decode_leniently(url: str, content: bytes) -> Any:
    """The standard library takes NaN and escaped lone surrogates, which some engines send."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise EngineUnavailable(f"{url} did not answer in JSON: {_excerpt(content)}") from error


def _refusal(url: str, status: int, content: bytes, retry_after: str | None) -> EngineUnavailable | EngineRefused:
    message = f"{url} answered {status}: {_message(content)}"
    if status in TRY_AGAIN_STATUSES:
        return EngineBusy(message, _seconds(retry_after))
    return EngineRefused(message, status)


def _message(content: bytes) -> str:
    """The engine's own words: ``{"error": {"message"}}``, ``{"message"}``, ``{"detail"}`` or the raw text."""
    try:
        said = orjson.loads(content)
    except orjson.JSONDecodeError:
        return _excerpt(content)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(key):
            said = said[key]
    return said if isinstance(said, str) else _excerpt(content)


def _excerpt(content: bytes) -> str:
    text = content[: _EXCERPT + 1].decode("utf-8", errors="replace").strip()
    return text[:_EXCERPT] + "…" if len(text) > _EXCERPT else text or "(nothing)"


def _seconds(retry_after: str | None) -> float | None:
    try:
        return max(0.0, float(retry_after)) if retry_after else None
    except ValueError:
        return None
