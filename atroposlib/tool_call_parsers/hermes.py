"""Hermes and Qwen: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atroposlib.tool_call_parsers.base import (
    MAX_CALLS,
    UNREADABLE_NAME,
    CallSpan,
    ToolCall,
    ToolCallParser,
    ToolSchemas,
    call_of,
)
from atroposlib.tool_call_parsers.json_text import JsonError, JsonValue, guess_name, read_json, read_literal
from atroposlib.tool_call_parsers.registry import register_parser

MAX_STRAY = 2
"""Characters between the JSON and the closing tag that are a slip (one brace too many), not content."""


@register_parser("hermes")
@register_parser("qwen")
class HermesParser(ToolCallParser):
    """JSON between tags. The JSON decides where a call ends, so that a tag inside a string is part of the string."""

    open_tag = "<tool_call>"
    close_tag = "</tool_call>"

    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """One span per opening tag."""
        start = text.find(self.open_tag)
        while start >= 0:
            span = self._read(text, start)
            yield span
            start = text.find(self.open_tag, span.end)

    def _read(self, text: str, start: int) -> CallSpan:
        inside = start + len(self.open_tag)
        read = read_json(text, inside)
        if isinstance(read, JsonValue) and isinstance(read.value, (dict, list)):
            end = self._after_close(text, read.end)
            return CallSpan(start, end, self._calls(read.value, text[inside : read.end].strip()))
        end = self._end_of_broken(text, inside)
        raw = text[inside:end].removesuffix(self.close_tag).strip()
        literal = read_literal(raw)
        if isinstance(literal, JsonValue):
            return CallSpan(start, end, self._calls(literal.value, raw))
        problem = read.message if isinstance(read, JsonError) else "not an object"
        return CallSpan(start, end, (_broken(raw, f"the call is not valid JSON: {problem}"),))

    def _calls(self, value: Any, raw: str) -> tuple[ToolCall, ...]:
        """The calls of one block: one object, or a list of them."""
        entries = value if isinstance(value, list) else [value]
        if not entries or not all(isinstance(entry, dict) for entry in entries):
            return (_broken(raw, "a call must be a JSON object with a name and arguments"),)
        return tuple(
            call_of(e.get("name"), e.get("arguments", e.get("parameters")), raw) for e in entries[: MAX_CALLS + 1]
        )

    def _after_close(self, text: str, end: int) -> int:
        """Past the closing tag, and what little stands before it; the end of the JSON if there is none."""
        close = text.find(self.close_tag, end, self._next_open(text, end))
        if close < 0 or len(text[end:close].strip()) > MAX_STRAY:
            return end
        return close + len(self.close_tag)

    def _end_of_broken(self, text: str, inside: int) -> int:
        limit = self._next_open(text, inside)
        close = text.find(self.close_tag, inside, limit)
        return limit if close < 0 else close + len(self.close_tag)

    def _next_open(self, text: str, start: int) -> int:
        following = text.find(self.open_tag, start)
        return len(text) if following < 0 else following


def _broken(raw: str, error: str) -> ToolCall:
    return ToolCall("", guess_name(raw) or UNREADABLE_NAME, raw, error)
