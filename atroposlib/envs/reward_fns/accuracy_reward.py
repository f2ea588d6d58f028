"""Whether the final answer of a completion is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from atroposlib.envs.reward_fns.answers.choices import chosen_letter, is_choice, letter_of
from atroposlib.envs.reward_fns.answers.comparison import as_formula, decided
from atroposlib.envs.reward_fns.answers.extraction import Found, boxes, final_answer, marked_answer
from atroposlib.envs.reward_fns.answers.mathematics import prepare, settle
from atroposlib.envs.reward_fns.answers.truth import accepted_answers
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import AnswerReward, after_thoughts, gold_for_each
from atroposlib.envs.reward_fns.verdict import Verdict, quoted

_LETTERS: Final = tuple("ABCDEFGHIJ")


@dataclass(frozen=True)
class _Claim:
    """An answer beside a truth; ``same`` is None where it takes mathematics to tell."""

    said: Found
    gold: str
    same: bool | None


@registry.register
class AccuracyReward(AnswerReward):
    r"""1 where the final answer says the same as the right one, else 0.

    The answer stands after the last ``</think>`` (anywhere if ``split_on_think_tag`` is off): in the last ``\boxed{}``,
    after the last ``####``, in ``<answer>`` tags, after "the answer is", the whole text if it is short, or its last
    number. Where a comma-separated truth wants several, all boxes together count too. More than
    ``max_boxed_threshold`` boxes are guesses, and 0. A truth may be a whole solution, of which the same places are
    read; of a list of truths any one will do; a truth of one letter from A to J is a choice.

    Numbers are equal if abs(answer - truth) ≤ ``tolerance`` · min(1, max(abs(answer), abs(truth))), integers if they
    are the same; ``10%`` equals 10 and 0.1; units are converted where both are given. Words are equal without regard
    to case. The rest is compared as mathematics by ``math-verify`` in a worker process; what takes longer than
    ``time_limit_s`` there is an error.

    Range: 0 or 1. Source: the rule-based accuracy of DeepSeek-R1 (arXiv 2501.12948, 2.2.2); parameters of Atropos.
    """

    cpu_bound = True

    def __init__(
        self,
        tolerance: float = 1e-6,
        split_on_think_tag: bool = True,
        max_boxed_threshold: int = 6,
        time_limit_s: float = 5.0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.tolerance = float(tolerance)
        self.split_on_think_tag = split_on_think_tag
        self.max_boxed_threshold = max_boxed_threshold
        self.time_limit_s = time_limit_s

    def prepare(self) -> None:
        """Import ``math-verify``, if it is there."""
        prepare()

    def compute(
        self, completions: Sequence[Any], solution: Any = None, ground_truth: Any = None, **_: Any
    ) -> list[float]:
        """Compare with ``ground_truth`` or ``solution``: one answer for all, or a list of one for each.

        Raises: RewardError where there is none, or where a comparison does not come to an end.
        """
        gold = gold_for_each(completions, ground_truth=ground_truth, solution=solution)
        cases = [
            self._claims(self.get_content(each), accepted_answers(right))
            for each, right in zip(completions, gold, strict=True)
        ]
        open_claims = [claim for claims in cases for claim in _undecided(claims)]
        pairs = [(as_formula(claim.said.text), as_formula(claim.gold)) for claim in open_claims]
        equal = {
            id(claim)
            for claim, same in zip(open_claims, settle(pairs, self.tolerance, self.time_limit_s), strict=True)
            if same
        }
        return [self._verdict(claims, equal) for claims in cases]

    def _claims(self, text: str, accepted: Sequence[str]) -> list[_Claim] | str:
        """What is to be compared, the first that matters first; or why there is nothing."""
        said = after_thoughts(text) if self.split_on_think_tag else text
        boxed = boxes(said)
        if len(boxed) > self.max_boxed_threshold:
            return f"{len(boxed)} boxes are guesses, at most {self.max_boxed_threshold} are allowed"
        claims: list[_Claim] = []
        for truth in accepted:
            marked = marked_answer(truth)
            claims += self._claims_about(said, boxed, marked.text if marked else truth.strip())
        return claims or "there is no answer"

    def _claims_about(self, said: str, boxed: Sequence[str], gold: str) -> list[_Claim]:
        if is_choice(gold):
            letter = chosen_letter(said, _LETTERS)
            return [] if letter is None else [_Claim(letter, gold, letter.text == letter_of(gold))]
        answers = [final_answer(said)]
        if len(boxed) > 1 and "," in gold:
            answers.append(Found(", ".join(boxed), "in all boxes"))
        return [_Claim(each, gold, decided(each.text, gold, self.tolerance)) for each in answers if each is not None]

    def _verdict(self, claims: list[_Claim] | str, equal: set[int]) -> Verdict:
        if isinstance(claims, str):
            return Verdict(0.0, claims)
        right = next((each for each in claims if each.same or id(each) in equal), None)
        shown = right or claims[0]
        how = " as mathematics" if shown.same is None else ""
        sign = "=" if right else "≠"
        others = f" and {len(claims) - 1} more" if len(claims) > 1 and not right else ""
        why = f"{quoted(shown.said.text)} ({shown.said.where}) {sign} {quoted(shown.gold)} (truth){how}{others}"
        return Verdict(float(right is not None), why)


def _undecided(claims: list[_Claim] | str) -> list[_Claim]:
    if isinstance(claims, str) or any(claim.same for claim in claims):
        return []
    return [claim for claim in claims if claim.same is None]
