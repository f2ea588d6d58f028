"""Metres, as the weights of one quarter (pada): L light, G heavy, x either."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Final

METRES: Final = {
    "anustubh": ("xxxxLGGx", "xxxxLGLx"),
    "indravajra": ("GGLGGLLGLGx",),
    "upendravajra": ("LGLGGLLGLGx",),
    "upajati": ("xGLGGLLGLGx",),
    "salini": ("GGGGGLGGLGx",),
    "rathoddhata": ("GLGLLLGLGLx",),
    "svagata": ("GLGLLLGLLGx",),
    "vamsastha": ("LGLGGLLGLGLx",),
    "indravamsa": ("GGLGGLLGLGLx",),
    "drutavilambita": ("LLLGLLGLLGLx",),
    "bhujangaprayata": ("LGGLGGLGGLGx",),
    "totaka": ("LLGLLGLLGLLx",),
    "vasantatilaka": ("GGLGLLLGLLGLGx",),
    "malini": ("LLLLLLGGGLGGLGx",),
    "sikharini": ("LGGGGGLLLLLGGLLLx",),
    "mandakranta": ("GGGGLLLLLGGLGGLGx",),
    "sardulavikridita": ("GGGLLGLGLLLGGGLGGLx",),
    "sragdhara": ("GGGGLGGLLLLLLGGLGGLGx",),
}
FAMILIES: Final = {
    "tristubh": ("indravajra", "upendravajra", "upajati", "salini", "rathoddhata", "svagata"),
    "jagati": ("vamsastha", "indravamsa", "drutavilambita", "bhujangaprayata", "totaka"),
}


def metre_called(name: str) -> list[tuple[str, ...]]:
    """The patterns of a metre, or of each metre of a family; diacritics and case do not count.

    Raises: ValueError for one that is not known, with those that are.
    """
    bare = "".join(each for each in unicodedata.normalize("NFD", name.lower()) if each.isascii() and each.isalpha())
    bare = {"anushtubh": "anustubh", "sloka": "anustubh", "shloka": "anustubh", "trishtubh": "tristubh"}.get(bare, bare)
    if bare not in METRES and bare not in FAMILIES:
        raise ValueError(f"meter {name!r} is not known; there are {', '.join(sorted([*METRES, *FAMILIES]))}")
    return [METRES[each] for each in FAMILIES.get(bare, (bare,))]


def likeness(lines: Sequence[str], metre: Sequence[str]) -> float:
    """The share of syllables that stand as the metre wants them, of those that are there or should be."""
    quarters = [quarter for line in lines for quarter in _quarters(line, len(metre[0]))]
    if not quarters:
        return 0.0
    wanted = [metre[i % len(metre)] for i in range(len(quarters))]
    fitting = sum(_fitting(quarter, pattern) for quarter, pattern in zip(quarters, wanted, strict=True))
    return fitting / sum(max(len(q), len(p)) for q, p in zip(quarters, wanted, strict=True))


def _quarters(line: str, length: int) -> list[str]:
    """A line of two or more quarters is parted into them."""
    count = max(1, round(len(line) / length))
    return [line[i * length : (i + 1) * length if i < count - 1 else None] for i in range(count)]


def _fitting(quarter: str, pattern: str) -> int:
    return sum(wanted in ("x", weight) for weight, wanted in zip(quarter, pattern, strict=False))
