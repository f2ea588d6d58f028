"""Several rewards as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from atroposlib.envs.reward_fns.composite_reward import CompositeReward
from atroposlib.envs.reward_fns.registry import RewardConfig, registry
from atroposlib.envs.reward_fns.verdict import Verdict

Normalization = Literal["none", "sum", "minmax"]


@registry.register
class CombinedReward(CompositeReward):
    """Σ weight·reward, as it is or normalized.

    ``normalization``: "none" leaves it; "sum" divides by Σ weight, so that parts from 0 to 1 stay there; "minmax" maps
    the least of the completions at hand to 0 and the greatest to 1, and leaves them where all are equal. A part that
    cannot judge a completion fails that completion.

    Range: that of the parts with "sum", 0 to 1 with "minmax", else Σ weight times theirs. Source: Atropos.
    """

    def __init__(
        self, rewards: Sequence[RewardConfig], normalization: Normalization = "none", weight: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__([registry.create(each) for each in rewards], weight=weight, **kwargs)
        if normalization not in get_args(Normalization):
            raise ValueError(f"normalization {normalization!r} is none of {', '.join(get_args(Normalization))}")
        self.normalization = normalization
        if normalization == "sum" and self._total_weight() <= 0:
            raise ValueError("the weights of the rewards must have a positive sum")

    @property
    def name(self) -> str:
        """``combined(a,b)`` unless it was given a name."""
        return self._name or f"combined({','.join(each.name for each in self.reward_functions)})"

    def combine(self, verdicts: Sequence[Sequence[Verdict]]) -> list[Verdict]:
        """Sum up, and normalize."""
        sums = [self._sum(each) for each in verdicts]
        formulas = [self._formula(each) for each in verdicts]
        if self.normalization == "sum":
            total = self._total_weight()
            return [Verdict(s / total, f"({f}) / {total:g}") for s, f in zip(sums, formulas, strict=True)]
        if self.normalization == "minmax" and sums and max(sums) > min(sums):
            least, span = min(sums), max(sums) - min(sums)
            why = f" between {least:g} and {max(sums):g}"
            return [Verdict((s - least) / span, f + why) for s, f in zip(sums, formulas, strict=True)]
        return [Verdict(s, f) for s, f in zip(sums, formulas, strict=True)]

    def _total_weight(self) -> float:
        return sum(each.weight for each in self.reward_functions)

    def _sum(self, verdicts: Sequence[Verdict]) -> float:
        return sum(each.weight * verdict for each, verdict in zip(self.reward_functions, verdicts, strict=True))

    def _formula(self, verdicts: Sequence[Verdict]) -> str:
        pairs = zip(self.reward_functions, verdicts, strict=True)
        return " + ".join(f"{each.weight:g}·{each.name} {verdict:g}" for each, verdict in pairs)
