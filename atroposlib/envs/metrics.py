"""The numbers that every environment reports about its rollouts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atroposlib.tracking import Table


def describe_lengths(lengths: Sequence[float], longest: int) -> dict[str, Any]:
    """Mean, spread and extremes of completion lengths, in tokens; ``longest`` is the limit, 0 or less for none."""
    if not lengths:
        return {}
    metrics: dict[str, Any] = {
        "train/completion_lengths": statistics.fmean(lengths),
        "train/completion_lengths_std": statistics.pstdev(lengths),
        "train/completion_lengths_min": min(lengths),
        "train/completion_lengths_max": max(lengths),
        "train/completion_lengths_p95": percentile(lengths, 0.95),
    }
    if longest > 0:
        metrics["train/completion_lengths_near_limit"] = sum(n > 0.95 * longest for n in lengths) / len(lengths)
    return metrics


def describe_durations(durations: Iterable[float]) -> dict[str, Any]:
    """How long the last groups took, in seconds."""
    seconds = list(durations)
    if not seconds:
        return {}
    return {
        "train_perf/group_seconds_mean": statistics.fmean(seconds),
        "train_perf/group_seconds_p50": percentile(seconds, 0.5),
        "train_perf/group_seconds_p95": percentile(seconds, 0.95),
        "train_perf/group_seconds_max": max(seconds),
    }


def describe_counts(name: str, counts: Counter[str]) -> dict[str, Any]:
    """``<name>/<reason>`` for each reason seen, and their sum."""
    return {f"{name}/{reason}": count for reason, count in counts.items()} | {f"{name}_total": counts.total()}


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rollout_table(groups: Iterable[Iterable[Sequence[Any]]]) -> Table | None:
    """Rows of text and score from the kept rollouts; ``None`` where there are none."""
    rows = [list(row) for group in groups for row in group]
    if not rows:
        return None
    width = max(len(row) for row in rows)
    names = ["text", "score", *(f"column_{number}" for number in range(3, width + 1))]
    return Table(names[:width], [row + [None] * (width - len(row)) for row in rows])


def rollout_text(group: Mapping[str, Any], index: int, decode: Any) -> str:
    """One rollout as text: its messages, or its tokens where a ``decode`` function is at hand."""
    messages = (group.get("messages") or [])[index : index + 1]
    if messages and messages[0]:
        return "\n\n".join(_message_text(message) for message in messages[0])
    if decode is not None:
        return str(decode(list(group["tokens"][index])))
    return "(no messages)"


def _message_text(message: Any) -> str:
    if not isinstance(message, Mapping):
        return str(message)
    text = f"[{message.get('role')}] {message.get('content') or ''}"
    for call in message.get("tool_calls") or ():
        text += f"\n-> {call.get('function') if isinstance(call, Mapping) else call}"
    return text
