"""Harmony (gpt-oss): messages in channels; a call is a message with a recipient.

``<|channel|>analysis<|message|>…<|end|>``, then
``<|start|>assistant to=functions.name<|channel|>commentary json<|message|>{…}<|call|>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from atroposlib.tool_call_parsers.base import (
    MAX_CALLS,
    THINK_CLOSE,
    THINK_OPEN,
    CallSpan,
    ParsedMessage,
    ToolCall,
    ToolCallParser,
    ToolSchemas,
    call_of,
    end_of_thoughts,
)
from atroposlib.tool_call_parsers.json_text import JsonError, JsonValue, read_json, read_literal
from atroposlib.tool_call_parsers.registry import register_parser

_HEADER = re.compile(
    r"(?:<\|start\|>(?P<role>[^<]{0,200}))?<\|channel\|>(?P<channel>[^<]{0,200})"
    r"(?:<\|constrain\|>(?P<kind>[^<]{0,50}))?<\|message\|>"
)
_SAMPLED_ROLE = re.compile(r"\s{0,9}to=[^\s<]{1,200}[^<]{0,100}<\|channel\|>")
"""The role part of a call as a model goes on from a prompt that ends in ``<|start|>assistant``."""
_RECIPIENT = re.compile(r"\bto=(?P<name>[^\s<]{1,200})")
_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|(?:start|channel)\|>)|\Z")
_MARK = re.compile(r"\s{0,20}<\|(?:end|call|return)\|>")


@register_parser("harmony")
@register_parser("gpt_oss")
class HarmonyParser(ToolCallParser):
    """The JSON decides where a call ends. Analysis becomes ``<think>…</think>`` at the start of the content."""

    marks_text = True

    def parse(
        self,
        text: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        call_number: int | None = None,
        thinking: bool = False,
    ) -> ParsedMessage:
        """See ``ToolCallParser.parse``; the markup of messages that are no calls is taken off.

        ``thinking`` changes nothing: the channels say what is a thought.
        """
        start = end_of_thoughts(text)
        said = text[start:]
        if _SAMPLED_ROLE.match(said):
            said = f"<|start|>assistant {said}"
        plain = _without_markup(said)
        parsed = super().parse(text[:start] + plain, tools, call_number=call_number)
        return parsed if parsed.tool_calls or parsed.content else replace(parsed, content=None if text else "")

    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """One span per message with a recipient."""
        position = 0
        while header := _HEADER.search(text, position):
            name = _recipient(header)
            position = header.end()
            if name is not None:
                span = _read(text, header, name)
                yield span
                position = span.end


def _without_markup(text: str) -> str:
    """The text of all messages, the thoughts first and in tags, the calls as they are."""
    thoughts: list[str] = []
    said: list[str] = []
    position, calls, open_end = 0, 0, False
    while calls <= MAX_CALLS and (header := _HEADER.search(text, position)):
        said.append(text[position : header.start()])
        name = _recipient(header)
        if name is not None:
            position = _read(text, header, name).end
            said.append(text[header.start() : position])
            calls += 1
            continue
        end = _END.search(text, header.end())
        assert end is not None
        is_thought = header["channel"].split()[:1] == ["analysis"]
        (thoughts if is_thought else said).append(text[header.end() : end.start()])
        position, open_end = end.end(), is_thought and end.start() == len(text)
    if position == 0:
        return text
    rest = "".join([*said, text[position:]])
    if not thoughts:
        return rest
    closing = "" if open_end and not rest.strip() else f"\n{THINK_CLOSE}\n\n"
    return f"{THINK_OPEN}\n" + "\n\n".join(thoughts) + closing + rest


def _recipient(header: re.Match[str]) -> str | None:
    """The tool that a message is for; ``None`` where it is for nobody in particular."""
    found = _RECIPIENT.search(header["channel"]) or _RECIPIENT.search(header["role"] or "")
    return found["name"].removeprefix("functions.") if found else None


def _read(text: str, header: re.Match[str], name: str) -> CallSpan:
    inside = header.end()
    read = read_json(text, inside)
    if isinstance(read, JsonValue) and isinstance(read.value, dict):
        mark = _MARK.match(text, read.end)
        call = call_of(name, read.value, text[inside : read.end].strip())
        return CallSpan(header.start(), mark.end() if mark else read.end, (call,))
    end = _END.search(text, inside)
    assert end is not None
    raw = text[inside : end.start()].strip()
    literal = read_literal(raw)
    if isinstance(literal, JsonValue) or not raw:
        value = literal.value if isinstance(literal, JsonValue) else None
        return CallSpan(header.start(), end.end(), (call_of(name, value, raw),))
    problem = read.message if isinstance(read, JsonError) else "not an object"
    error = f"the arguments are not valid JSON: {problem}"
    return CallSpan(header.start(), end.end(), (ToolCall("", name or "", raw, error),))
