"""DeepSeek V3, R1 and V3.1: calls between special tokens, the arguments in JSON."""

from __future__ import annotations

import re

from atroposlib.tool_call_parsers.marked_json import Head, MarkedJsonParser
from atroposlib.tool_call_parsers.registry import register_parser


class DeepseekParser(MarkedJsonParser):
    """The tokens that both versions write."""

    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    sections = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    separator = "<｜tool▁sep｜>"


@register_parser("deepseek_v3")
class DeepseekV3Parser(DeepseekParser):
    """The begin token, the word ``function``, a separator, the name on a line, and a fenced block of JSON."""

    def read_head(self, text: str, start: int, limit: int) -> Head | None:
        """The name ends with its line or where the JSON begins."""
        separator = text.find(self.separator, start, limit)
        if separator < 0:
            return None
        named = re.compile(r"\s*([^\s`{<]{1,200})").match(text, separator + len(self.separator))
        return Head(named.group(1), "", named.end()) if named else None


@register_parser("deepseek_v3_1")
@register_parser("deepseek_v31")
class DeepseekV31Parser(DeepseekParser):
    """The begin token, the name, a separator, and bare JSON."""

    def read_head(self, text: str, start: int, limit: int) -> Head | None:
        """The name is all that stands before the separator."""
        separator = text.find(self.separator, start, limit)
        name = text[start:separator].strip() if separator >= 0 else ""
        return Head(name, "", separator + len(self.separator)) if name else None
