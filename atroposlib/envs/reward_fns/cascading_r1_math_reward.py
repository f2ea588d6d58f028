"""Accuracy first, and a bonus for form only where the answer is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.accuracy_reward import AccuracyReward
from atroposlib.envs.reward_fns.answers.thoughts import parted
from atroposlib.envs.reward_fns.composite_reward import CompositeReward
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import TextReward
from atroposlib.envs.reward_fns.verdict import Verdict


class ThoughtsFirstReward(TextReward):
    """1 where a completion begins with its only ``<think>…</think>``, else 0; ``<`` may stand anywhere, as in a < b."""

    def judge_text(self, text: str) -> Verdict:
        """Look at the beginning, and count."""
        blocks = len(parted(text).thoughts)
        first = text.lstrip().startswith("<think>") and text.count("<think>") == text.count("</think>") == 1
        return Verdict(
            float(first and blocks == 1), f"{blocks} <think> blocks, {'' if first else 'not '}once and first"
        )


@registry.register(name="cascading_r1_math")
class CascadingR1MathReward(CompositeReward):
    """accuracy, plus ``reward_value`` where it is 1 and the completion begins with its only ``<think>`` block.

    ``tolerance``, ``split_on_think_tag``, ``max_boxed_threshold`` and ``time_limit_s`` are those of ``accuracy``.

    Range: 0, 1 or 1 + ``reward_value`` (1.5). Source: Atropos.
    """

    def __init__(
        self,
        reward_value: float = 0.5,
        tolerance: float = 1e-6,
        split_on_think_tag: bool = True,
        max_boxed_threshold: int = 6,
        time_limit_s: float = 5.0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        accuracy = AccuracyReward(tolerance, split_on_think_tag, max_boxed_threshold, time_limit_s)
        super().__init__([accuracy, ThoughtsFirstReward(name="thoughts_first")], weight=weight, **kwargs)
        self.reward_value = reward_value

    def combine(self, verdicts: Sequence[Sequence[Verdict]]) -> list[Verdict]:
        """Accuracy, and the bonus where it is earned."""
        return [
            Verdict(
                right + (self.reward_value * well_formed if right > 0 else 0.0),
                f"accuracy {right:g}, bonus {self.reward_value * well_formed if right > 0 else 0.0:g}",
            )
            for right, well_formed in verdicts
        ]
