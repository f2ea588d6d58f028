"""Choose the best of several alternatives."""

from __future__ import annotations

from collections.abc import Sequence


def select_best_index(
    primary_scores: Sequence[float],
    secondary_scores: Sequence[float],
    primary_higher_is_better: bool = True,
    secondary_lower_is_better: bool = True,
) -> int:
    """Return the index of the best primary score; among equals, of the best secondary score; then the first.

    Raises: ValueError where the scores are not as many, or there are none.
    """
    if not primary_scores or len(primary_scores) != len(secondary_scores):
        raise ValueError(f"needs as many primary as secondary scores: {len(primary_scores)}, {len(secondary_scores)}")
    primary_sign = -1 if primary_higher_is_better else 1
    secondary_sign = 1 if secondary_lower_is_better else -1
    return min(
        range(len(primary_scores)),
        key=lambda i: (primary_sign * primary_scores[i], secondary_sign * secondary_scores[i]),
    )
