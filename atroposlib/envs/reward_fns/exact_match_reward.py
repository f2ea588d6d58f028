"""Whether an answer is, word for word, the right one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, after_thoughts, gold_for_each

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


@registry.register
class ExactMatchReward(RewardFunction):
    """1 where the answer equals the right one, else 0.

    The answer is what the last ``<answer>`` tags hold, or else all that follows the last ``</think>``. Blanks at its
    ends do not count, runs of blanks are one; case counts only if ``case_sensitive``.
    """

    def __init__(self, case_sensitive: bool = False, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self.case_sensitive = case_sensitive

    def compute(
        self, completions: Sequence[Any], solution: Any = None, ground_truth: Any = None, **_: Any
    ) -> list[float]:
        """Compare with ``solution`` or ``ground_truth``: one text for all, or a list. Raises: RewardError."""
        gold = gold_for_each(completions, solution=solution, ground_truth=ground_truth)
        answers = [_answer(self.get_content(completion)) for completion in completions]
        return [float(self._plain(a) == self._plain(str(g))) for a, g in zip(answers, gold, strict=True)]

    def _plain(self, text: str) -> str:
        words = " ".join(text.split())
        return words if self.case_sensitive else words.casefold()


def _answer(text: str) -> str:
    said = after_thoughts(text)
    tagged = _ANSWER.findall(said)
    return str(tagged[-1]) if tagged else said
