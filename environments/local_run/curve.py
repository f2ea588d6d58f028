"""The learning curve of a run: read from the trainer's metrics, drawn as a PNG and in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Point:
    """One training step."""

    step: int
    reward: float
    tokens_per_s: float
    logprob_gap: float


def read_curve(metrics: Path) -> list[Point]:
    """The steps written so far; a last line that is still being written is left for the next read."""
    if not metrics.exists():
        return []
    points = []
    for line in metrics.read_text().split("\n")[:-1]:
        record = json.loads(line)
        if "train/reward_mean" in record:
            points.append(
                Point(
                    step=int(record["step"]),
                    reward=float(record["train/reward_mean"]),
                    tokens_per_s=float(record.get("train/tokens_per_s") or 0.0),
                    logprob_gap=float(record.get("train/logprob_gap") or 0.0),
                )
            )
    return points


def draw_png(points: Sequence[Point], marks: dict[str, float], target: Path) -> None:
    """Draw the mean reward of each batch over the steps, and a dashed line for each held-out success rate."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([p.step for p in points], [p.reward for p in points], marker=".", label="mean reward of the batch")
    for shade, (name, rate) in zip(("0.75", "0.5", "0.1"), marks.items(), strict=False):
        axes.axhline(rate, linestyle="--", color=shade, label=f"held-out success, {name}")
    axes.set(xlabel="training step", ylabel="reward, success rate", ylim=(0, 1.03))
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(target, dpi=120)


def draw_text(points: Sequence[Point], width: int = 64, height: int = 12) -> str:
    """The same curve in characters."""
    import plotille

    figure = plotille.Figure()
    figure.width, figure.height, figure.with_colors = width, height, False
    figure.x_label, figure.y_label = "training step", "reward"
    figure.set_y_limits(0, 1)
    figure.x_ticks_fkt = lambda low, high: f"{low:.0f}"
    figure.y_ticks_fkt = lambda low, high: f"{low:.2f}"
    figure.plot([p.step for p in points], [p.reward for p in points])
    return str(figure.show())
