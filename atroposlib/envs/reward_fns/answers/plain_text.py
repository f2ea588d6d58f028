"""Answers without what does not matter."""

from __future__ import annotations

import re
from typing import Final

_SIGNS: Final = str.maketrans(
    {
        "−": "-", "–": "-", "‐": "-", "‑": "-", "＋": "+", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/",
        "⁄": "/", "∕": "/", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ",
        "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "±": r"\pm ", "°": r"^\circ ", "％": "%", "，": ",", "．": ".",
        "（": "(", "）": ")", "：": ":", "“": '"', "”": '"', "’": "'", "‘": "'",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2002": " ", "\u2003": " ", "\u200b": "", "\u2060": "",
        "\ufeff": "",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "⅕": r"\frac{1}{5}", "⅛": r"\frac{1}{8}", "²": "^2", "³": "^3", "⁴": "^4", "√": r"\sqrt",
        **{chr(ord("０") + digit): str(digit) for digit in range(10)},
    }
)  # fmt: skip
_WRAPPER: Final = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACING: Final = re.compile(
    r"(?<!\\)\\(?:[,;!: ]|quad\b|qquad\b|thinspace\b)|~|\\(?:left|right|displaystyle)(?![A-Za-z])"
)
_DELIMITERS: Final = re.compile(r"\\[()\[\]]|(?<!\\)\$")
_THOUSANDS: Final = re.compile(r"(?<=\d)\{,\}(?=\d)")
_MONEY: Final = re.compile(r"\\\$|[€£¥]")


def plain(text: str) -> str:
    r"""Without the delimiters of mathematics, ``\text``, spacing commands, currency, emphasis and the full stop."""
    text = text.translate(_SIGNS)
    text = _WRAPPER.sub(r" \1 ", text)
    text = _THOUSANDS.sub(",", _MONEY.sub("", text))
    text = _DELIMITERS.sub("", _SPACING.sub(" ", text))
    words = " ".join(text.split()).strip("*_`\"' ")
    return words.removesuffix(".").rstrip("*_`\"' ")
