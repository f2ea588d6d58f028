"""Texts read by a parser, for a tool that writes; and what came of it."""

import json

from atroposlib.tool_call_parsers import get_parser

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}, "any": {}},
            },
        },
    }
]


def parse(parser, text):
    return get_parser(parser).parse(text, TOOLS)


def good(parsed):
    return [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls if call.error is None]


def broken(parsed):
    return [(call.name, call.arguments) for call in parsed.tool_calls if call.error is not None]
