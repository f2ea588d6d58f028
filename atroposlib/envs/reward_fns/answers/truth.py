"""Right answers as datasets hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from atroposlib.errors import RewardError


def accepted_answers(gold: Any) -> list[str]:
    """The texts of which any one will do: of a list, a tuple or a set each one, of anything else its text.

    Raises: RewardError for a mapping or an empty list, which are no answers.
    """
    if isinstance(gold, Mapping):
        raise RewardError(f"the right answer is a mapping of {', '.join(map(str, gold))}: name the field that is meant")
    if isinstance(gold, str) or not isinstance(gold, Iterable):
        return [text_of(gold)]
    several = [answer for each in gold for answer in accepted_answers(each)]
    if not several:
        raise RewardError("the list of right answers is empty")
    return several


def text_of(gold: Any) -> str:
    """One right answer as text; 5.0 is ``5``."""
    if isinstance(gold, float) and gold.is_integer() and abs(gold) < 1e15:
        return str(int(gold))
    return str(gold)
