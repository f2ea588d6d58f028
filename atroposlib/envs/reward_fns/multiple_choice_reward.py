"""Whether the right one of several choices was taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.envs.reward_fns.answers.choices import chosen_letter, letter_of
from atroposlib.envs.reward_fns.answers.extraction import Found, marked_answer
from atroposlib.envs.reward_fns.answers.plain_text import plain
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction, after_thoughts, gold_for_each, item_of_each
from atroposlib.envs.reward_fns.verdict import Verdict, quoted
from atroposlib.errors import RewardError


@registry.register
class MultipleChoiceReward(RewardFunction):
    r"""1 where the letter that was chosen is the right one, else 0.

    The choice is read after the last ``</think>``: the letter in the last ``\boxed{}``, after ``####``, in
    ``<answer>``, after "the answer is"; else the letter with which the text begins ("B) Paris"); else the last letter
    that stands alone. Where ``choices_field`` names the list of choices in the item, the text of a choice counts as
    its letter.

    The truth is a letter, or a number from ``first_index`` up, or the text of a choice.

    Range: 0 or 1. Source: exact-match scoring of MMLU by letter.
    """

    independent = True

    def __init__(
        self,
        letters: str = "ABCDEFGHIJ",
        choices_field: str | None = None,
        first_index: int = 0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.letters = tuple(letters.upper())
        self.choices_field = choices_field
        self.first_index = first_index

    def compute(
        self,
        completions: Sequence[Any],
        solution: Any = None,
        ground_truth: Any = None,
        item: Any = None,
        **_: Any,
    ) -> list[Verdict]:
        """Read the choice of each completion. Raises: RewardError where the truth is no choice."""
        gold = gold_for_each(completions, ground_truth=ground_truth, solution=solution)
        items = item_of_each(completions, item)
        return [
            self._judge(self.get_content(completion), right, self._choices(each))
            for completion, right, each in zip(completions, gold, items, strict=True)
        ]

    def _judge(self, text: str, gold: Any, choices: Mapping[str, str]) -> Verdict:
        right = self._letter_of_truth(gold, choices)
        said = after_thoughts(text)
        chosen = chosen_letter(said, self._letters(choices)) or _letter_of_choice(said, choices)
        if chosen is None:
            return Verdict(0.0, f"no letter is chosen; {right} is right")
        sign = "=" if chosen.text == right else "≠"
        return Verdict(float(chosen.text == right), f"{chosen.text} ({chosen.where}) {sign} {right} (truth)")

    def _letters(self, choices: Mapping[str, str]) -> Sequence[str]:
        return tuple(choices) or self.letters

    def _choices(self, item: Any) -> dict[str, str]:
        if self.choices_field is None:
            return {}
        found = item.get(self.choices_field) if isinstance(item, Mapping) else None
        if isinstance(found, Mapping) and "text" in found:  # as in ARC: {"label": [...], "text": [...]}
            found = found["text"]
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) > len(self.letters):
            raise RewardError(f"multiple_choice: the item has no list of choices in its field {self.choices_field!r}")
        return dict(zip(self.letters, map(str, found), strict=False))

    def _letter_of_truth(self, gold: Any, choices: Mapping[str, str]) -> str:
        letters = self._letters(choices)
        if isinstance(gold, int) and not isinstance(gold, bool):
            index = gold - self.first_index
            if 0 <= index < len(letters):
                return letters[index]
            raise RewardError(f"multiple_choice: the right answer {gold} is the index of no choice")
        by_text = _letter_of_choice(str(gold), choices)
        if by_text is not None:
            return by_text.text
        letter = letter_of(str(gold))
        if letter in letters and letter is not None:
            return letter
        if str(gold).strip().isdigit():
            return self._letter_of_truth(int(gold), choices)
        raise RewardError(f"multiple_choice: the right answer {quoted(gold)} is none of {', '.join(letters)}")


def _letter_of_choice(text: str, choices: Mapping[str, str]) -> Found | None:
    """The letter whose text it is, as a marked answer or as a whole."""
    marked = marked_answer(text)
    said = plain(marked.text if marked else text).casefold()
    letters = [letter for letter, choice in choices.items() if plain(choice).casefold() == said]
    return Found(letters[0], "the text of the choice") if len(letters) == 1 else None
