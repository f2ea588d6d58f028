"""Text → tool calls, one file per format. No engine is needed, and none of its code."""

from atroposlib.tool_call_parsers import hermes as _hermes
from atroposlib.tool_call_parsers.base import CallSpan, ParsedMessage, ToolCall, ToolCallParser, ToolSchemas
from atroposlib.tool_call_parsers.registry import get_parser, list_parsers, register_parser

__all__ = [
    "CallSpan",
    "ParsedMessage",
    "ToolCall",
    "ToolCallParser",
    "ToolSchemas",
    "get_parser",
    "list_parsers",
    "register_parser",
]

del _hermes
