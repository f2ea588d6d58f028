"""The parsers behind the interface that agent code knows."""

import pytest

from environments.tool_call_parsers import ToolCallParser, get_parser, list_parsers, register_parser


def test_calls_come_as_objects_of_the_openai_package():
    content, calls = get_parser("hermes").parse('Look: <tool_call>{"name": "ls", "arguments": {"a": 1}}</tool_call> ok')
    assert content == "Look:\nok"
    assert [(call.function.name, call.function.arguments, call.type) for call in calls] == [
        ("ls", '{"a": 1}', "function")
    ]


def test_a_text_without_calls_comes_back_with_none():
    assert get_parser("hermes").parse("Just text.") == ("Just text.", None)


def test_nothing_but_calls_has_no_content():
    content, calls = get_parser("qwen3_coder").parse("<function=ls></function>")
    assert content is None
    assert len(calls) == 1


def test_an_unknown_name_is_an_error_with_the_list():
    with pytest.raises(KeyError, match="kimi_k2"):
        get_parser("nonsense")


def test_a_parser_of_ones_own_is_found_by_its_name():
    @register_parser("face_test_format")
    class Mine(ToolCallParser):
        def parse(self, text, tools=None):
            return text, None

    assert get_parser("face_test_format").parse("x") == ("x", None)
    assert "face_test_format" in list_parsers()
    assert "hermes" in list_parsers()
