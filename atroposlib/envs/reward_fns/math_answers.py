"""Read answers out of text, and tell whether two of them say the same.

Numbers are compared as numbers (signs, thousands, fractions, percent, units); words as words; everything else as
mathematics, by ``math-verify``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from atroposlib.errors import RewardError

_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s*\{")
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_SAID = re.compile(r"\b(?:final\s+)?answer(?:\s+is|\s*[:=])\s*:?\s*([^\n]+?)\s*(?:\.?\s*$|\.\s|\n)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBER_IN_TEXT = re.compile(r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")
_FRACTION = re.compile(r"([+-]?)\\?[dt]?frac\s*(?:\{\s*([^{}]+?)\s*\}|(\d))\s*(?:\{\s*([^{}]+?)\s*\}|(\d))")
_WRAPPED = re.compile(r"\\(?:text|mathrm|mathbf|textbf|operatorname)\s*\{([^{}]*)\}")
_NAMED = re.compile(r"[A-Za-z]\w?\s*=\s*([^=]+)")
_UNIT = re.compile(r"([+-]?[\d.,/]+)\s*[A-Za-z°][A-Za-z°^23/ ]*")
_MATHEMATICS = re.compile(r"[\\^_=+*/()\[\]{},<>|]|\d")
# What sympy may compute for ever: towers of powers, huge exponents and factorials.
_ENDLESS = re.compile(
    r"\^\s*\{?\s*[^\s{}]*\^|\*\*.*\*\*|(?:\^|\*\*)\s*\{?\s*-?\d{4,}|\d{4,}\s*\}?\s*!|!\s*!|\d{60,}",
)
_LONGEST: Final = 300


def boxes(text: str) -> list[str]:
    r"""The contents of every ``\boxed{…}``, braces balanced, in order; one that does not close is left out."""
    return [content for start in _BOX.finditer(text) if (content := _balanced(text, start.end())) is not None]


def final_answer(text: str) -> str | None:
    r"""The answer a text ends in: its last ``\boxed{…}``, else after its last ``####``, in its last ``<answer>`` tags,
    after "the answer is", the text itself where it is one line, or its last number. None where there is nothing.
    """
    boxed = boxes(text)
    if boxed:
        return boxed[-1]
    if "####" in text:
        return text.rpartition("####")[2].strip().split("\n")[0]
    tagged = _TAGGED.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    said = _SAID.findall(text)
    if said:
        return str(said[-1])
    line = text.strip()
    if line and "\n" not in line and len(line.split()) <= 3:
        return line
    numbers = _NUMBER_IN_TEXT.findall(text)
    return str(numbers[-1]) if numbers else line or None


def same_answer(answer: str, gold: str, tolerance: float) -> bool:
    """Whether both say the same. ``tolerance`` is relative, and absolute below 1.

    Raises: RewardError where that takes ``math-verify`` and it is not installed.
    """
    left, right = plain(answer), plain(gold)
    if left.casefold() == right.casefold():
        return True
    if "=" in left and "=" not in right:
        named = _NAMED.fullmatch(left)
        left = named.group(1).strip() if named else left
    values, wanted = list(numbers_of(left)), list(numbers_of(right))
    if values and wanted:
        return any(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a in values for b in wanted)
    if not _MATHEMATICS.search(left + right):
        return False
    return _same_mathematics(left, right, tolerance)


def plain(text: str) -> str:
    """Without what does not matter: dollar signs, text wrappers, spacing commands, a full stop."""
    text = _WRAPPED.sub(lambda wrapped: wrapped.group(1), text)
    text = text.replace("\\$", "").replace("$", "").replace("\\left", "").replace("\\right", "")
    text = re.sub(r"\\[,;!: ]|~|\\quad", " ", text)
    return " ".join(text.split()).removesuffix(".").strip("* ")


def numbers_of(text: str) -> Iterator[float]:
    """The number a text is, if it is one; a percentage is two: as written and as a part of one."""
    bare = text.replace("\\%", "%").strip()
    if bare.endswith("%"):
        value = _number(bare[:-1].strip())
        if value is not None:
            yield from (value, value / 100)
        return
    unit = _UNIT.fullmatch(bare)
    value = _number(unit.group(1) if unit else bare)
    if value is not None:
        yield value


def _balanced(text: str, start: int) -> str | None:
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end].strip()
    return None


def _number(text: str) -> float | None:
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        sign, *parts = fraction.groups()
        over, under = parts[0] or parts[1], parts[2] or parts[3]
        return _quotient(sign + over, under)
    over, slash, under = text.partition("/")
    if slash:
        return _quotient(over.strip(), under.strip())
    if not _NUMBER.fullmatch(text) or not re.search(r"\d", text):
        return None
    value = float(text.replace(",", ""))
    return value if math.isfinite(value) else None


def _quotient(over: str, under: str) -> float | None:
    if not _NUMBER.fullmatch(over) or not _NUMBER.fullmatch(under):
        return None
    left, right = _number(over), _number(under)
    return None if left is None or not right else left / right


def _same_mathematics(left: str, right: str, tolerance: float) -> bool:
    if max(len(left), len(right)) > _LONGEST or _ENDLESS.search(left) or _ENDLESS.search(right):
        return False
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise RewardError(
            f"comparing {left!r} with {right!r} takes math-verify: pip install 'atroposlib[rewards]'"
        ) from error
    # its own timeouts are signals, which work in the main thread alone
    wanted = parse(f"${right}$", parsing_timeout=None, raise_on_error=False)
    given = parse(f"${left}$", parsing_timeout=None, raise_on_error=False)
    digits = max(1, round(-math.log10(tolerance))) if tolerance > 0 else 12
    return bool(verify(wanted, given, float_rounding=digits, timeout_seconds=None, raise_on_error=False))
