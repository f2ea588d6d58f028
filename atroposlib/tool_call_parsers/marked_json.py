"""What the formats share that write JSON arguments between special tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from atroposlib.tool_call_parsers.base import UNREADABLE_NAME, CallSpan, ToolCall, ToolCallParser, ToolSchemas, call_of
from atroposlib.tool_call_parsers.json_text import JsonError, JsonValue, read_json, read_literal
from atroposlib.tool_call_parsers.seeker import Seeker


@dataclass(frozen=True)
class Head:
    """What stands before the arguments of a call, and where they begin."""

    name: str
    id: str
    arguments_at: int


class MarkedJsonParser(ToolCallParser):
    """A call stands between a begin and an end token; a section may stand around all calls."""

    begin: str
    end: str
    sections: tuple[str, ...]
    """Tokens around the calls; they are dropped, and not required."""

    def read_head(self, text: str, start: int, limit: int) -> Head | None:
        """What the tokens from ``start`` on say before the arguments; ``None`` where they cannot be read."""
        raise NotImplementedError

    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """One span per begin token, and one for each section token."""
        tokens = re.compile("|".join(map(re.escape, (self.begin, *self.sections))))
        seeker = Seeker(text)
        position = 0
        while found := tokens.search(text, position):
            if found.group() == self.begin:
                span = self._read(seeker, found.start())
            else:
                span = CallSpan(found.start(), found.end(), ())
            yield span
            position = span.end

    def _read(self, seeker: Seeker, start: int) -> CallSpan:
        text, inside = seeker.text, start + len(self.begin)
        head = self.read_head(text, inside, min(seeker.find(token, inside) for token in (self.begin, self.end)))
        if head is None:
            return self._broken(seeker, start, inside, UNREADABLE_NAME, "", "it does not name a tool")
        arguments_at = _past_fence(text, head.arguments_at)
        read = read_json(text, arguments_at)
        if isinstance(read, JsonError):
            return self._broken(
                seeker, start, arguments_at, head.name, head.id, f"the arguments are not valid JSON: {read.message}"
            )
        call = call_of(head.name, read.value, text[arguments_at : read.end].strip(), head.id)
        return CallSpan(start, self._past_end(text, read.end), (call,))

    def _broken(self, seeker: Seeker, start: int, arguments_at: int, name: str, id: str, error: str) -> CallSpan:
        """A call whose arguments are no JSON: what stands before its end token, the next call or the section's end.

        Nothing before an end token are no arguments; where the text just ends there, it was cut.
        """
        text = seeker.text
        stop = min(seeker.find(token, arguments_at) for token in (self.end, self.begin, *self.sections))
        raw = text[arguments_at:stop].strip().removesuffix("```").strip()
        end = stop + len(self.end) if text.startswith(self.end, stop) else stop
        literal = read_literal(raw)
        call = ToolCall(id, name, raw, error)
        if name != UNREADABLE_NAME and (isinstance(literal, JsonValue) or (not raw and end > stop)):
            call = call_of(name, literal.value if isinstance(literal, JsonValue) else None, raw, id)
        return CallSpan(start, end, (call,))

    def _past_end(self, text: str, position: int) -> int:
        """Past the fence and the end token, where they follow."""
        found = re.compile(rf"\s{{0,20}}(?:```\s{{0,20}})?{re.escape(self.end)}").match(text, position)
        return found.end() if found else position


_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n?")


def _past_fence(text: str, position: int) -> int:
    found = _FENCE.match(text, position)
    return found.end() if found else position
