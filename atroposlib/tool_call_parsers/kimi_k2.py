"""Kimi K2: calls between special tokens, with ids like ``functions.name:0``."""

from __future__ import annotations

import re

from atroposlib.tool_call_parsers.marked_json import Head, MarkedJsonParser
from atroposlib.tool_call_parsers.registry import register_parser

_WHOLE_ID = re.compile(r"functions\.\S{1,200}:\d{1,9}")


@register_parser("kimi_k2")
class KimiK2Parser(MarkedJsonParser):
    """The begin token, an id like ``functions.name:0``, which is kept, a separator, and JSON."""

    begin, end = "<|tool_call_begin|>", "<|tool_call_end|>"
    sections = (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_section_end|>",
    )
    separator = "<|tool_call_argument_begin|>"

    def read_head(self, text: str, start: int, limit: int) -> Head | None:
        """The name is the id without ``functions.`` and without its number; it may hold dots.

        A whole id and the end token right behind it are a call without arguments.
        """
        separator = text.find(self.separator, start, limit)
        id = text[start : separator if separator >= 0 else limit].strip()
        if separator < 0 and not (_WHOLE_ID.fullmatch(id) and text.startswith(self.end, limit)):
            return None
        name = re.sub(r":\d+$", "", id.removeprefix("functions."))
        return Head(name, id, separator + len(self.separator) if separator >= 0 else limit) if name else None
