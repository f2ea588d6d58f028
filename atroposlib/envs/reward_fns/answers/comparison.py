"""Whether two answers say the same: as numbers, as words, or, where neither decides, as mathematics."""

from __future__ import annotations

import re
from typing import Final

from atroposlib.envs.reward_fns.answers.numbers import quantity, same_quantity
from atroposlib.envs.reward_fns.answers.plain_text import plain

LONGEST_ANSWER: Final = 1000
"""Characters; what is longer is a text, and no answer that could be compared as mathematics."""
FUNCTIONS: Final = (
    "arccos", "arcsin", "arctan", "sqrt", "cosh", "coth", "sinh", "tanh", "infty",
)  # fmt: skip
_NAMED: Final = re.compile(r"\s*(?:[A-Za-z]|\\[a-z]+)(?:_\w|\([a-z]\))?\s*=\s*([^=,]+)")
_MATHEMATICS: Final = re.compile(r"[\\^_=+*/()\[\]{},<>|!-]|\d")
_LONG_WORD: Final = re.compile(r"(?<![A-Za-z\\{])[A-Za-z]{4,}")
_AROUND_SIGNS: Final = re.compile(r" ?([,()\[\]{}=+*/^<>-]) ?")


def decided(answer: str, gold: str, tolerance: float) -> bool | None:
    """Whether both say the same, as far as numbers and words tell; None where it takes mathematics."""
    left, right = plain(answer), plain(gold)
    if _words(left) == _words(right):
        return True
    if not left or max(len(left), len(right)) > LONGEST_ANSWER:
        return False
    left, right = _unnamed(left, right), _unnamed(right, left)
    wanted = quantity(right)
    given = quantity(left, letters_are_units=wanted is not None)
    if given is not None and wanted is not None:
        return same_quantity(given, wanted, tolerance)
    if _is_prose(left) or _is_prose(right):
        return False
    return None


def as_formula(text: str) -> str:
    """An answer as it is compared as mathematics: ``x = 1 or x = 2`` is ``1,2``."""
    parts = re.split(r" (?:or|and) |, and |, or ", plain(text))
    named = [_NAMED.fullmatch(part) for part in parts]
    if len(parts) > 1 and all(named):
        parts = [each[1] for each in named if each]
    return ",".join(part.strip() for part in parts)


def _words(text: str) -> str:
    return _AROUND_SIGNS.sub(r"\1", text).casefold()


def _unnamed(text: str, other: str) -> str:
    """``x = 5`` beside ``5`` is 5."""
    named = _NAMED.fullmatch(text) if "=" not in other else None
    return named[1].strip() if named else text


def _is_prose(text: str) -> bool:
    """Words, without anything that could be computed; up to three letters may be variables."""
    if len(text) > 1 and not _MATHEMATICS.search(text):
        return text not in ("pi",)
    return any(word.lower() not in FUNCTIONS for word in _LONG_WORD.findall(text))
