"""The environment's side of the trajectory server.

One HTTP session per client. A group is held here until the server has it: what could not be sent is kept, bounded, and
sent again, always under the same ``group_id``, so that a retry never makes a second group. Requests are repeated only
where that can help. A server that was restarted does not know this environment any more
(``UnknownEnvironment``): after ``register`` everything held is sent under the new id.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from atroposlib.errors import (
    ConfigError,
    GroupRefused,
    QueueError,
    QueueFull,
    QueueUnavailable,
    UnknownEnvironment,
)
from atroposlib.gzip_codec import gzip_compress
from atroposlib.tracking import encode_json
from atroposlib.wire import GROUP_KEYS, EnvRegistered, EnvRegistration, EnvStatus, RunInfo, WandbInfo

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)

GZIP_FROM_BYTES = 1024
OFF_LOOP_FROM_TOKENS = 4096
_ATTEMPTS = 4
_FIRST_DELAY_S = 0.2
_TIMEOUT_S = 60.0
_SPEAKS_NO_HTTP_LIKE_OURS = frozenset({501, 505})
"""What a server answers that is not a trajectory server and never will be: no POST, another version of HTTP."""


@dataclass
class _Unsent:
    group: Mapping[str, Any]
    sending: bool = False


@dataclass
class QueueClient:
    """Talks to one trajectory server for one environment. Close it with ``aclose``."""

    url: str
    token: str | None = None
    identity: dict[str, Any] = field(default_factory=dict)
    """``env_id`` and ``run_id`` as the server answered them."""
    sent: int = 0
    """Groups that the server has accepted."""
    max_unsent: int = 64
    """Groups that may be kept for later; ``send`` waits while there are so many."""
    _unsent: dict[str, _Unsent] = field(default_factory=dict)
    _pause_until: float = 0.0
    _session: aiohttp.ClientSession | None = None

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            self.url = f"http://{self.url}"
        self._room = asyncio.Condition()

    @property
    def unsent(self) -> int:
        """How many groups the server does not have yet."""
        return len(self._unsent)

    async def aclose(self) -> None:
        """Close the session. Groups that are still unsent stay here."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def register(self, registration: EnvRegistration) -> EnvRegistered | None:
        """Register, or learn by ``None`` that the trainer has not started yet."""
        answer = await self._ask("POST", "/register-env", registration.model_dump())
        if answer.get("status") != "success":
            return None
        self.identity = {key: answer[key] for key in ("env_id", "run_id") if answer.get(key) is not None}
        registered: EnvRegistered = answer
        return registered

    async def wandb_info(self) -> WandbInfo:
        """Group and project of the trainer's run."""
        answer: WandbInfo = await self._ask("GET", "/wandb_info")
        return answer

    async def run_info(self) -> RunInfo:
        """Batch size, in sequences, and the longest sequence that the trainer takes; -1 where it did not say."""
        answer: RunInfo = await self._ask("GET", "/info")
        return answer

    async def status(self) -> EnvStatus:
        """How far training is and how much waits. Raises: UnknownEnvironment, QueueUnavailable."""
        answer: EnvStatus = await self._ask("GET", "/status-env", self.identity)
        return answer

    async def disconnect(self) -> None:
        """Say goodbye, so that the server keeps no place in the batch for this environment."""
        if self.identity:
            await self._ask("POST", "/disconnect-env", {"env_id": self.identity["env_id"]}, attempts=1)

    async def send(self, group: Mapping[str, Any]) -> bool:
        """Send a group; ``False`` if the server could not take it now, so that it is kept for ``send_unsent``.

        Waits while as many groups as may be kept are unsent; cancelled meanwhile, it keeps this one, too. Raises:
        GroupRefused, after which the group is forgotten.
        """
        try:
            async with self._room:
                await self._room.wait_for(lambda: len(self._unsent) < self.max_unsent)
        finally:
            group_id = self.keep(group)
        return await self._send_kept(group_id)

    def keep(self, group: Mapping[str, Any]) -> str:
        """Hold a group that was not sent yet for ``send_unsent``, without waiting; returns its ``group_id``."""
        group_id = str(group.get("group_id") or uuid.uuid4().hex)
        self._unsent[group_id] = _Unsent(group)
        return group_id

    async def send_unsent(self) -> int:
        """Try again what was kept; return how many groups the server now has. A refused one is logged, and gone."""
        sent = 0
        if time.monotonic() < self._pause_until:
            return 0
        for group_id, unsent in list(self._unsent.items()):
            if unsent.sending:
                continue
            try:
                if not await self._send_kept(group_id):
                    break
            except GroupRefused as error:
                logger.error("the server refused a group that had been kept: %s", error)  # noqa: TRY400
            else:
                sent += 1
        return sent

    async def _send_kept(self, group_id: str) -> bool:
        unsent = self._unsent[group_id]
        unsent.sending = True
        try:
            body, headers = await _encoded({**unsent.group, **self.identity, "group_id": group_id})
            await self._ask("POST", "/scored_data", body, headers)
        except GroupRefused:
            await self._forget(group_id)
            raise
        except (QueueFull, QueueUnavailable, UnknownEnvironment) as error:
            if isinstance(error, QueueFull):
                self._pause_until = time.monotonic() + error.retry_after_s
            logger.warning("a group was not sent yet and is kept (%d unsent): %s", len(self._unsent), error)
            return False
        finally:
            unsent.sending = False
        self.sent += 1
        await self._forget(group_id)
        return True

    async def _forget(self, group_id: str) -> None:
        self._unsent.pop(group_id, None)
        async with self._room:
            self._room.notify()

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        attempts: int = _ATTEMPTS,
    ) -> Any:
        """One request, repeated while the server cannot be reached or is in trouble."""
        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        delay = _FIRST_DELAY_S
        for attempt in range(1, attempts + 1):
            try:
                return await self._request(method, path, data, headers or {})
            except QueueUnavailable:
                if attempt == attempts:
                    raise
            await asyncio.sleep(delay)
            delay *= 3
        raise AssertionError("the last attempt returns or raises")

    async def _request(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> Any:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._common_headers())
        try:
            async with self._session.request(method, self.url + path, data=data, headers=headers) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            what = str(error) or type(error).__name__
            raise QueueUnavailable(
                f"no trajectory server at {self.url} ({what}); see --env.rollout_server_url"
            ) from error
        if response.status >= 400:
            raise _error(response.status, path, content, response.headers.get("Retry-After"))
        try:
            return orjson.loads(content)
        except orjson.JSONDecodeError:
            raise ConfigError(f"{self.url} is no trajectory server: {path} did not answer JSON") from None

    def _common_headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        return {**headers, "Authorization": f"Bearer {self.token}"} if self.token else headers


