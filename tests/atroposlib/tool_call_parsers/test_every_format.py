"""What holds for every format, with content that tries to break it."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atroposlib.tool_call_parsers import ToolCallParser, get_parser, list_parsers, register_parser
from atroposlib.tool_call_parsers.base import UNREADABLE_NAME, CallSpan, ToolCall, fresh_id
from tests.atroposlib.tool_call_parsers.formats import IN_JSON, IN_TAGS

ALL = IN_JSON | IN_TAGS
PARAMETERS = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "nested": {"type": "object"},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": PARAMETERS}}}
    for name in ("terminal", "read_file", "my.tool-2")
]
MARKS = [
    "<tool_call>",
    "</tool_call>",
    "<|channel|>",
    "<|message|>",
    "<|start|>assistant",
    " to=functions.terminal",
    "<|call|>",
    "<|end|>",
    "<|tool_call>",
    "call:terminal{text:",
    "<tool_call|>",
    "[TOOL_CALLS]",
    "</s>",
    "[ARGS]",
    "<|python_tag|>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function=terminal>",
    "</function>",
    "<parameter=text>",
    "</parameter>",
    '<invoke name="terminal">',
    "</invoke>",
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    "</think>",
    '{"name": "terminal", "arguments": {',
    '"parameters": {"text": "x"}}',
    "```json",
    "```",
    '\\"',
    '"',
    "'",
    "{",
    "}",
    "[",
    "]",
    "\\",
    "\n",
    "\u2028",
]
hostile = st.lists(st.sampled_from(MARKS) | st.text(max_size=12), max_size=12).map("".join)
plain = st.text(alphabet="abc {}[]\"'\\\n\t:,.é🙂", max_size=40)
names = st.sampled_from(["terminal", "read_file", "my.tool-2"])


def arguments(text):
    return st.fixed_dictionaries(
        {},
        optional={
            "text": text,
            "count": st.integers(-(10**12), 10**12),
            "ratio": st.floats(allow_nan=False, allow_infinity=False, width=32),
            "flag": st.booleans(),
            "items": st.lists(text | st.integers(), max_size=3),
            "nested": st.dictionaries(text, text, max_size=3),
        },
    )


def calls(text):
    return st.lists(st.tuples(names, arguments(text)), min_size=1, max_size=4)


def read(parsed):
    return [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls]


QUOTES = {"gemma": '<|"|>', "functiongemma": "<escape>"}
"""What a string cannot hold in a format that has no other way to write it."""


@pytest.mark.parametrize("name", IN_JSON)
@settings(max_examples=40, deadline=None)
@given(calls=calls(hostile))
def test_json_calls_are_read_back_whatever_their_strings_hold(name, calls):
    parser, write = IN_JSON[name]
    assume(QUOTES.get(name, "\0") not in str(calls))
    parsed = get_parser(parser).parse(write(calls), TOOLS)
    assert all(call.error is None for call in parsed.tool_calls)
    assert read(parsed) == calls
    assert parsed.content is None


@pytest.mark.parametrize("name", IN_TAGS)
@settings(max_examples=40, deadline=None)
@given(calls=calls(plain))
def test_tagged_calls_are_read_back_with_the_types_of_the_schema(name, calls):
    parser, write = IN_TAGS[name]
    parsed = get_parser(parser).parse(write(calls), TOOLS)
    assert all(call.error is None for call in parsed.tool_calls)
    assert read(parsed) == calls
    assert parsed.content is None


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("llama_adjacent", "llama4_list")])
def test_what_stands_before_and_after_is_content(name):
    parser, write = ALL[name]
    text = write([("terminal", {"text": "ls"}), ("read_file", {})])
    parsed = get_parser(parser).parse(f"First I look.\n{text}\nThen I wait.", TOOLS)
    assert parsed.content == "First I look.\nThen I wait."
    assert read(parsed) == [("terminal", {"text": "ls"}), ("read_file", {})]


@pytest.mark.parametrize("name", ALL)
def test_calls_that_are_only_thought_of_are_no_calls(name):
    parser, write = ALL[name]
    thought = f"<think>I could {write([('terminal', {})])}</think>\n\n"
    assert get_parser(parser).parse(thought + "No.", TOOLS).tool_calls == ()
    parsed = get_parser(parser).parse(thought + write([("read_file", {})]), TOOLS)
    assert read(parsed) == [("read_file", {})]
    assert parsed.content == thought.rstrip()


IN_THINK_TAGS = {name: of for name, of in ALL.items() if of[0] not in ("harmony", "gpt_oss")}


@pytest.mark.parametrize("name", IN_THINK_TAGS)
@settings(max_examples=20, deadline=None)
@given(calls=calls(plain), thought=plain)
def test_a_text_may_begin_inside_a_thought(name, calls, thought):
    parser, write = ALL[name]
    inside = f"{thought}I could {write([('terminal', {})])}"
    for again in ("", "<think>"):  # some models open once more what the prompt opened
        cut = get_parser(parser).parse(again + inside, TOOLS, thinking=True)
        assert (cut.content, cut.tool_calls) == (again + inside, ())
        parsed = get_parser(parser).parse(f"{again}{inside}</think>{write(calls)}", TOOLS, thinking=True)
        assert read(parsed) == calls
        assert parsed.content == f"{again}{inside}</think>"


@pytest.mark.parametrize("name", IN_THINK_TAGS)
def test_the_first_end_ends_a_thought_that_the_prompt_opened(name):
    parser, write = ALL[name]
    calls = [("terminal", {"text": "a</think>b"})]
    parsed = get_parser(parser).parse(f"Hm.</think>\n\n{write(calls)}", TOOLS, thinking=True)
    assert (parsed.content, read(parsed)) == ("Hm.</think>", calls)
    assert get_parser(parser).parse("", TOOLS, thinking=True).content == ""


@pytest.mark.parametrize("name", ["harmony", "harmony_in_channel"])
@settings(max_examples=20, deadline=None)
@given(text=st.lists(st.sampled_from(MARKS), max_size=12).map("".join))
def test_a_format_with_thoughts_of_its_own_needs_not_be_told(name, text):
    parser, write = ALL[name]
    for written in (text, text + write([("terminal", {"text": "</think>"})])):
        plain, told = (get_parser(parser).parse(written, TOOLS, call_number=1, thinking=t) for t in (False, True))
        assert plain == told


@pytest.mark.parametrize("name", ALL)
def test_a_text_without_calls_is_left_as_it_is(name):
    parser, _ = ALL[name]
    for text in ("", " plain text \n", "a { b } c", '{"answer": 42}', "[1, 2]"):
        parsed = get_parser(parser).parse(text, TOOLS)
        assert (parsed.content, parsed.tool_calls) == (text, ())


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None)
@given(text=hostile)
def test_nothing_raises_and_a_broken_call_is_never_taken_for_a_good_one(name, text):
    parser, write = ALL[name]
    for written in (text, text + write([("terminal", {"text": "x"})]) + text, write([("terminal", {})])[: len(text)]):
        parsed = get_parser(parser).parse(written, TOOLS)
        assert len({call.id for call in parsed.tool_calls}) == len(parsed.tool_calls)
        for call in parsed.tool_calls:
            assert call.name
            assert call.id
            if call.error is None:
                assert isinstance(json.loads(call.arguments), dict)
            else:
                assert call.name == UNREADABLE_NAME or not is_object(call.arguments)


def is_object(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("name", ALL)
def test_ids_are_unique_and_the_same_in_every_run_when_they_are_numbered(name):
    parser, write = ALL[name]
    text = write([("terminal", {})] * 3)
    numbered = [call.id for call in get_parser(parser).parse(text, TOOLS, call_number=7).tool_calls]
    again = [call.id for call in get_parser(parser).parse(text, TOOLS, call_number=7).tool_calls]
    unnumbered = [call.id for call in get_parser(parser).parse(text, TOOLS).tool_calls]
    assert numbered == again
    assert len(set(numbered)) == len(set(unnumbered)) == 3


def test_all_formats_are_listed():
    wanted = {"hermes", "qwen", "longcat", "mistral", "llama3_json", "llama4_json", "deepseek_v3", "deepseek_v3_1"}
    wanted |= {"deepseek_v31", "kimi_k2", "glm45", "glm47", "qwen3_coder", "deepseek_v3_2", "minimax"}
    wanted |= {"harmony", "gpt_oss", "gemma", "gemma4", "functiongemma"}
    assert wanted <= set(list_parsers())


def test_an_unknown_format_is_an_error_with_the_list():
    with pytest.raises(KeyError, match="hermes"):
        get_parser("nonsense")


def test_a_format_of_ones_own_can_be_registered():
    @register_parser("shouting_test_format")
    class Shouting(ToolCallParser):
        def find_calls(self, text, schemas):
            yield CallSpan(0, len(text), (ToolCall("", text.lower(), "{}"),))

    parsed = get_parser("shouting_test_format").parse("LS")
    assert parsed.tool_calls[0].name == "ls"
    assert parsed.content is None


def test_a_taken_id_is_counted_up():
    assert fresh_id("functions.ls:0", {"functions.ls:0", "functions.ls:1"}) == "functions.ls:2"
    assert fresh_id("call_1", {"call_1"}) == "call_1:2"
    assert fresh_id("call_1", set()) == "call_1"
