"""The learning curve of a run: read from the metrics it wrote, drawn as a PNG and in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class Point:
    """One training step."""

    step: int
    reward: float
    tokens_per_s: float
    logprob_gap: float


def read_curve(metrics: Path) -> list[Point]:
    """The steps that a trainer has written so far."""
    return [
        Point(
            step=int(record["step"]),
            reward=float(record["train/reward_mean"]),
            tokens_per_s=float(record.get("train/tokens_per_s") or 0.0),
            logprob_gap=float(record.get("train/logprob_gap") or 0.0),
        )
        for record in _records(metrics, "train/reward_mean")
    ]


def read_rewards(metrics: Path) -> list[tuple[int, float]]:
    """(step, mean reward) from an environment's metrics: of all rollouts since the entry before.

    A trainer sees less: groups whose rewards are all equal never reach it, so its mean lags behind what was learned.
    """
    return [
        (int(record["step"]), float(record["train/mean_reward"])) for record in _records(metrics, "train/mean_reward")
    ]


def newest_value(metrics: Path, key: str) -> float:
    """What an environment wrote last under ``key``; 0 where it never did."""
    records = _records(metrics, key)
    return float(records[-1][key]) if records else 0.0


def _records(metrics: Path, key: str) -> list[dict[str, Any]]:
    """The entries with ``key``; a last line that is still being written is left for the next read."""
    if not metrics.exists():
        return []
    records = [json.loads(line) for line in metrics.read_text().split("\n")[:-1]]
    return [record for record in records if key in record]


def draw_png(rewards: Sequence[tuple[int, float]], marks: dict[str, float], target: Path) -> None:
    """Draw the mean reward over the steps, and a dashed line for each held-out success rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*_smooth(rewards), label="mean reward of training rollouts")
    axes.scatter([step for step, _ in rewards], [reward for _, reward in rewards], s=6, alpha=0.4)
    for shade, (name, rate) in zip(("0.75", "0.5", "0.1"), marks.items(), strict=False):
        axes.axhline(rate, linestyle="--", color=shade, label=f"held-out success, {name}")
    axes.set(xlabel="training step", ylabel="reward, success rate", ylim=(0, 1.03))
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(target, dpi=120)


def draw_text(rewards: Sequence[tuple[int, float]], width: int = 64, height: int = 12) -> str:
    """The same curve in characters."""
    import plotille

    figure = plotille.Figure()
    figure.width, figure.height, figure.with_colors = width, height, False
    figure.x_label, figure.y_label = "training step", "reward"
    figure.set_y_limits(0, 1)
    figure.set_x_limits(0, max((step for step, _ in rewards), default=1))
    figure.x_ticks_fkt = lambda low, high: f"{low:.0f}"
    figure.y_ticks_fkt = lambda low, high: f"{low:.2f}"
    figure.plot(*_smooth(rewards))
    return str(figure.show())


def _smooth(rewards: Sequence[tuple[int, float]], window: int = 5) -> tuple[list[int], list[float]]:
    """Steps, and the mean of the last ``window`` rewards at each."""
    values = [reward for _, reward in rewards]
    means = [fmean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]
    return [step for step, _ in rewards], means
