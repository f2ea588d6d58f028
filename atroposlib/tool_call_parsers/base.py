"""The contract of a tool-call parser: what a model wrote → what it said, and the tools it called.

Promises every format keeps:

- each call is read alone: a broken one takes no other with it;
- a call that cannot be read is returned all the same, with ``error`` set and the raw text as its arguments, so that the
  model can be told; it is never dropped, guessed or taken for the final answer;
- what stands before, between and after the calls is kept as content;
- calls that a model merely thinks about (inside ``<think>…</think>``) are no calls;
- parsing never raises, and its time grows with the length of the text.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from atroposlib.tool_call_parsers.json_schema import without_references

UNREADABLE_NAME = "unreadable_tool_call"
"""Name of a call that names no tool."""

MAX_CALLS = 256
"""Calls that are read in one message; it bounds the time a hostile text can take."""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_NINE_SIGNS = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(frozen=True)
class ToolCall:
    """One call. ``arguments`` is the JSON text of an object, or, where ``error`` is set, what the model wrote."""

    id: str
    """Unique; empty inside a format that leaves it to the base."""
    name: str
    arguments: str
    error: str | None = None


@dataclass(frozen=True)
class ParsedMessage:
    """What a model said (``None``: nothing but calls) and the calls it made, in order."""

    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class CallSpan:
    """The stretch ``text[start:end]`` that holds these calls and nothing to keep as content."""

    start: int
    end: int
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class ToolSchemas:
    """The JSON schemas of the tools' parameters, by tool name."""

    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]] | None) -> ToolSchemas:
        """Read OpenAI's ``tools``; entries of another shape are passed over."""
        functions = [tool.get("function") or tool for tool in tools or () if isinstance(tool, Mapping)]
        named = [f for f in functions if isinstance(f, Mapping) and isinstance(f.get("name"), str)]
        return cls({f["name"]: f.get("parameters") or {} for f in named})

    def knows(self, tool: str) -> bool:
        """Whether a tool of this name was offered."""
        return tool in self.parameters

    def of_parameter(self, tool: str, parameter: str) -> Mapping[str, Any]:
        """Schema of one parameter, references in it resolved; empty if unknown."""
        schema = self.parameters.get(tool)
        properties = without_references(schema, schema).get("properties") if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping) or not isinstance(schema, Mapping):
            return {}
        return without_references(properties.get(parameter), schema)


class ToolCallParser(ABC):
    """One wire format."""

    name = ""
    """What it is registered as; set by ``register_parser``."""
    marks_text = False
    """Whether the format puts marks around plain answers too, so that those without tools have to be read as well."""

    @abstractmethod
    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """The calls of a text without thoughts, in order and without overlap."""

    def parse(
        self,
        text: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        call_number: int | None = None,
        thinking: bool = False,
    ) -> ParsedMessage:
        """Split a text into content and calls.

        Args:
            tools: OpenAI's tool list; formats that write values without types take the types from its schemas.
            call_number: number of the first call in its rollout, from which ids are made; random ids without it.
            thinking: the text begins inside a thought that its prompt opened with ``<think>``.
        """
        start = end_of_thoughts(text, thinking=thinking)
        thoughts, said = text[:start], text[start:]
        spans = list(_at_most(MAX_CALLS, self.find_calls(said, ToolSchemas.of(tools)), said))
        calls = [call for span in spans for call in span.calls]
        if not calls:
            return ParsedMessage(text)
        return ParsedMessage(_join(thoughts, _outside(said, spans)), tuple(self._with_ids(calls, call_number)))

    def make_id(self, number: int | None) -> str:
        """An id for a call whose format writes none."""
        return f"call_{uuid.uuid4().hex[:24]}" if number is None else f"call_{number:08x}"

    def _with_ids(self, calls: Iterable[ToolCall], first: int | None) -> Iterator[ToolCall]:
        taken: set[str] = set()
        for offset, call in enumerate(calls):
            number = None if first is None else first + offset
            id = fresh_id(call.id or self.make_id(number), taken)
            taken.add(id)
            yield replace(call, id=id)


