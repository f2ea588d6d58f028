"""Success rates with their uncertainty, read from what an ``evaluate`` run wrote."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SuccessRate:
    """``successes`` of ``items`` with full reward; ``low`` and ``high`` bound the rate at 95 %."""

    successes: int
    items: int

    @property
    def rate(self) -> float:
        return self.successes / self.items

    @property
    def low(self) -> float:
        return self._bounds()[0]

    @property
    def high(self) -> float:
        return self._bounds()[1]

    def _bounds(self) -> tuple[float, float]:
        """Wilson's score interval (E. B. Wilson, JASA 22, 1927), right also near 0 and 1."""
        z, n, p = 1.959964, self.items, self.rate
        centre = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, centre - half), min(1.0, centre + half)

    def __str__(self) -> str:
        return f"{self.rate:6.1%}  [{self.low:.1%}, {self.high:.1%}]  {self.successes}/{self.items}"


def read_success_rate(samples: Path) -> SuccessRate:
    """Count the samples of a ``samples.jsonl`` whose reward is full (1.0).

    Raises: FileNotFoundError, ValueError where the file holds no sample with a reward.
    """
    rewards = [json.loads(line).get("reward") for line in samples.read_text().splitlines() if line.strip()]
    known = [float(reward) for reward in rewards if reward is not None]
    if not known:
        raise ValueError(f"{samples} holds no sample with a reward")
    return SuccessRate(successes=sum(reward >= 1.0 - 1e-9 for reward in known), items=len(known))
