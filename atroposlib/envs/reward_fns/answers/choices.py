"""Letters of multiple choice."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def chosen_letter(text: str, letters: Iterable[str]) -> Found | None:
    """The letter that a text chooses: its marked answer, else what it begins with, else the last that stands alone."""
    known = frozenset(letters)
    marked = marked_answer(text)
    letter = letter_of(marked.text if marked else text)
    if letter is not None and letter in known:
        return Found(letter, marked.where if marked else "the whole text")
    if marked:
        return None
    found = [letter for groups in _LETTER.findall(text) for letter in groups if letter in known]
    return Found(found[-1], "the last letter that stands alone") if found else None
