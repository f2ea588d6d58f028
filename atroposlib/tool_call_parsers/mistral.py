"""Mistral: ``[TOOL_CALLS] [{"name": …, "arguments": …}]`` and, from version 11 on, ``[TOOL_CALLS]name{…}``."""

from __future__ import annotations

import re
import secrets
import string
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
from atroposlib.tool_call_parsers.json_text import JsonError, JsonValue, PatientReader, guess_name, read_json
from atroposlib.tool_call_parsers.registry import register_parser
from atroposlib.tool_call_parsers.seeker import Seeker

TOKEN = "[TOOL_CALLS]"
_HEAD = re.compile(r"\s*([^\s\[\]{}\"',]{1,200})\s{0,9}(?:\[CALL_ID\]([^\[\]{]{0,64}))?(?:\[ARGS\]\s{0,9})?(?=\{)")
_NAME_ONLY = re.compile(r"\s*([^\s\[\]{}\"',]{1,200})")
_NEXT_OBJECT = re.compile(r'\{\s{0,20}"name"')
_LIST_OPEN = re.compile(r"(?:\s*\[)?")
_TAIL = re.compile(r"\s*</s>")
_ID_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9
_ID = re.compile(rf"[A-Za-z0-9]{{{_ID_LENGTH}}}")


@register_parser("mistral")
class MistralParser(ToolCallParser):
    """Both forms, told apart by what follows the token. Ids have nine letters or digits, as the templates demand."""

    def find_calls(self, text: str, schemas: ToolSchemas) -> Iterator[CallSpan]:
        """One span per token."""
        seeker, reader = Seeker(text), PatientReader(text)
        start = seeker.find(TOKEN, 0)
        while start < len(text):
            inside = start + len(TOKEN)
            is_list = _begins_list(text, inside)
            end, calls = self._read_list(seeker, reader, inside) if is_list else self._read_one(seeker, inside)
            tail = _TAIL.match(text, end)
            end = tail.end() if tail else end
            yield CallSpan(start, end, tuple(calls))
            start = seeker.find(TOKEN, end)

    def make_id(self, number: int | None) -> str:
        """Nine letters or digits."""
        if number is None:
            return "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
        return f"{number:0{_ID_LENGTH}d}"

    def _read_one(self, seeker: Seeker, inside: int) -> tuple[int, list[ToolCall]]:
        text = seeker.text
        head = _HEAD.match(text, inside)
        if not head:
            return self._broken(seeker, inside, inside, None, "it is neither a list nor a name with arguments")
        read = read_json(text, head.end())
        if isinstance(read, JsonError):
            message = f"the arguments are not valid JSON: {read.message}"
            return self._broken(seeker, inside, head.end(), head.group(1), message)
        raw = text[head.end() : read.end]
        return read.end, [call_of(head.group(1), read.value, raw, _id(head.group(2)))]

    def _read_list(self, seeker: Seeker, reader: PatientReader, inside: int) -> tuple[int, list[ToolCall]]:
        """The objects of a list one by one, so that a broken one takes no other with it."""
        calls: list[ToolCall] = []
        text = seeker.text
        position = _LIST_OPEN.match(text, inside).end()  # type: ignore[union-attr]
        limit = seeker.find(TOKEN, position)
        while len(calls) <= MAX_CALLS:
            while position < limit and text[position] in " \t\r\n,":
                position += 1
            if position >= limit or text[position] == "]":
                return min(position + 1, limit) if position < limit else limit, calls
            read = reader.read(position)
            if isinstance(read, JsonValue):
                calls.append(_call(read.value, text[position : read.end]))
                position, limit = read.end, max(limit, seeker.find(TOKEN, read.end))
                continue
            stop = min(limit, seeker.start_of(_NEXT_OBJECT, position + 1))
            raw = text[position:stop].strip(" \t\r\n,")
            calls.append(
                ToolCall("", guess_name(raw) or UNREADABLE_NAME, raw, f"the call is not valid JSON: {_why(read)}")
            )
            position = stop
        return position, calls

    def _broken(
        self, seeker: Seeker, inside: int, arguments_at: int, name: str | None, error: str
    ) -> tuple[int, list[ToolCall]]:
        text, limit = seeker.text, seeker.find(TOKEN, inside)
        raw = text[arguments_at:limit].strip().removesuffix("</s>").strip()
        if name is None:
            named = _NAME_ONLY.match(text, inside, limit)
            name = named.group(1) if named else UNREADABLE_NAME
        return limit, [ToolCall("", name, raw, error)]


def _begins_list(text: str, inside: int) -> bool:
    return text[inside : inside + 20].lstrip()[:1] in ("[", "{") and not text.startswith("[ARGS]", inside)


def _id(written: Any) -> str:
    """The id that the model wrote, or none where no template would take it."""
    return written.strip() if isinstance(written, str) and _ID.fullmatch(written.strip()) else ""


def _call(value: Any, raw: str) -> ToolCall:
    if not isinstance(value, dict):
        return ToolCall("", UNREADABLE_NAME, raw, "a call must be a JSON object with a name and arguments")
    arguments = value.get("arguments", value.get("parameters"))
    return call_of(value.get("name"), arguments, raw, _id(value.get("id")))


def _why(read: JsonError | JsonValue) -> str:
    return read.message if isinstance(read, JsonError) else ""
