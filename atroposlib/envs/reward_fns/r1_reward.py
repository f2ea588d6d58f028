"""Format and accuracy, as R1 was trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.accuracyx_reward import AccuracyXReward
from atroposlib.envs.reward_fns.composite_reward import CompositeReward
from atroposlib.envs.reward_fns.formatreasoning_reward import FormatReasoningReward
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.verdict import Verdict


@registry.register
class R1Reward(CompositeReward):
    """``format_weight`` · formatreasoning + ``accuracy_weight`` · accuracyx, each of them 0 or 1.

    Range: 0 to ``format_weight`` + ``accuracy_weight`` (1.5). Source: DeepSeek-R1 (arXiv 2501.12948, 2.2.2); parameters
    of Atropos.
    """

    def __init__(
        self, format_weight: float = 0.5, accuracy_weight: float = 1.0, weight: float = 1.0, **kwargs: Any
    ) -> None:
        parts = [
            FormatReasoningReward(reward_value=1.0, weight=format_weight),
            AccuracyXReward(reward_value=1.0, weight=accuracy_weight),
        ]
        super().__init__(parts, weight=weight, **kwargs)

    def combine(self, verdicts: Sequence[Sequence[Verdict]]) -> list[Verdict]:
        """The weighted sum."""
        shape, accuracy = self.reward_functions
        return [
            Verdict(
                shape.weight * well_formed + accuracy.weight * right,
                f"{shape.weight:g}·format {well_formed:g} + {accuracy.weight:g}·accuracy {right:g}",
            )
            for well_formed, right in verdicts
        ]
