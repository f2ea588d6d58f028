"""Llama 3 and 4: bare JSON, ``{"name": …, "parameters": {…}}``, perhaps after ``<|python_tag|>``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from atroposlib.tool_call_parsers.base import UNREADABLE_NAME, CallSpan, ToolCall, ToolCallParser, ToolSchemas, call_of
from atroposlib.tool_call_parsers.json_text import JsonError, JsonValue, PatientReader, guess_name
from atroposlib.tool_call_parsers.registry import register_parser
from atroposlib.tool_call_parsers.seeker import Seeker

PYTHON_TAG = "<|python_tag|>"
_LIST_MARKS = re.compile(r"[\s;,\[\]]*")
_NAMED_OBJECT = re.compile(r'\{\s{0,20}"name"')
_BRACE = re.compile(r"\{(?=\s*[\"}])")
"""What may begin an object; the braces of code and of formulas mostly do not."""
_TAG = re.compile(rf"{re.escape(PYTHON_TAG)}{_LIST_MARKS.pattern}")
MAX_FAILURES = 1000
"""Such braces that begin no JSON before the search is given up; it bounds the time a hostile text can take."""


@register_parser("llama3_json")
@register_parser("llama4_json")
class LlamaJsonParser(ToolCallParser):
    """Objects with a name and parameters (or arguments), one after another.

    Bare JSON has no tags to tell a call from an example in prose. It is a call where the message (or what follows the
    python tag) begins with it, where it follows another call, and where it names a tool that was offered.
    """

    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """One span per object that is a call, the marks around it included."""
        reader, seeker = PatientReader(text), Seeker(text)
        position, expected_at, failures = 0, _begin(text, 0), 0
        while failures < MAX_FAILURES and (found := seeker.search(_BRACE, position)):
            brace = found.start()
            expected = brace == expected_at
            read = reader.read(brace)
            if isinstance(read, JsonError):
                if expected and _NAMED_OBJECT.match(text, brace):
                    span = _broken(text, _start(text, position, brace), brace, read)
                    yield span
                    position = expected_at = span.end
                    continue
                failures += 1
                position, expected_at = brace + 1, _expected_after(seeker, brace + 1)
                continue
            if _is_call(read.value) and (expected or schemas.knows(read.value["name"])):
                end = _LIST_MARKS.match(text, read.end).end()  # type: ignore[union-attr]
                yield CallSpan(_start(text, position, brace), end, (_call(read.value, text[brace : read.end]),))
                position, expected_at = end, _begin(text, end)
            else:
                position, expected_at = read.end, _expected_after(seeker, read.end)


def _expected_after(seeker: Seeker, position: int) -> int:
    """Past something that is no call: the next python tag is the next place where one is expected."""
    tag = seeker.search(_TAG, position)
    return tag.end() if tag else -1


def _begin(text: str, position: int) -> int:
    """Where a call that begins at ``position`` has its brace, marks left out."""
    position = _LIST_MARKS.match(text, position).end()  # type: ignore[union-attr]
    if text.startswith(PYTHON_TAG, position):
        position = _LIST_MARKS.match(text, position + len(PYTHON_TAG)).end()  # type: ignore[union-attr]
    return position


def _start(text: str, floor: int, brace: int) -> int:
    """Where the span of a call begins: at the python tag or the bracket before its brace, if there is one."""
    bare = text[floor:brace].rstrip(" \t\r\n;,[")
    if bare.endswith(PYTHON_TAG):
        return floor + len(bare) - len(PYTHON_TAG)
    return brace if bare else floor


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and bool({"arguments", "parameters"} & set(value))
    )


def _call(value: Mapping[str, Any], raw: str) -> ToolCall:
    return call_of(value["name"], value.get("parameters", value.get("arguments")), raw)


def _broken(text: str, start: int, brace: int, read: JsonError | JsonValue) -> CallSpan:
    following = _NAMED_OBJECT.search(text, brace + 1)
    end = following.start() if following else len(text)
    raw = text[brace:end].strip(" \t\r\n;,")
    why = read.message if isinstance(read, JsonError) else ""
    call = ToolCall("", guess_name(raw) or UNREADABLE_NAME, raw, f"the call is not valid JSON: {why}")
    return CallSpan(start, end, (call,))
