"""Whether the response contains the right answer."""

from __future__ import annotations

import re
from typing import Any, Final

from atroposlib.envs.reward_fns.answers.numbers import number
from atroposlib.envs.reward_fns.answers.plain_text import plain
from atroposlib.envs.reward_fns.answers.thoughts import parted
from atroposlib.envs.reward_fns.answers.truth import accepted_answers
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import AnswerReward
from atroposlib.envs.reward_fns.verdict import Verdict, quoted

_NUMBERS: Final = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?(?![\w]|\.\d)")


@registry.register(name="accuracyx")
class AccuracyXReward(AnswerReward):
    """``reward_value`` where what follows the thoughts contains the right answer, else 0.

    The answer must stand there as a whole: a number among its numbers (5 is not in 15, nor in -5), words as whole
    words. With ``exact_match`` the response is the answer and nothing else. Case counts with ``case_sensitive`` only.
    Of a list of truths any one will do. An enumeration of all possible answers contains the right one: where that
    matters, use ``accuracy``.

    Range: 0 or ``reward_value``. Source: parameters of Atropos.
    """

    def __init__(
        self,
        exact_match: bool = False,
        case_sensitive: bool = False,
        reward_value: float = 1.0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.exact_match = exact_match
        self.case_sensitive = case_sensitive
        self.reward_value = reward_value

    def judge_answer(self, text: str, gold: Any) -> Verdict:
        """Look for any accepted answer in the response."""
        response = parted(text).response.strip()
        accepted = accepted_answers(gold)
        found = next((each for each in accepted if self._is_there(each.strip(), response)), None)
        verb = "is" if self.exact_match else "contains"
        if found is None:
            return Verdict(0.0, f"the response {quoted(response)} {verb} none of {', '.join(map(quoted, accepted))}")
        return Verdict(self.reward_value, f"the response {verb} {quoted(found)} (truth)")

    def _is_there(self, gold: str, response: str) -> bool:
        if not gold:
            return False
        if not self.case_sensitive:
            gold, response = gold.casefold(), response.casefold()
        if self.exact_match:
            return " ".join(gold.split()) == " ".join(response.split())
        value = number(plain(gold))
        if value is not None:
            return any(number(each) == value for each in _NUMBERS.findall(response.replace("−", "-")))
        return _contains_words(response, gold)


def _contains_words(text: str, words: str) -> bool:
    """Whether it contains them, not as a part of longer words; runs of blanks are one."""
    text, words = " ".join(text.split()), " ".join(words.split())
    start = text.find(words)
    while start >= 0:
        before, after = text[start - 1 : start], text[start + len(words) : start + len(words) + 1]
        if not (before.isalnum() and words[0].isalnum()) and not (after.isalnum() and words[-1].isalnum()):
            return True
        start = text.find(words, start + 1)
    return False
