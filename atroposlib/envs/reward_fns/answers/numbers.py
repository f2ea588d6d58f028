"""Numbers as they are written: exact fractions, with the unit that follows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from atroposlib.envs.reward_fns.answers.units import SCALES, Unit, unit_called

_MOST_DIGITS: Final = 400
_DECIMAL: Final = re.compile(
    r"([-+]?)\s*((?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)?(?:\.\d*)?)"
    r"(?:[eE]([-+]?\d{1,4})|\s*(?:\\times|\\cdot|\*|x)\s*10\s*(?:\^|\*\*)\s*\{?\s*([-+]?\d{1,4})\s*\}?)?"
)
_FRAC: Final = re.compile(r"([-+]?)\s*(\d*)\s*\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))")
_MIXED: Final = re.compile(r"([-+]?)\s*(\d+)[ ]+(\d+)\s*/\s*(\d+)")
_WITH_UNIT: Final = re.compile(
    r"(?P<value>[-+]?(?:[\d.,/ ]|\\[dtc]?frac\s*(?:\{[^{}]*\}|\d)\s*(?:\{[^{}]*\}|\d)|(?<=\d)[eE][-+]?\d)+)"
    r"(?P<unit>(?:\^\s*\{?\s*\\circ\s*\}?|[A-Za-zµΩ]).*)"
)
_PERCENT: Final = re.compile(r"(.*?)\s*(?:\\?%|percent\b|per cent\b)\.?", re.IGNORECASE)
_PER_CENT: Final = Fraction(1, 100)


@dataclass(frozen=True)
class Quantity:
    """A number; ``unit`` where it has one that is known, and ``percent`` where it is one."""

    value: Fraction
    unit: Unit | None = None
    percent: bool = False


def quantity(text: str, *, letters_are_units: bool = False) -> Quantity | None:
    """Read a plain text (see ``plain``) that is a number and nothing else but its unit.

    ``letters_are_units``: ``5m`` can only be 5 metres, since no variable is expected.
    """
    if len(text) > _MOST_DIGITS:
        return None
    percent = _PERCENT.fullmatch(text)
    if percent:
        value = number(percent.group(1))
        return None if value is None else Quantity(value, percent=True)
    value = number(text)
    if value is not None:
        return Quantity(value)
    parted = _WITH_UNIT.fullmatch(text)
    value = number(parted["value"].strip()) if parted else None
    if parted is None or value is None:
        return None
    first, _, rest = parted["unit"].partition(" ")
    if first.lower() in SCALES:
        value *= SCALES[first.lower()]
        return Quantity(value, unit_called(rest, apart=True) if rest else None)
    unit = unit_called(parted["unit"], apart=letters_are_units or parted["value"].endswith(" "))
    return None if unit is None else Quantity(value, unit)


def number(text: str) -> Fraction | None:
    """An integer, a decimal, a fraction or a mixed number, exactly; None for anything else."""
    text = text.strip()
    if not text or len(text) > _MOST_DIGITS:
        return None
    return _decimal(text) if "frac" not in text and "/" not in text else _fraction(text)


def same_quantity(left: Quantity, right: Quantity, tolerance: float) -> bool:
    """Whether they are equal within ``tolerance``: absolute from 1 up, relative below, so that 0 is exact.

    A percentage equals both the number before its sign and a hundredth of it. Units count where both have one that is
    known: 5 km are 5000 m and are not 5 m.
    """
    if left.percent != right.percent:
        part, whole = (left, right) if left.percent else (right, left)
        return any(_close(value, whole.value, tolerance) for value in (part.value, part.value * _PER_CENT))
    if left.unit and right.unit and left.unit.kind and right.unit.kind:
        if left.unit.kind != right.unit.kind:
            return False
        return _close(left.value * left.unit.size, right.value * right.unit.size, tolerance)
    return _close(left.value, right.value, tolerance)


def _close(left: Fraction, right: Fraction, tolerance: float) -> bool:
    if left == right:
        return True
    if left.denominator == right.denominator == 1:
        return abs(left - right) <= Fraction(tolerance) if tolerance >= 1 else False
    return abs(left - right) <= Fraction(tolerance) * min(Fraction(1), max(abs(left), abs(right)))


def _decimal(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text)
    if not match or not any(map(str.isdigit, match[2])):
        return None
    digits = match[2].replace(",", "").replace(" ", "").rstrip(".") or "0"
    exponent = int(match[3] or match[4] or 0)
    if abs(exponent) > _MOST_DIGITS:
        return None
    value = Fraction(f"0{digits}") * Fraction(10) ** exponent
    return -value if match[1] == "-" else value


def _fraction(text: str) -> Fraction | None:
    frac, mixed = _FRAC.fullmatch(text), _MIXED.fullmatch(text)
    if frac:
        sign, whole, over, under = frac[1], frac[2], frac[3] or frac[4] or "", frac[5] or frac[6] or ""
    elif mixed:
        sign, whole, over, under = mixed[1], mixed[2], mixed[3], mixed[4]
    else:
        sign, whole = "", ""
        over, _, under = (part.strip().removeprefix("(").removesuffix(")") for part in text.partition("/"))
    above, below = _decimal(over.strip()), _decimal(under.strip())
    if above is None or not below:
        return None
    value = int(whole or 0) + above / below
    return -value if sign == "-" else value
