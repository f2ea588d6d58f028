"""Gemma: bare values, and calls that are only thought of."""

import pytest

from atroposlib.tool_call_parsers.base import UNREADABLE_NAME
from tests.atroposlib.tool_call_parsers.parsing import broken, good, parse


def test_gemma_bare_values_have_the_types_of_the_schema():
    parsed = parse("gemma", "<|tool_call>call:write{path:12, lines: 12 ,any:true,more:[1,x,{k:null}]}<tool_call|>")
    assert good(parsed) == [("write", {"path": "12", "lines": 12, "any": True, "more": [1, "x", {"k": None}]})]


@pytest.mark.parametrize(
    "arguments", ['{path:<|"|>a', "{path}", "{:1}", "{path:}", "{path:1", "{path:[1}", "{a:" + "[" * 50 + "}"]
)
def test_gemma_a_broken_call_takes_no_other_with_it(arguments):
    text = f"<|tool_call>call:write{arguments}<tool_call|>\n<|tool_call>call:write{{lines:1}}<tool_call|>"
    parsed = parse("gemma", text)
    assert broken(parsed) == [("write", arguments)]
    assert good(parsed) == [("write", {"lines": 1})]


def test_gemma_calls_that_are_only_thought_of_are_no_calls():
    thought = "<|channel>thought\n<|tool_call>call:write{}<tool_call|><channel|>"
    assert parse("gemma", thought).tool_calls == ()
    assert good(parse("gemma", thought + "<|tool_call>call:write{}<tool_call|>")) == [("write", {})]
    assert parse("gemma", thought[:-10]).tool_calls == ()


def test_gemma_json_between_the_marks_is_read_too():
    assert good(parse("functiongemma", '<start_function_call>call:write{"path": "a"}')) == [("write", {"path": "a"})]


def test_gemma_a_call_without_a_name_is_told():
    assert broken(parse("gemma", "<|tool_call>write{}<tool_call|>")) == [(UNREADABLE_NAME, "write{}")]
