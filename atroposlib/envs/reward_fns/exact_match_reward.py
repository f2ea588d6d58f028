"""Whether an answer is, word for word, the right one."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.reward_fns.answers.extraction import tagged
from atroposlib.envs.reward_fns.answers.truth import accepted_answers
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import AnswerReward, after_thoughts
from atroposlib.envs.reward_fns.verdict import Verdict, quoted


@registry.register
class ExactMatchReward(AnswerReward):
    """1 where the answer equals the right one, else 0.

    The answer is what the last ``<answer>`` tags hold, or else all that follows the last ``</think>``. Blanks at its
    ends do not count, runs of blanks are one; case counts only if ``case_sensitive``. Of a list of truths any one will
    do.

    Range: 0 or 1. Source: exact match as in SQuAD, without the removal of articles and punctuation.
    """

    def __init__(self, case_sensitive: bool = False, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self.case_sensitive = case_sensitive

    def judge_answer(self, text: str, gold: Any) -> Verdict:
        """Compare with every accepted answer."""
        said = after_thoughts(text)
        inside_tags = tagged(said, "answer")
        answer = inside_tags[-1] if inside_tags else said
        accepted = accepted_answers(gold)
        same = any(self._plain(answer) == self._plain(each) for each in accepted)
        sign = "=" if same else "≠"
        return Verdict(float(same), f"{quoted(answer.strip())} {sign} {' or '.join(map(quoted, accepted))} (truth)")

    def _plain(self, text: str) -> str:
        words = " ".join(text.split())
        return words if self.case_sensitive else words.casefold()
