"""MiniMax M2: ``<minimax:tool_call><invoke name="…"><parameter name="…">value</parameter></invoke>…``."""

from __future__ import annotations

from atroposlib.tool_call_parsers.registry import register_parser
from atroposlib.tool_call_parsers.tagged import TaggedParser


@register_parser("minimax")
@register_parser("minimax_m2")
class MinimaxParser(TaggedParser):
    """Types come from the tool's schema."""

    wrapper = ("<minimax:tool_call>", "</minimax:tool_call>")
    call_open = r"<invoke name=\"(?P<name>[^\"\n]{1,200})\">"
    call_close = "</invoke>"
    parameter_open = r"<parameter name=\"(?P<key>[^\"\n]{1,200})\">"
    parameter_close = "</parameter>"
