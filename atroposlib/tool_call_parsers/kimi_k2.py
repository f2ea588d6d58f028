"""Kimi K2: calls between special tokens, with ids like ``functions.name:0``."""

from __future__ import annotations

import re

from atroposlib.tool_call_parsers.marked_json import Head, MarkedJsonParser
from atroposlib.tool_call_parsers.registry import register_parser


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
        """The name is the id without ``functions.`` and without its number; it may hold dots."""
        separator = text.find(self.separator, start, limit)
        id = text[start:separator].strip() if separator >= 0 else ""
        name = re.sub(r":\d+$", "", id.removeprefix("functions."))
        return Head(name, id, separator + len(self.separator)) if name else None
