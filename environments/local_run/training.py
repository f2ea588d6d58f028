"""Trajectory server, trainer and environment side by side, and a table of the steps as they come."""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from environments.local_run.curve import Point, read_curve
from environments.local_run.processes import Child, ChildSpec, ProcessGroup

SHOWN_STEPS = 8
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
    """Further columns of the table, with what stands in the row of the last step."""

    async def run(self, group: ProcessGroup, console: Console) -> list[Point]:
        """Train until the trainer has done its steps, or ``until``. Raises: ChildFailed where one fails."""
        server = await group.start(self.server)
        trainer = await group.start(self.trainer)
        environment = await group.start(self.environment)
        started, in_time = time.monotonic(), True
        with Live(console=console, refresh_per_second=2) as live:
            while trainer.running:
                live.update(self._table(time.monotonic() - started))
                group.check(server)
                _check_not_failed(environment)
                in_time = time.monotonic() < self.until or not read_curve(self.metrics)
                if not in_time:
                    await group.end(trainer)  # it saves what it has learned
                await asyncio.sleep(TICK_S)
            live.update(self._table(time.monotonic() - started))
        if not console.is_terminal:
            console.line()  # in a file the table is written once, without the end of its last line
        _check_not_failed(trainer, expected=() if in_time else ENDED_BY_SIGNAL)
        await group.end(environment)
        await group.end(server)
        return read_curve(self.metrics)

    def _table(self, elapsed_s: float) -> Table:
        points, more = read_curve(self.metrics), self.more()
        table = Table(title=f"training, {elapsed_s:.0f} s")
        for column in ("step", "reward", "tokens/s", "logprob gap", *more):
            table.add_column(column, justify="right")
        for point in points[-SHOWN_STEPS:]:
            table.add_row(
                f"{point.step}/{self.steps}",
                f"{point.reward:.3f}",
                f"{point.tokens_per_s:.0f}",
                f"{point.logprob_gap:.1e}",
                *(more.values() if point is points[-1] else ()),
            )
        return table


def _check_not_failed(child: Child, expected: Collection[int] = ()) -> None:
    if not child.running and child.process.returncode not in (0, *expected):
        raise child.failure(f"ended with exit code {child.process.returncode}")
