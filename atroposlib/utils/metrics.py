"""Summaries of lists of numbers for a tracker."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def get_std_min_max_avg(name: str, data: Sequence[float], metrics_dict: dict[str, Any]) -> dict[str, Any]:
    """Add ``<name>_mean``, ``_std`` (of the population), ``_max`` and ``_min`` to ``metrics_dict`` and return it.

    An empty list adds nothing.
    """
    if data:
        values = [float(value) for value in data]
        metrics_dict[f"{name}_mean"] = statistics.fmean(values)
        metrics_dict[f"{name}_std"] = statistics.pstdev(values)
        metrics_dict[f"{name}_max"] = max(values)
        metrics_dict[f"{name}_min"] = min(values)
    return metrics_dict