def _error(status: int, path: str, content: bytes, retry_after: str | None) -> QueueError | ConfigError:
    """What an answer of 400 or more means for the caller."""
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    reason = str(answer.get("error") or answer.get("detail") or content.decode(errors="replace"))
    reason = " ".join(reason.split())[:300]
    message = f"the trajectory server answered {status} to {path}: {reason}"
    if status in (401, 403):
        return ConfigError(f"{message}; --env.rollout_server_token_env names the variable that holds its token")
    if answer.get("register_again"):
        return UnknownEnvironment(message)
    if status == 503 and path == "/scored_data":
        return QueueFull(message, _seconds(retry_after))
    if (status >= 500 and status not in _SPEAKS_NO_HTTP_LIKE_OURS) or status in (408, 425, 429):
        return QueueUnavailable(message)
    if path == "/scored_data" and status not in (404, 405):
        return GroupRefused(message, str(answer.get("field") or ""))
    return ConfigError(f"{message}; is --env.rollout_server_url that of a trajectory server (run-api)?")


def _seconds(retry_after: str | None) -> float:
    """A header that a proxy may fill with a date."""
    try:
        return float(retry_after or 1.0)
    except ValueError:
        return 1.0


async def _encoded(group: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a group, made off the event loop where it is big."""
    if sum(len(tokens) for tokens in group.get("tokens") or ()) >= OFF_LOOP_FROM_TOKENS:
        return await asyncio.to_thread(encode_group, group)
    return encode_group(group)


def encode_group(group: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """JSON of the keys that the server knows, gzipped where that makes it smaller; and the headers."""
    known = {key: group[key] for key in (*GROUP_KEYS, "group_id", "run_id") if group.get(key) is not None}
    plain = encode_json(known)
    if len(plain) >= GZIP_FROM_BYTES:
        packed = gzip_compress(plain)
        if len(packed) < len(plain):
            return packed, {"Content-Encoding": "gzip"}
    return plain, {}
