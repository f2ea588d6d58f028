"""The steps of a training as they come: a table that is kept up to date in a terminal, lines everywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from environments.local_run.curve import Point

SHOWN_STEPS = 8
"""Rows of the table."""
STEPS_PER_LINE = 5
"""From one line to the next there are at least so many steps."""


class Progress(Protocol):
    """Shows the steps that are done."""

    def show(self, points: Sequence[Point], more: Mapping[str, str], *, ended: bool = False) -> None:
        """Show all steps so far. ``more``: further columns, with their values at the last step."""


@contextmanager
def progress(console: Console, steps: int) -> Iterator[Progress]:
    """Yield what shows the steps of a training that does ``steps`` of them, in the way that suits ``console``."""
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, refresh_per_second=2) as live:
            yield ProgressTable(live, steps)
    else:
        yield ProgressLines(console, steps)


class ProgressTable:
    """The last steps in a table that stays where it is."""

    def __init__(self, live: Live, steps: int) -> None:
        self._live, self._steps, self._started = live, steps, time.monotonic()

    def show(self, points: Sequence[Point], more: Mapping[str, str], *, ended: bool = False) -> None:
        """Draw the table anew."""
        table = Table(title=f"training, {time.monotonic() - self._started:.0f} s")
        for column in ("step", "reward", "tokens/s", "logprob gap", *more):
            table.add_column(column, justify="right")
        for point in points[-SHOWN_STEPS:]:
            values = _values(point, self._steps).values()
            table.add_row(*values, *(more.values() if point is points[-1] else ()))
        self._live.update(table)


class ProgressLines:
    """A line for the first step, for one every few steps, and for the last one; a console writes each at once."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps, self._started = console, steps, time.monotonic()
        self._printed = 1 - STEPS_PER_LINE
        self._say(f"Training for {steps} steps at most ...")

    def show(self, points: Sequence[Point], more: Mapping[str, str], *, ended: bool = False) -> None:
        """Print the newest step, if it is time for it."""
        since = points[-1].step - self._printed if points else 0
        if since >= STEPS_PER_LINE or (ended and since > 0):
            self._printed = points[-1].step
            values = {**_values(points[-1], self._steps), **more}
            told = ", ".join(f"{name} {value}" for name, value in values.items())
            self._say(f"  {told}, {time.monotonic() - self._started:.0f} s")

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


def _values(point: Point, steps: int) -> dict[str, str]:
    """What is shown of a step, by column."""
    return {
        "step": f"{point.step}/{steps}",
        "reward": f"{point.reward:.3f}",
        "tokens/s": f"{point.tokens_per_s:.0f}",
        "logprob gap": f"{point.logprob_gap:.1e}",
    }
