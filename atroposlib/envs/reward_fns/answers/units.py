"""Units of measure: which of them can be compared, and how large they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_DEGREES: Final = re.compile(r"\^?\s*\{?\s*\\circ\s*\}?\s*([A-Za-z]?)")
_COMPOUND: Final = re.compile(r"([A-Za-zµΩ]+)(?:\s*\^\s*\{?[23]\}?)?(?:\s*/\s*([A-Za-z]+)(?:\s*\^\s*\{?[23]\}?)?)?")
_WORDS: Final = re.compile(r"[A-Za-z]{3,}(?:[ -][A-Za-z]+){0,5}")
_NO_UNITS: Final = frozenset(
    {
        "and",
        "or",
        "to",
        "than",
        "plus",
        "minus",
        "times",
        "over",
        "mod",
        "not",
        "exp",
        "log",
        "sin",
        "cos",
        "tan",
        "sqrt",
    }
)


@dataclass(frozen=True)
class Unit:
    """``kind`` is what it measures, ``""`` for one that is not compared; ``size`` is in the base unit of its kind."""

    kind: str
    size: Fraction = Fraction(1)


_TABLE: Final = {
    "length": {
        "mm millimeter millimetre": "1/1000", "cm centimeter centimetre": "1/100", "m meter metre": "1",
        "km kilometer kilometre": "1000", "in inch inches": "0.0254", "ft foot feet": "0.3048", "yd yard": "0.9144",
        "mi mile": "1609.344",
    },
    "mass": {
        "mg milligram": "1/1000000", "g gram": "1/1000", "kg kilogram": "1", "lb lbs pound": "0.45359237",
        "oz ounce": "0.028349523125",
    },
    "time": {
        "ms millisecond": "1/1000", "s sec second": "1", "min minute": "60", "h hr hour": "3600", "day": "86400",
        "week": "604800",
    },
    "volume": {"ml milliliter millilitre": "1/1000", "l liter litre": "1"},
    "money": {"cent": "1/100", "dollar usd": "1"},
    "angle": {"degree deg": "1"},
}  # fmt: skip
_UNITS: Final = {
    name: Unit(kind, Fraction(size))
    for kind, sizes in _TABLE.items()
    for names, size in sizes.items()
    for name in names.split()
}
SCALES: Final = {
    "dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip


def unit_called(text: str, *, apart: bool) -> Unit | None:
    """The unit of this name; None for what is no unit, such as a variable or a formula.

    ``apart``: there was a blank before it. Without one, a single letter is a variable and an unknown word is a product
    of several; with one, an unknown word is what is counted ("18 eggs").
    """
    text = text.strip()
    degrees = _DEGREES.fullmatch(text)
    if degrees:
        return Unit(f"temperature {degrees[1]}" if degrees[1] else "angle")
    known = _known(text)
    if known is not None:
        return known if apart or len(text) > 1 else None
    compound = _COMPOUND.fullmatch(text)
    if compound and all(_known(part) for part in compound.groups() if part):
        return Unit("")
    words = _WORDS.fullmatch(text)
    return Unit("") if apart and words and not _NO_UNITS & {*text.lower().split()} else None


def _known(text: str) -> Unit | None:
    return _UNITS.get(text) or _UNITS.get(text.lower()) or _UNITS.get(text.lower().removesuffix("s"))
