"""Where in a text its answer stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_BRACES: Final = re.compile(r"\\(?:boxed|fbox)\s*(\{)?|\\[{}]|[{}]")
_BARE_BOX: Final = re.compile(r"\\[A-Za-z]+|[-+]?[\d.,]+|\S")
_THE_ANSWER: Final = re.compile(r"\banswer\b[*_ ]{0,4}(?:is\b|would be\b|[:=])[*_:=\s]{0,8}", re.IGNORECASE)
_LAST_NUMBER: Final = re.compile(
    r"(?<![\w.])[-+]?[$€£]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?(?:\s?%|\\%)?(?![\w]|\.\d)"
)
_SENTENCE_END: Final = re.compile(r"[.!?](?=\s|$|\*)")
_LONGEST_SENTENCE: Final = 2000
_CONTRASTED: Final = re.compile(
    r"([-+]?[$€£]?\\?\$?\d[^\s;]*(?:\s[^\s,;]+){0,2}?)"  # a number, perhaps with its unit
    r"(?:,\s+(?:(?:and|but)\s+)?not\b|,?\s+(?:rather than|instead of)\b)",
    re.IGNORECASE,
)
_FILLERS: Final = re.compile(
    r"(?:equal to|equals|thus|therefore|simply|just|approximately|about|the|option|choice)\s", re.I
)


@dataclass(frozen=True)
class Found:
    """An answer, and where it was found."""

    text: str
    where: str


def boxes(text: str) -> list[str]:
    r"""The contents of every ``\boxed{…}`` and ``\fbox{…}``, braces balanced, in the order in which they begin.

    ``\boxed 7`` counts; a box that does not close does not.
    """
    found: list[tuple[int, str]] = []
    open_braces: list[int | None] = []  # where the content of a box begins; None for any other brace
    for match in _BRACES.finditer(text):
        token = match.group()
        if match.group(1):
            open_braces.append(match.end())
        elif token[:2] in ("\\b", "\\f"):
            found += _bare_box(text, match.end())
        elif token == "{":
            open_braces.append(None)
        elif token == "}" and open_braces:
            start = open_braces.pop()
            if start is not None:
                found.append((start, text[start : match.start()].strip()))
    return [content for _, content in sorted(found)]


def _bare_box(text: str, end: int) -> list[tuple[int, str]]:
    content = _BARE_BOX.match(text, end)
    return [(end, content.group())] if content else []


def tagged(text: str, tag: str, *, case_sensitive: bool = False) -> list[str]:
    """What stands between every ``</tag>`` and the last ``<tag>`` before it."""
    bare = re.escape(tag)
    found: list[str] = []
    start: int | None = None
    for match in re.finditer(rf"<{bare}>|(</{bare}>)", text, 0 if case_sensitive else re.IGNORECASE):
        if match[1] is None:
            start = match.end()
        elif start is not None:
            found.append(text[start : match.start()])
            start = None
    return found


def marked_answer(text: str) -> Found | None:
    r"""The answer that a text marks as such.

    In the last ``\boxed{…}``; else after the last ``####``; else in the last ``<answer>`` tags; else what is said to be
    the answer.
    """
    if boxed := [content for content in boxes(text) if content]:
        return Found(boxed[-1], r"in the last \boxed{}")
    if "####" in text:
        lines = text.rpartition("####")[2].strip().split("\n", 1)
        if lines[0].strip():
            return Found(lines[0].strip(), "after the last ####")
    if answers := tagged(text, "answer"):
        return _said_answer(answers[-1]) or Found(answers[-1].strip(), "in the last <answer>")
    return _said_answer(text)


def final_answer(text: str) -> Found | None:
    """The marked answer; else the text itself where it is a few words in one line; else its last number; else all."""
    marked = marked_answer(text)
    if marked:
        return marked
    whole = text.strip()
    if whole and "\n" not in whole and len(whole.split(None, 3)) <= 3:
        return Found(whole, "the whole text")
    number = last_number(text)
    if number is not None:
        return Found(number, "the last number")
    return Found(whole, "the whole text") if whole else None


def last_number(text: str) -> str | None:
    """The last number of a text, with its sign, thousands, fraction and percent."""
    last = None
    for match in _LAST_NUMBER.finditer(text):
        last = match.group()
    return last


def _said_answer(text: str) -> Found | None:
    """After the last "the answer is", up to the end of the sentence; of "7, not 8" the 7."""
    for head in reversed([*_THE_ANSWER.finditer(text)]):
        line = text[head.end() : head.end() + _LONGEST_SENTENCE].split("\n", 1)[0]
        sentence = _SENTENCE_END.split(line, maxsplit=1)[0]
        said = sentence.strip(" \t*_`:")
        while (filler := _FILLERS.match(said)) is not None:
            said = said[filler.end() :].lstrip()
        if contrasted := _CONTRASTED.match(said):
            said = contrasted[1].rstrip(",")
        if said:
            return Found(said, "said to be the answer")
    return None
