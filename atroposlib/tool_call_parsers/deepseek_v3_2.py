"""DeepSeek V3.2 and V4 (DSML): ``<｜DSML｜invoke name="…">`` with ``<｜DSML｜parameter name="…" string="true">``."""

from __future__ import annotations

from atroposlib.tool_call_parsers.registry import register_parser
from atroposlib.tool_call_parsers.tagged import TaggedParser


@register_parser("deepseek_v3_2")
@register_parser("deepseek_v32")
@register_parser("deepseek_v4")
class DeepseekDsmlParser(TaggedParser):
    """Each parameter says whether it is a string or JSON; where one does not, its type comes from the schema."""

    wrapper = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    call_open = r"<｜DSML｜invoke name=\"(?P<name>[^\"\n]{1,200})\">"
    call_close = "</｜DSML｜invoke>"
    parameter_open = r"<｜DSML｜parameter name=\"(?P<key>[^\"\n]{1,200})\"(?: string=\"(?P<string>true|false)\")?>"
    parameter_close = "</｜DSML｜parameter>"
