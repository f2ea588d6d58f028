"""From scores to advantages, within one group."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import fmean

_SMALLEST_DEVIATION = 1e-8


def group_advantages(scores: Sequence[float], rollouts: Sequence[Hashable]) -> list[float]:
    """``(score - mean) / deviation`` for every sequence, mean and deviation being taken over *rollouts*.

    ``rollouts[i]`` says which rollout sequence i is part of. A rollout that was recorded as several sequences counts
    once, with the mean of their scores, so that a long history does not pull the group's baseline. The deviation is
    the population's; where all scores are equal every advantage is 0. A group of one rollout has no baseline: its
    score is its advantage.

    Source: GRPO, Shao et al. 2024 (DeepSeekMath), section 4.1.2.
    """
    by_rollout: dict[Hashable, list[float]] = {}
    for score, rollout in zip(scores, rollouts, strict=True):
        by_rollout.setdefault(rollout, []).append(score)
    values = {rollout: fmean(own) for rollout, own in by_rollout.items()}
    if len(values) == 1:
        return [values[rollout] for rollout in rollouts]
    mean = fmean(values.values())
    deviation = fmean((value - mean) ** 2 for value in values.values()) ** 0.5
    return [(values[rollout] - mean) / max(deviation, _SMALLEST_DEVIATION) for rollout in rollouts]
