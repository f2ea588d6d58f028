"""Child processes with one owner: started with a log each, watched, and ended in reverse order of their start.

No child outlives its ``ProcessGroup``: leaving the context ends every child (SIGINT, then SIGTERM, then SIGKILL to
its whole process group), and where the owner itself is killed the kernel ends them (``launch``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from environments.local_run import launch

logger = logging.getLogger(__name__)

GRACE_S = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))


class ChildFailed(Exception):
    """A child process ended, or was not ready in time; the message holds the end of its log."""


@dataclass(frozen=True)
class ChildSpec:
    """What to run. ``ready`` returns True once the child can be used; None means at once."""

    name: str
    argv: Sequence[str]
    ready: Callable[[], Awaitable[bool]] | None = None
    ready_within_s: float = 120.0
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Child:
    """A running child and where it writes."""

    spec: ChildSpec
    process: asyncio.subprocess.Process
    log: Path

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def failure(self, what: str) -> ChildFailed:
        return ChildFailed(f"{self.spec.name} {what}. The end of {self.log}:\n{self.log_tail()}")


class ProcessGroup:
    """The owner of all children of one run. Logs go to ``<log_dir>/<name>.log``."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.children: list[Child] = []

    async def __aenter__(self) -> ProcessGroup:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ending = asyncio.ensure_future(self.end_all())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending  # a second Ctrl-C does not leave children behind
            raise

    async def start(self, spec: ChildSpec) -> Child:
        """Start a child and wait until it is ready.

        Raises: ChildFailed where it ends before, or is not ready within ``spec.ready_within_s``.
        """
        log = self.log_dir / f"{spec.name}.log"
        with log.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, launch.__file__, str(os.getpid()), *spec.argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.env},
                start_new_session=True,
            )
        child = Child(spec, process, log)
        self.children.append(child)
        await self._wait_ready(child)
        return child

    async def _wait_ready(self, child: Child) -> None:
        if child.spec.ready is None:
            return
        deadline = time.monotonic() + child.spec.ready_within_s
        while not await child.spec.ready():
            if not child.running:
                raise child.failure(f"ended with exit code {child.process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise child.failure(f"was not ready after {child.spec.ready_within_s:.0f} s")
            await asyncio.sleep(0.1)

    async def run(self, spec: ChildSpec) -> Child:
        """Start a child and wait for its end.

        Raises: ChildFailed where its exit code is not 0.
        """
        child = await self.start(spec)
        await child.process.wait()
        if child.process.returncode != 0:
            raise child.failure(f"ended with exit code {child.process.returncode}")
        return child

    def check(self, *children: Child) -> None:
        """Raises: ChildFailed where one of these children is no longer running."""
        for child in children:
            if not child.running:
                raise child.failure(f"ended with exit code {child.process.returncode}")

    async def end(self, child: Child) -> None:
        """End one child and all of its process group, gently first."""
        if not child.running:
            return
        for number, seconds in GRACE_S:
            _signal_group(child.process.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(child.process.wait(), seconds)
                break
        else:
            logger.error("%s (pid %d) did not end", child.spec.name, child.process.pid)
        # what the child left in its own group goes with it
        _signal_group(child.process.pid, signal.SIGKILL)

    async def end_all(self) -> None:
        for child in reversed(self.children):
            await self.end(child)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def answers(url: str) -> Callable[[], Awaitable[bool]]:
    """A readiness test: whether a GET of ``url`` answers 200."""

    async def ready() -> bool:
        import aiohttp

        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
                session.get(url) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    return ready
