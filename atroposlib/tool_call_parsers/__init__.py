"""Text → tool calls, one file per format. No engine is needed, and none of its code."""

from atroposlib.tool_call_parsers import (
    deepseek_v3,
    deepseek_v3_2,
    gemma,
    glm,
    harmony,
    hermes,
    kimi_k2,
    llama,
    longcat,
    minimax,
    mistral,
    qwen3_coder,
)
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

FORMATS = (
    *(deepseek_v3, deepseek_v3_2, gemma, glm, harmony, hermes),
    *(kimi_k2, llama, longcat, minimax, mistral, qwen3_coder),
)
"""The files of the formats; importing them registers what they hold."""
