"""Qwen3-Coder: ``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``."""

from __future__ import annotations

from atroposlib.tool_call_parsers.registry import register_parser
from atroposlib.tool_call_parsers.tagged import TaggedParser


@register_parser("qwen3_coder")
class Qwen3CoderParser(TaggedParser):
    """Values stand on lines of their own; types come from the tool's schema."""

    wrapper = ("<tool_call>", "</tool_call>")
    call_open = r"<function=(?P<name>[^>\n]{1,200})>"
    call_close = "</function>"
    parameter_open = r"<parameter=(?P<key>[^>\n]{1,200})>"
    parameter_close = "</parameter>"

    def clean(self, value: str) -> str:
        """Without the line breaks that set the value apart from its tags; indentation stays."""
        return value.removeprefix("\n").removesuffix("\n")
