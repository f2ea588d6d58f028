"""Gemma 4 and FunctionGemma: ``call:name{key:value}`` between special tokens, strings between marks of their own.

Gemma 3 and older have no format for calls; what a prompt asks of them is a matter of that prompt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from atroposlib.tool_call_parsers.base import UNREADABLE_NAME, CallSpan, ToolCall, ToolCallParser, ToolSchemas, call_of
from atroposlib.tool_call_parsers.json_text import JsonValue, read_json
from atroposlib.tool_call_parsers.registry import register_parser
from atroposlib.tool_call_parsers.seeker import Seeker
from atroposlib.tool_call_parsers.typed_values import value_of

DEEPEST = 32
_BLANKS = re.compile(r"\s*")
_BARE = re.compile(r"[^,{}\[\]]*")
_KEY = re.compile(r"[^:,{}\[\]]{1,500}")


class _Unreadable(Exception):
    """Why the arguments cannot be read."""


@register_parser("gemma")
@register_parser("gemma4")
class GemmaParser(ToolCallParser):
    """``<|tool_call>call:name{key:<|"|>text<|"|>,n:1}<tool_call|>``; the marks decide where a string ends."""

    begin, end = "<|tool_call>", "<tool_call|>"
    quote = '<|"|>'
    thoughts = ("<|channel>", "<channel|>")

    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """One span per begin token after the thoughts."""
        seeker = Seeker(text)
        start = seeker.find(self.begin, self._end_of_thoughts(text))
        while start < len(text):
            span = self._read(seeker, start, schemas)
            yield span
            start = seeker.find(self.begin, span.end)

    def _end_of_thoughts(self, text: str) -> int:
        opening, closing = self.thoughts
        if not opening or not text.lstrip().startswith(opening):
            return 0
        end = text.find(closing)
        return len(text) if end < 0 else end

    def _read(self, seeker: Seeker, start: int, schemas: ToolSchemas) -> CallSpan:
        text = seeker.text
        head = self._head.match(text, start)
        if head is None:
            return self._broken(seeker, start, start + len(self.begin), UNREADABLE_NAME, "it does not name a tool")
        name, brace = head["name"], head.end() - 1
        as_json = read_json(text, brace)
        if isinstance(as_json, JsonValue):
            arguments, end = as_json.value, as_json.end
        else:
            try:
                arguments, end = _ArgumentReader(text, self.quote, name, schemas).read(brace)
            except _Unreadable as error:
                return self._broken(seeker, start, brace, name, f"the arguments cannot be read: {error}")
        past = self._tail.match(text, end)
        return CallSpan(start, past.end() if past else end, (call_of(name, arguments, text[brace:end]),))

    def _broken(self, seeker: Seeker, start: int, raw_at: int, name: str, error: str) -> CallSpan:
        text = seeker.text
        stop = min(seeker.find(token, raw_at) for token in (self.begin, self.end))
        end = stop + len(self.end) if text.startswith(self.end, stop) else stop
        return CallSpan(start, end, (ToolCall("", name, text[raw_at:stop].strip(), error),))

    @cached_property
    def _head(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.begin) + r"\s*call:\s*(?P<name>[^\s{}:]{1,200})\s*\{")

    @cached_property
    def _tail(self) -> re.Pattern[str]:
        return re.compile(r"\s{0,20}" + re.escape(self.end))


@register_parser("functiongemma")
class FunctionGemmaParser(GemmaParser):
    """``<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>``."""

    begin, end = "<start_function_call>", "<end_function_call>"
    quote = "<escape>"
    thoughts = ("", "")


class _ArgumentReader:
    """Reads ``{key:value,…}``. What stands between marks is text; a bare value has the type of the schema."""

    def __init__(self, text: str, quote: str, tool: str, schemas: ToolSchemas) -> None:
        self._text = text
        self._quote = quote
        self._tool = tool
        self._schemas = schemas

    def read(self, start: int) -> tuple[dict[str, Any], int]:
        """The object whose brace is at ``start``, and where it ends. Raises: _Unreadable."""
        return self._object(start, 0)

    def _value(self, at: int, depth: int, key: str | None) -> tuple[Any, int]:
        at = self._past_blanks(at)
        if depth > DEEPEST:
            raise _Unreadable(f"more than {DEEPEST} levels deep")
        if self._text.startswith(self._quote, at):
            return self._string(at)
        if self._text.startswith("{", at):
            return self._object(at, depth)
        if self._text.startswith("[", at):
            return self._list(at, depth)
        bare = _BARE.match(self._text, at)
        assert bare is not None
        word = bare.group().strip()
        if not word:
            raise _Unreadable(f"a value is missing at character {at}")
        return self._typed(word, key), bare.end()

    def _typed(self, word: str, key: str | None) -> Any:
        schema = {} if key is None else self._schemas.of_parameter(self._tool, key)
        if schema:
            return value_of(word, schema)
        read = read_json(word, 0)
        return read.value if isinstance(read, JsonValue) and read.end == len(word) else word

    def _object(self, start: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        at = self._past_blanks(start + 1)
        while not self._text.startswith("}", at):
            key, at = self._key(at)
            found[key], at = self._value(at, depth + 1, key if depth == 0 else None)
            at = self._past_comma(at, "}")
        return found, at + 1

    def _list(self, start: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self._past_blanks(start + 1)
        while not self._text.startswith("]", at):
            value, at = self._value(at, depth + 1, None)
            found.append(value)
            at = self._past_comma(at, "]")
        return found, at + 1

    def _key(self, at: int) -> tuple[str, int]:
        if self._text.startswith(self._quote, at):
            key, at = self._string(at)
        else:
            bare = _KEY.match(self._text, at)
            if bare is None:
                raise _Unreadable(f"a name is missing at character {at}")
            key, at = bare.group().strip(), bare.end()
        at = self._past_blanks(at)
        if not self._text.startswith(":", at):
            raise _Unreadable(f"no colon after {key[:50]!r}")
        return key, at + 1

    def _string(self, at: int) -> tuple[str, int]:
        inside = at + len(self._quote)
        end = self._text.find(self._quote, inside)
        if end < 0:
            raise _Unreadable("a string does not end")
        return self._text[inside:end], end + len(self._quote)

    def _past_comma(self, at: int, closing: str) -> int:
        at = self._past_blanks(at)
        if self._text.startswith(",", at):
            return self._past_blanks(at + 1)
        if not self._text.startswith(closing, at):
            raise _Unreadable(f"neither a comma nor {closing} at character {at}")
        return at

    def _past_blanks(self, at: int) -> int:
        found = _BLANKS.match(self._text, at)
        return found.end() if found else at
