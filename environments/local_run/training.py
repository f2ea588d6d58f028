"""Trajectory server, trainer and environment side by side; the steps are shown as they come."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from environments.local_run.curve import Point, read_curve
from environments.local_run.processes import Child, ChildSpec, ProcessGroup
from environments.local_run.progress import progress

TICK_S = 0.5
ENDED_BY_SIGNAL = [code for number in (signal.SIGINT, signal.SIGTERM) for code in (128 + number, -number)]
"""Exit codes of a program that ends as it was asked to."""


def nothing_more() -> Mapping[str, str]:
    """No further columns."""
    return {}


@dataclass(frozen=True)
class Training:
    """What runs, and what is shown of it."""

    server: ChildSpec
    trainer: ChildSpec
    environment: ChildSpec
    metrics: Path
    """``metrics.jsonl`` of the trainer."""
    steps: int
    until: float = math.inf
    """When, by ``time.monotonic``, the trainer is ended before its last step; it does one step in any case."""
    more: Callable[[], Mapping[str, str]] = nothing_more
    """Further columns, with their values at the last step."""

    async def run(self, group: ProcessGroup, console: Console) -> list[Point]:
        """Train until the trainer has done its steps, or ``until``. Raises: ChildFailed where one fails."""
        server = await group.start(self.server)
        trainer = await group.start(self.trainer)
        environment = await group.start(self.environment)
        in_time = True
        with progress(console, self.steps) as shown:
            while trainer.running:
                shown.show(read_curve(self.metrics), self.more())
                group.check(server)
                _check_not_failed(environment)
                in_time = time.monotonic() < self.until or not read_curve(self.metrics)
                if not in_time:
                    await group.end(trainer)  # it saves what it has learned
                await asyncio.sleep(TICK_S)
            shown.show(read_curve(self.metrics), self.more(), ended=True)
        _check_not_failed(trainer, expected=() if in_time else ENDED_BY_SIGNAL)
        await group.end(environment)
        await group.end(server)
        return read_curve(self.metrics)


def _check_not_failed(child: Child, expected: Collection[int] = ()) -> None:
    if not child.running and child.process.returncode not in (0, *expected):
        raise child.failure(f"ended with exit code {child.process.returncode}")
