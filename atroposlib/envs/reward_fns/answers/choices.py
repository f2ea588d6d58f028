"""Letters of multiple choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from atroposlib.envs.reward_fns.answers.extraction import Found, marked_answer
from atroposlib.envs.reward_fns.answers.plain_text import plain

_ALONE: Final = re.compile(
    r"(?:option|choice|answer)?\s{0,3}[(\[]?([A-Za-z])[)\]]?(?:\s{0,3}[.):,]\s.*|[.):,]?)", re.DOTALL | re.IGNORECASE
)
_LETTER: Final = re.compile(
    r"(?<![A-Za-z0-9'’\\])(?:\(([A-Z])\)|\[([A-Z])\]|\*\*([A-Z])\*\*|(?:[Oo]ption|[Cc]hoice|[Aa]nswer) ([A-Z])"
    r"|([A-Z])(?=[).:]|$|\n| is (?:correct|right|the answer)))(?![A-Za-z0-9'’])"
)


def is_choice(gold: str) -> bool:
    """Whether a right answer is the letter of a choice: ``C``, ``(C)`` or ``C.``"""
    return re.fullmatch(r"\(?[A-J]\)?[.:]?", plain(gold)) is not None


def letter_of(text: str) -> str | None:
    """The letter that a short answer is, or begins with: ``(b) Paris`` is B."""
    match = _ALONE.fullmatch(plain(text))
    return match[1].upper() if match else None


def chosen_letter(text: str, letters: Sequence[str]) -> Found | None:
    """The letter that a text chooses: its marked answer, else what it begins with, else the last that stands alone."""
    marked = marked_answer(text)
    if marked:
        letter = letter_of(marked.text)
        return Found(letter, marked.where) if letter is not None and letter in letters else None
    whole = letter_of(text)
    if whole in letters and whole is not None:
        return Found(whole, "the whole text")
    found = [letter for groups in _LETTER.findall(text) for letter in groups if letter in letters]
    return Found(found[-1], "the last letter that stands alone") if found else None
