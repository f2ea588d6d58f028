"""LongCat: Hermes' JSON between ``<longcat_tool_call>`` tags."""

from __future__ import annotations

from atroposlib.tool_call_parsers.hermes import HermesParser
from atroposlib.tool_call_parsers.registry import register_parser


@register_parser("longcat")
class LongcatParser(HermesParser):
    """LongCat: the same between ``<longcat_tool_call>`` tags."""

    open_tag = "<longcat_tool_call>"
    close_tag = "</longcat_tool_call>"