def fresh_id(id: str, taken: Container[str]) -> str:
    """The id itself, or where it is taken the next one that is not: the number at its end is counted up.

    One of nine letters and digits stays of that kind, since the templates that demand it refuse all others.
    """
    if _NINE_SIGNS.fullmatch(id):
        counted = (f"{id[: 9 - len(str(count))]}{count}" for count in itertools.count(2))
        return id if id not in taken else next(other for other in counted if other not in taken)
    stem, _, number = id.rpartition(":")
    count = int(number) + 1 if stem and number.isdecimal() else 2
    stem = stem if stem and number.isdecimal() else id
    while id in taken:
        id, count = f"{stem}:{count}", count + 1
    return id


def end_of_thoughts(text: str, *, thinking: bool = False) -> int:
    """Where the thoughts that a text begins with end: 0 without any, the length of the text if they never do.

    They end with the first ``</think>``, since a later one may be part of an argument. With ``thinking`` the prompt
    opened them already, and so they need no ``<think>`` of their own.
    """
    if not thinking and not text.lstrip().startswith(THINK_OPEN):
        return 0
    end = text.find(THINK_CLOSE)
    return len(text) if end < 0 else end + len(THINK_CLOSE)


def call_of(name: Any, arguments: Any, raw: str, id: str = "") -> ToolCall:
    """A call as far as it was read: the name, and the arguments as an object, its JSON text, or nothing.

    ``raw`` is what stands for the arguments where the call has no name. Arguments of a call with an error are never
    the JSON text of an object, so that nobody takes them for good ones.
    """
    if not isinstance(name, str) or not name.strip():
        return ToolCall(id, UNREADABLE_NAME, raw, "the call names no tool")
    if arguments is None or arguments == "":
        arguments = {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False)
        except (ValueError, RecursionError) as error:
            return ToolCall(id, name.strip(), arguments, f"the arguments are not valid JSON: {error}")
    if not isinstance(arguments, dict):
        return ToolCall(id, name.strip(), dump(arguments), "the arguments must be a JSON object")
    try:
        return ToolCall(id, name.strip(), dump(arguments, allow_nan=False))
    except ValueError:
        # as a string, since many a reader would take the text itself for an object
        written = dump(json.dumps(arguments, ensure_ascii=False))
        return ToolCall(id, name.strip(), written, "the arguments hold a number that JSON does not know")


def dump(value: Any, *, allow_nan: bool = True) -> str:
    """JSON text with readable letters, or all in ASCII where it could not be sent otherwise.

    Raises:
        ValueError: it holds NaN or an infinity, and ``allow_nan`` is off.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=allow_nan)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate that the model wrote as an escape
        return json.dumps(value)
    return text


def _at_most(limit: int, spans: Iterable[CallSpan], text: str) -> Iterator[CallSpan]:
    """The first calls; all that follows them as one call that could not be read."""
    count = 0
    for span in spans:
        kept = span.calls[: limit - count]
        count += len(span.calls)
        if count <= limit:
            yield span
            continue
        excess = ToolCall("", UNREADABLE_NAME, text[span.start :], f"there are more than {limit} calls in one message")
        yield CallSpan(span.start, len(text), (*kept, excess))
        return


def _outside(text: str, spans: Sequence[CallSpan]) -> str | None:
    """What is not part of any call, joined line by line."""
    cuts = [0, *(edge for span in spans for edge in (span.start, span.end)), len(text)]
    parts = [text[a:b].strip() for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    return "\n".join(part for part in parts if part) or None


def _join(thoughts: str, said: str | None) -> str | None:
    if not thoughts:
        return said
    return thoughts if said is None else f"{thoughts}\n\n{said}"
