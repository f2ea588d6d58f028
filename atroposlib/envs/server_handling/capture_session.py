"""The rollouts that a capture proxy records: one session each, with a secret, an expiry and the answers given so far.

A request that is sent again must not fork the rollout. Each request is known by the digest of what it asks (but not of
how the answer is to come, whole or as a stream): while it is in flight its repetition waits for the same answer, and
afterwards gets it again. Only a client that says that this is no repetition, after the first answer reached it, is
taken to want another sample.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from atroposlib.envs.server_handling.managed_server import ManagedServer
from atroposlib.errors import AtroposError, EngineRefused, InferenceError

logger = logging.getLogger(__name__)

KEPT_ANSWERS = 512
"""Answers of one session that are kept for a repetition."""


class UnknownSession(InferenceError):
    """There is no session of this id (any more)."""


class NoTurnsLeft(EngineRefused):
    """The program asked as often as it may."""


class TooManySessions(InferenceError):
    """As many sessions are open as the proxy may hold."""


@dataclass
class Answer:
    """One request and what became of it. ``delivered``: the client took all of it."""

    task: asyncio.Task[Any]
    delivered: bool = False


@dataclass
class CaptureSession:
    """One rollout under way. ``expires_at`` is in seconds of ``time.monotonic``, and moves on with every use."""

    managed: ManagedServer
    tool_parser: str | None
    base_url: str | None
    expires_after_s: float
    uuid: str = field(default_factory=lambda: uuid.uuid4().hex)
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    created_at: float = field(default_factory=time.time)
    expires_at: float = 0.0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of requests that do not set them."""
    most_requests: int | None = None
    failures: dict[str, AtroposError] = field(default_factory=dict)
    """What went wrong and was not made good by a repetition, by the digest of the request."""
    not_enforced: Counter[str] = field(default_factory=Counter)
    """How many requests carried a field that is taken as a wish, by its name."""
    requests: int = 0
    conversation: list[dict[str, Any]] = field(default_factory=list)
    """The messages of the last chat request, and its answer."""
    _answers: OrderedDict[str, Answer] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.touch()

    def touch(self) -> None:
        """Begin the time until expiry anew."""
        self.expires_at = time.monotonic() + self.expires_after_s

    @property
    def expired(self) -> bool:
        """Whether nobody used it for too long and nothing is in flight."""
        return time.monotonic() > self.expires_at and not self.in_flight

    @property
    def in_flight(self) -> int:
        """Requests that wait for the engine."""
        return sum(not answer.task.done() for answer in self._answers.values())

    def knows_secret(self, given: str) -> bool:
        """Whether this is the session's secret; takes the same time for every wrong one."""
        return secrets.compare_digest(given.encode(), self.secret.encode())

    def ask(self, key: str, first_try: bool, work: Callable[[], Awaitable[Any]], wishes: Iterable[str] = ()) -> Answer:
        """The answer to a request: that of the request of the same ``key`` before, or a new one by ``work``.

        Its task belongs to the session and goes on when the client hangs up, so that a repetition finds it.

        Raises: NoTurnsLeft.
        """
        self.touch()
        known = self._answers.get(key)
        if known is not None and not self._is_another_sample(known, first_try):
            return known
        if self.most_requests is not None and self.requests >= self.most_requests:
            error = self.failures[key] = NoTurnsLeft(f"all {self.most_requests} turns are used", status=400)
            raise error
        self.requests += 1
        for name in wishes:
            _say_once(name)
            self.not_enforced[name] += 1
        answer = Answer(asyncio.ensure_future(self._work(key, work)))
        self._answers[key] = answer
        self._answers.move_to_end(key)
        self._drop_old_answers()
        return answer

    async def close(self) -> None:
        """Cancel what is in flight and forget the rollout."""
        tasks = [answer.task for answer in self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._answers.clear()
        self.managed.reset()

    def _is_another_sample(self, known: Answer, first_try: bool) -> bool:
        if not known.task.done():
            return False
        if known.task.cancelled() or known.task.exception() is not None:
            return True
        return first_try and known.delivered

    async def _work(self, key: str, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            answer = await work()
        except AtroposError as error:
            self.failures[key] = error
            raise
        finally:
            self.touch()
        self.failures.pop(key, None)
        return answer

    def _drop_old_answers(self) -> None:
        done = [key for key, answer in self._answers.items() if answer.task.done()]
        for key in done[: max(0, len(self._answers) - KEPT_ANSWERS)]:
            del self._answers[key]


@functools.cache
def _say_once(name: str) -> None:
    logger.warning(
        "an agent program sends %s, which cannot be enforced on completions from ids; see docs/tokens.md", name
    )


class CaptureSessions:
    """All sessions of a proxy: at most ``limit``, each dropped ``expires_after_s`` seconds after its last use."""

    def __init__(self, expires_after_s: float = 3600.0, limit: int = 4096) -> None:
        self.expires_after_s = expires_after_s
        self._limit = limit
        self._open: dict[str, CaptureSession] = {}

    def __iter__(self) -> Any:
        return iter(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    async def add(self, session: CaptureSession) -> None:
        """Take in a session. Raises: TooManySessions."""
        await self.drop_expired()
        if len(self._open) >= self._limit:
            await session.close()
            raise TooManySessions(f"{self._limit} sessions are open; delete those that are over")
        self._open[session.uuid] = session

    async def find(self, session_id: str) -> CaptureSession:
        """Raises: UnknownSession."""
        await self.drop_expired()
        session = self._open.get(session_id)
        if session is None:
            raise UnknownSession(f"there is no session {session_id}: it was deleted, expired, or never made")
        return session

    async def remove(self, session: CaptureSession) -> None:
        """Close a session and forget it."""
        self._open.pop(session.uuid, None)
        await session.close()

    async def drop_expired(self) -> None:
        """Close the sessions that nobody used for too long."""
        for session in [each for each in self._open.values() if each.expired]:
            await self.remove(session)

    async def close(self) -> None:
        """Close them all."""
        for session in list(self._open.values()):
            await self.remove(session)
