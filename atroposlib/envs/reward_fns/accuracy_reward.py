"""Whether the final answer of a completion is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.math_answers import boxes, final_answer, same_answer
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, after_thoughts, gold_for_each


@registry.register
class AccuracyReward(RewardFunction):
    r"""1 where the final answer says the same as the right one, else 0.

    The answer is looked for after the last ``</think>`` (unless ``split_on_think_tag`` is off), see ``final_answer``;
    where the right answer is a list, all of several boxes are it. More than ``max_boxed_threshold`` boxes are guesses,
    and 0.
    """

    cpu_bound = True
    independent = True

    def __init__(
        self,
        tolerance: float = 1e-6,
        split_on_think_tag: bool = True,
        max_boxed_threshold: int = 6,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.tolerance = float(tolerance)  # YAML reads 1e-6 as a text
        self.split_on_think_tag = split_on_think_tag
        self.max_boxed_threshold = max_boxed_threshold

    def compute(
        self, completions: Sequence[Any], solution: Any = None, ground_truth: Any = None, **_: Any
    ) -> list[float]:
        """Compare with ``solution`` or ``ground_truth``: one answer for all, or a list. Raises: RewardError."""
        gold = gold_for_each(completions, solution=solution, ground_truth=ground_truth)
        texts = [self.get_content(completion) for completion in completions]
        return [self._score(text, _gold_answer(right)) for text, right in zip(texts, gold, strict=True)]

    def _score(self, text: str, gold: str) -> float:
        said = after_thoughts(text) if self.split_on_think_tag else text
        boxed = boxes(said)
        if len(boxed) > self.max_boxed_threshold:
            return 0.0
        if len(boxed) > 1 and "," in gold and same_answer(", ".join(boxed), gold, self.tolerance):
            return 1.0
        answer = final_answer(said)
        return float(answer is not None and same_answer(answer, gold, self.tolerance))


def _gold_answer(gold: Any) -> str:
    r"""The answer in a right solution: after ``####`` or in the last box, else all of it."""
    text = str(gold)
    boxed = boxes(text)
    if boxed:
        return boxed[-1]
    return text.rpartition("####")[2].strip() if "####" in text else text.strip()
