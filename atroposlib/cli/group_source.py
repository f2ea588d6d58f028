"""Groups from a trajectory server, for commands that stand in for a trainer."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp

from atroposlib.errors import ConfigError, QueueUnavailable
from atroposlib.wire import Registration, ScoredDataGroup

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Run:
    """What is registered: the name of the run, and how large its batches are."""

    name: str
    group_size: int
    groups_per_batch: int
    max_token_len: int
    num_steps: int

    def registration(self) -> Registration:
        """As the server wants it."""
        return Registration(
            wandb_group=self.name,
            wandb_project=self.name,
            batch_size=self.group_size * self.groups_per_batch,
            max_token_len=self.max_token_len,
            checkpoint_dir="checkpoints",
            save_checkpoint_interval=10,
            starting_step=0,
            num_steps=self.num_steps,
        )


class GroupSource:
    """A client of the server at ``url``; use it as an async context manager.

    A batch is acknowledged when the next one is asked for, so that none is lost where an answer was. Raises:
    QueueUnavailable where the server cannot be reached or answers an error.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._acknowledged = 0
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> GroupSource:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def is_taken(self) -> bool:
        """Whether a trainer is registered."""
        _, info = await self._ask("GET", "/info")
        return int(info["batch_size"]) != -1

    async def register(self, run: Run) -> None:
        """Take the place of the trainer, without a reset."""
        await self._ask("POST", "/register", json=run.registration().model_dump())

    async def reset(self) -> None:
        """Make the server forget the run it has."""
        await self._ask("GET", "/reset_data", as_text=True)

    async def next_batch(self) -> list[ScoredDataGroup] | None:
        """Take the next batch; None while there is none."""
        headers, answer = await self._ask("GET", "/batch", params={"ack": str(self._acknowledged)})
        if answer.get("status") == "error":
            raise QueueUnavailable(f"{self._url}: {answer.get('message')}")
        self._acknowledged = int(headers.get("x-batch-id", self._acknowledged))
        batch: list[ScoredDataGroup] | None = answer["batch"]
        return batch

    async def batches(self) -> AsyncIterator[list[ScoredDataGroup]]:
        """All batches from now on, without end."""
        while True:
            batch = await self.next_batch()
            if batch is None:
                await asyncio.sleep(_POLL_S)
            else:
                yield batch

    async def latest(self) -> ScoredDataGroup:
        """The group that arrived last, without taking it."""
        _, group = await self._ask("GET", "/latest_example")
        latest: ScoredDataGroup = group
        return latest

    async def status(self) -> dict[str, Any]:
        """The server's counters."""
        _, status = await self._ask("GET", "/status")
        return dict(status)

    async def _ask(
        self, method: str, path: str, as_text: bool = False, **options: Any
    ) -> tuple[Mapping[str, str], Any]:
        assert self._session is not None
        try:
            async with self._session.request(method, self._url + path, **options) as answer:
                if answer.status >= 400:
                    raise QueueUnavailable(f"{self._url}{path}: HTTP {answer.status}: {(await answer.text())[:500]}")
                return answer.headers, (await answer.text() if as_text else await answer.json())
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise QueueUnavailable(f"no trajectory server at {self._url} ({reason}); start one with run-api") from error


def token_from(variable: str | None) -> str | None:
    """The token in an environment variable. Raises: ConfigError where it is named and not set."""
    if variable is None:
        return None
    token = os.environ.get(variable)
    if not token:
        raise ConfigError(f"--api-token-env: the variable {variable} is not set")
    return token
