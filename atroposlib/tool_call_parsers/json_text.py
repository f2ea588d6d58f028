"""JSON as models write it: complete objects inside other text, and the slips that leave no doubt."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

_decoder = json.JSONDecoder(strict=False)  # a literal newline inside a string is a slip that leaves no doubt
_NAME = re.compile(r"""["']name["']\s*:\s*["']([^"'\\]{1,200})["']""")
_LONGEST_LITERAL = 100_000
PATIENCE = 32


@dataclass(frozen=True)
class JsonValue:
    """A value that was read, and where its text ends."""

    value: Any
    end: int


@dataclass(frozen=True)
class JsonError:
    """Why no value could be read, and how many characters were looked at for nothing."""

    message: str
    extent: int = 0


def read_json(text: str, start: int) -> JsonValue | JsonError:
    """The value that begins at ``start`` (or after blanks there), whatever follows it."""
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, end = _decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        looked_at = len(text) if error.msg.startswith("Unterminated") else error.pos
        return JsonError(f"{error.msg} at character {error.pos - start}", looked_at - start)
    except (ValueError, RecursionError) as error:
        return JsonError(str(error), len(text) - start)
    return JsonValue(value, end)


class PatientReader:
    """Reads values of one text for formats without marks, in which each brace may begin a value.

    Unclosed braces inside each other would have the rest of the text read once for each. So what is read for nothing
    is counted, and after ``PATIENCE`` times the text nothing is read any more.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = PATIENCE * len(text)

    def read(self, start: int) -> JsonValue | JsonError:
        """As ``read_json``."""
        if self._left < 0:
            return JsonError("too much broken JSON stands before it")
        read = read_json(self._text, start)
        if isinstance(read, JsonError):
            self._left -= read.extent + 1
        return read


def read_literal(text: str) -> JsonValue | JsonError:
    """A whole text that is a Python dict (single quotes, True, None): the other dialect that models fall into."""
    stripped = text.strip()
    if not stripped.startswith("{") or len(stripped) > _LONGEST_LITERAL:
        return JsonError("not an object")
    try:
        value = ast.literal_eval(stripped)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        return JsonError(f"not an object: {type(error).__name__}")
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return JsonError("an object that JSON cannot express")
    return JsonValue(value, len(text))


def guess_name(text: str) -> str | None:
    """The tool that a broken call most likely meant."""
    found = _NAME.search(text)
    return found.group(1) if found else None
