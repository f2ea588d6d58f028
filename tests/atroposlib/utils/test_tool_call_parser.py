"""One tool call out of a text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.utils.tool_call_parser import extract_tool_call, parse_tool_call

TOOLS = [{"name": "search"}, {"type": "function", "function": {"name": "terminal"}}]


def call(content: str) -> str:
    return f"Let me see. <tool_call>\n{content}\n</tool_call> Done."


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        ('{"name": "search", "arguments": {"query": "what\'s new"}}', {"query": "what's new"}),
        ("{'name': 'search', 'arguments': {'query': 'a \"quoted\" word'}}", {"query": 'a "quoted" word'}),
        ('{"name": "search", "arguments": {"query": "two\nlines"}}', {"query": "two\nlines"}),
        ('{"name": "search", "arguments": "{\\"query\\": 1}"}', {"query": 1}),
        ('{"name": "search"}', {}),
    ],
)
def test_calls_are_read(content, arguments):
    assert parse_tool_call(call(content), TOOLS) == ("search", arguments, False)


@pytest.mark.parametrize(
    "text",
    ["no call", "<tool_call></tool_call>", call("not json"), call("[1]"), call('{"name": "search", "arguments": [1]}')],
)
def test_what_is_no_call_is_an_error(text):
    assert parse_tool_call(text, TOOLS) == ("-ERROR-", {}, True)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.lists(st.text())))
def test_any_json_arguments_come_back(arguments):
    text = call(json.dumps({"name": "terminal", "arguments": arguments}))
    if "</tool_call>" not in text.removesuffix("</tool_call> Done."):
        assert parse_tool_call(text, TOOLS) == ("terminal", arguments, False)


def test_an_unknown_tool_is_an_error_that_keeps_the_arguments():
    assert parse_tool_call(call('{"name": "rm", "arguments": {"x": 1}}'), TOOLS) == ("-ERROR-", {"x": 1}, True)
    assert parse_tool_call(call('{"name": "rm", "arguments": {}}')) == ("rm", {}, False)


def test_the_first_preferred_tag_that_is_there_counts():
    assert extract_tool_call("<b>2</b><a>1</a>", ["a", "b"]) == "1"
    assert extract_tool_call("<b>2</b>", ["a", "b"]) == "2"
    assert extract_tool_call("<a>open") is None
