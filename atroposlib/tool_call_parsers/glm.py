"""GLM: ``<tool_call>name\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from atroposlib.tool_call_parsers.base import CallSpan, ToolCall, ToolCallParser, ToolSchemas, call_of
from atroposlib.tool_call_parsers.registry import register_parser
from atroposlib.tool_call_parsers.seeker import Seeker
from atroposlib.tool_call_parsers.typed_values import value_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"\s*([^\s<]{1,200})\s*")
_KEY = re.compile(r"\s*<arg_key>([^<]{1,500})</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>|<tool_call>|\Z))")
_CALL = re.compile(r"<tool_call>\s*[^\s<]{1,200}\s*<arg_key>")
"""A call that begins before a value has ended: the value was not closed, and the call is not part of it."""
_BLANKS = re.compile(r"\s*")
_END = re.compile(r"\s*</tool_call>")


@register_parser("glm45")
@register_parser("glm47")
@register_parser("glm")
class GlmParser(ToolCallParser):
    """Keys and values in pairs of tags. GLM 4.7 leaves out the line breaks that 4.5 writes, and may write no pair."""

    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """One span per opening tag."""
        seeker = Seeker(text)
        start = seeker.find(OPEN, 0)
        while start < len(text):
            end, call = self._read(seeker, start, schemas)
            yield CallSpan(start, end, (call,))
            start = seeker.find(OPEN, end)

    def _read(self, seeker: Seeker, start: int, schemas: ToolSchemas) -> tuple[int, ToolCall]:
        text = seeker.text
        named = _NAME.match(text, start + len(OPEN))
        position = named.end() if named else start + len(OPEN)
        name = named.group(1) if named else ""
        arguments: dict[str, Any] = {}
        while pair := _KEY.match(text, position):
            ended = seeker.search(_VALUE_END, pair.end())
            if not ended or ended.start() > seeker.start_of(_CALL, pair.end()):
                return _broken(seeker, start, name, "</arg_value> is missing")
            key = pair.group(1).strip()
            arguments[key] = value_of(text[pair.end() : ended.start()], schemas.of_parameter(name, key))
            position = ended.end()
        closing = _END.match(text, position)
        if not closing and _BLANKS.match(text, position).end() < len(text):  # type: ignore[union-attr]
            return _broken(seeker, start, name, "it is no pair of <arg_key> and <arg_value>")
        if not closing and not arguments:
            return _broken(seeker, start, name, f"{CLOSE} is missing")
        return (closing.end() if closing else len(text)), call_of(name, arguments, text[start:position])


def _broken(seeker: Seeker, start: int, name: str, error: str) -> tuple[int, ToolCall]:
    """The call up to its closing tag, or to the next call."""
    text, inside = seeker.text, start + len(OPEN)
    close, following = seeker.find(CLOSE, inside), seeker.find(OPEN, inside)
    end = close + len(CLOSE) if close < following else following
    raw = text[inside:end].removesuffix(CLOSE).strip()
    if not name:
        return end, call_of(None, None, raw)
    return end, ToolCall("", name, raw, f"the call cannot be read: {error}")
