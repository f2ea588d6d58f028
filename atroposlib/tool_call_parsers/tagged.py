"""What the formats share that write each argument between tags of its own, and without a type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from atroposlib.tool_call_parsers.base import CallSpan, ToolCall, ToolCallParser, ToolSchemas, call_of
from atroposlib.tool_call_parsers.json_text import JsonValue, read_json
from atroposlib.tool_call_parsers.seeker import Seeker
from atroposlib.tool_call_parsers.typed_values import value_of


@dataclass(frozen=True)
class _Read:
    """Arguments read so far, where reading ended, and why it could not go on."""

    arguments: dict[str, Any]
    end: int
    error: str | None = None


class TaggedParser(ToolCallParser):
    """A call is an opening tag that names the tool, parameters with a tag each, and a closing tag.

    A value ends at the closing tag that another parameter or the end of the call follows, so that the same tag inside
    a value is part of the value. A missing closing tag of a parameter is forgiven where the call itself is closed.
    """

    wrapper: tuple[str, str]
    """Tags around calls; they are dropped, and not required."""
    call_open: str
    """Pattern with the group ``name``."""
    call_close: str
    parameter_open: str
    """Pattern with the group ``key``, and ``string`` where the format itself tells strings from JSON."""
    parameter_close: str

    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """One span per call, the wrapping tags around it included."""
        seeker = Seeker(text)
        position = 0
        while opening := seeker.search(self._call_open, position):
            read = self._read(seeker, opening, schemas)
            start = self._before(text, position, opening.start())
            end = self._after(text, read.end)
            yield CallSpan(start, end, (self._call(opening, read, text),))
            position = end

    def clean(self, value: str) -> str:
        """A value as it was meant, of the text between its tags."""
        return value

    def _call(self, opening: re.Match[str], read: _Read, text: str) -> ToolCall:
        if read.error:
            return ToolCall("", opening["name"], text[opening.start() : read.end], read.error)
        return call_of(opening["name"], read.arguments, text[opening.start() : read.end])

    def _read(self, seeker: Seeker, opening: re.Match[str], schemas: ToolSchemas) -> _Read:
        arguments: dict[str, Any] = {}
        text, position = seeker.text, opening.end()
        while True:
            position = _skip_blanks(text, position)
            if text.startswith(self.call_close, position):
                return self._closed(seeker, arguments, position + len(self.call_close))
            limit = self._limit(seeker, position)
            parameter = self._parameter_open.match(text, position)
            if parameter is None:
                missing = f"{self.call_close} is missing" if position >= limit else "text stands between parameters"
                return _Read(arguments, max(limit, position), f"the call cannot be read: {missing}")
            ends = self._value_end(seeker, parameter.end(), limit)
            if ends is None:
                return _Read(arguments, limit, f"the call cannot be read: {self.parameter_close} is missing")
            value_end, position = ends
            value = self.clean(text[parameter.end() : value_end])
            arguments[parameter["key"].strip()] = self._typed(value, parameter, opening["name"], schemas)

    def _typed(self, value: str, parameter: re.Match[str], tool: str, schemas: ToolSchemas) -> Any:
        told = parameter.groupdict().get("string")
        if told == "true":
            return value
        if told == "false":
            read = read_json(value, 0)
            return read.value if isinstance(read, JsonValue) else value
        return value_of(value, schemas.of_parameter(tool.strip(), parameter["key"].strip()))

    def _closed(self, seeker: Seeker, arguments: dict[str, Any], end: int) -> _Read:
        """A call up to its closing tag, unless one more parameter ends behind it that never began."""
        stray = seeker.search(self._stray_end, end)
        if stray is None or stray.start() > seeker.start_of(self._call_open, end):
            return _Read(arguments, end)
        error = f"the call cannot be read: a value seems to hold {self.parameter_close} and {self.call_close}"
        return _Read(arguments, stray.end(), error)

    def _value_end(self, seeker: Seeker, start: int, limit: int) -> tuple[int, int] | None:
        """Where a value ends, and where reading goes on; ``None`` if it does not end.

        It ends at its own tag even where what looks like the end of the call stands before that.
        """
        closing = seeker.search(self._parameter_end, start)
        if closing and closing.start() < seeker.start_of(self._new_call, start):
            return closing.start(), closing.end()
        following = seeker.start_of(self._next_tag, start)
        return (following, following) if following < limit else None

    def _limit(self, seeker: Seeker, start: int) -> int:
        """Where this call ends at the latest: past its closing tag, or before the next call."""
        closing = seeker.search(self._call_end, start)
        following = seeker.start_of(self._next_call, start)
        return min(closing.start() + len(self.call_close), following) if closing else following

    def _before(self, text: str, floor: int, start: int) -> int:
        bare = text[floor:start].rstrip()
        tag = self.wrapper[0]
        return floor + len(bare) - len(tag) if bare.endswith(tag) else start

    def _after(self, text: str, end: int) -> int:
        position = _skip_blanks(text, end)
        tag = self.wrapper[1]
        return position + len(tag) if text.startswith(tag, position) else end

    @cached_property
    def _call_open(self) -> re.Pattern[str]:
        return re.compile(self.call_open)

    @cached_property
    def _parameter_open(self) -> re.Pattern[str]:
        return re.compile(self.parameter_open)

    @cached_property
    def _parameter_end(self) -> re.Pattern[str]:
        following = f"{_without_names(self.parameter_open)}|{re.escape(self.call_close)}"
        return re.compile(rf"{re.escape(self.parameter_close)}(?=\s*(?:{following}))")

    @cached_property
    def _next_tag(self) -> re.Pattern[str]:
        return re.compile(f"{_without_names(self.parameter_open)}|{re.escape(self.call_close)}")

    @cached_property
    def _call_end(self) -> re.Pattern[str]:
        following = "|".join([*map(re.escape, self.wrapper), r"\Z", _without_names(self.call_open)])
        return re.compile(rf"{re.escape(self.call_close)}(?=\s*(?:{following}))")

    @cached_property
    def _stray_end(self) -> re.Pattern[str]:
        return re.compile(rf"{re.escape(self.parameter_close)}\s*{re.escape(self.call_close)}")

    @cached_property
    def _new_call(self) -> re.Pattern[str]:
        before = f"{re.escape(self.wrapper[0])}|{re.escape(self.call_close)}"
        return re.compile(rf"(?:{before})\s*{_without_names(self.call_open)}")

    @cached_property
    def _next_call(self) -> re.Pattern[str]:
        return re.compile(rf"{re.escape(self.wrapper[0])}\s*{_without_names(self.call_open)}")


def _without_names(pattern: str) -> str:
    return re.sub(r"\(\?P<\w+>", "(?:", pattern)


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
