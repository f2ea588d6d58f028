"""What is particular to a format, case by case."""

import json
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atroposlib.tool_call_parsers.base import MAX_CALLS, UNREADABLE_NAME
from tests.atroposlib.tool_call_parsers.parsing import broken, good, parse


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>{"name": "a", "arguments": {"x": "1\n2"}}</tool_call>',  # a literal newline
        "<tool_call>{'name': 'a', 'arguments': {'x': '1\\n2'}}</tool_call>",  # Python's quotes
        '<tool_call>{"name": "a", "arguments": "{\\"x\\": \\"1\\\\n2\\"}"}</tool_call>',  # encoded twice
        '<tool_call>\n{"name": "a", "arguments": {"x": "1\\n2"}}\n',  # unclosed
        '<tool_call>{"name": "a", "arguments": {"x": "1\\n2"}}}</tool_call>',  # one brace too many
        '<tool_call>{"name": "a", "parameters": {"x": "1\\n2"}}</tool_call>',  # another key
        '<tool_call>[{"name": "a", "arguments": {"x": "1\\n2"}}]</tool_call>',  # in a list
    ],
)
def test_hermes_slips_that_leave_no_doubt_are_forgiven(call):
    assert good(parse("hermes", call)) == [("a", {"x": "1\n2"})]


@pytest.mark.parametrize(("arguments", "meant"), [("null", {}), ('""', {}), ("{}", {}), ('{"é": null}', {"é": None})])
def test_hermes_arguments_of_nothing_are_an_empty_object(arguments, meant):
    assert good(parse("hermes", f'<tool_call>{{"name": "a", "arguments": {arguments}}}</tool_call>')) == [("a", meant)]


def test_hermes_a_broken_call_takes_no_other_with_it_and_stays_readable():
    text = (
        '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
        '<tool_call>{"name": "b", "arguments": {"x": }}</tool_call> and '
        '<tool_call>{"name": "c", "arguments": {}}</tool_call>'
    )
    parsed = parse("hermes", text)
    assert [call.name for call in parsed.tool_calls] == ["a", "b", "c"]
    assert broken(parsed) == [("b", '{"name": "b", "arguments": {"x": }}')]
    assert parsed.content == "and"


@pytest.mark.parametrize(
    ("call", "name", "why"),
    [
        ('{"arguments": {}}', UNREADABLE_NAME, "names no tool"),
        ('{"name": 7, "arguments": {}}', UNREADABLE_NAME, "names no tool"),
        ('{"name": "a", "arguments": [1]}', "a", "must be a JSON object"),
        ('{"name": "a", "arguments": "ls"}', "a", "not valid JSON"),
        ("ls -la", UNREADABLE_NAME, "not valid JSON"),
        ("", UNREADABLE_NAME, "not valid JSON"),
        ("[]", UNREADABLE_NAME, "must be a JSON object"),
    ],
)
def test_hermes_what_is_no_call_is_an_error_with_a_reason(call, name, why):
    (read,) = parse("hermes", f"<tool_call>{call}</tool_call>").tool_calls
    assert read.name == name
    assert why in read.error


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "[-1e999]", '{"y": NaN}'])
@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>{"name": "write", "arguments": {"any": %s, "path": "</tool_call>"}}</tool_call>'),
        ("mistral", '[TOOL_CALLS]write{"any": %s}'),
        ("llama3_json", '{"name": "write", "parameters": {"any": %s}}'),
        ("kimi_k2", '<|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>{"any": %s}<|tool_call_end|>'),
        ("harmony", '<|channel|>commentary to=functions.write<|message|>{"any": %s}<|call|>'),
        ("gemma", "<|tool_call>call:write{any:%s}<tool_call|>"),
        ("hermes", "<tool_call>{'name': 'write', 'arguments': {'any': %s}}</tool_call>"),
    ],
)
def test_numbers_that_json_does_not_know_are_an_error(parser, text, number):
    parsed = parse(parser, text % number)
    (call,) = parsed.tool_calls
    if call.error is None:  # gemma: a bare word that is no JSON is text
        assert isinstance(strict(call.arguments)["any"], str)
        return
    assert parsed.content is None or "'" in text
    assert call.name == "write"
    with pytest.raises((ValueError, AssertionError)):
        assert isinstance(json.loads(call.arguments), dict)


def strict(text):
    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("count", [MAX_CALLS - 1, MAX_CALLS, MAX_CALLS + 1, 3 * MAX_CALLS])
@pytest.mark.parametrize(
    ("parser", "opening", "closing"), [("mistral", "[TOOL_CALLS]", ""), ("hermes", "<tool_call>", "</tool_call>")]
)
def test_a_list_of_too_many_calls_is_cut_and_says_so(parser, opening, closing, count):
    parsed = parse(parser, opening + json.dumps([{"name": "a", "arguments": {}}] * count) + closing + " rest")
    assert good(parsed) == [("a", {})] * min(count, MAX_CALLS)
    if count > MAX_CALLS:
        assert "more than" in parsed.tool_calls[-1].error
    else:
        assert parsed.content == "rest"


def test_llama_reads_objects_that_follow_each_other_directly():
    text = '{"name": "a", "parameters": {}}{"name": "b", "parameters": {"x": {"name": "c"}}}'
    assert good(parse("llama3_json", text)) == [("a", {}), ("b", {"x": {"name": "c"}})]


def test_llama_json_in_prose_is_a_call_only_if_it_names_a_tool_that_was_offered():
    text = (
        'Such as {"name": "nothing", "parameters": {}}, or rather {"name": "write", "parameters": {"path": "p"}} now.'
    )
    parsed = parse("llama3_json", text)
    assert good(parsed) == [("write", {"path": "p"})]
    assert parsed.content.startswith('Such as {"name": "nothing", "parameters": {}}, or rather')
    assert parsed.content.endswith("now.")


def test_llama_a_broken_call_is_told_and_the_next_one_read():
    parsed = parse("llama3_json", '<|python_tag|>{"name": "a", "parameters": {x}}; {"name": "b", "parameters": {}}')
    assert broken(parsed) == [("a", '{"name": "a", "parameters": {x}}')]
    assert good(parsed) == [("b", {})]


def test_deepseek_needs_no_section_and_forgives_a_missing_fence():
    text = "I see.<｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n{}<｜tool▁call▁end｜>"
    parsed = parse("deepseek_v3", text)
    assert good(parsed) == [("a", {})]
    assert parsed.content == "I see."


def test_deepseek_broken_arguments_are_told():
    text = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{x}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    parsed = parse("deepseek_v3_1", text)
    assert broken(parsed) == [("a", "{x}")]
    assert parsed.content is None


def test_kimi_keeps_ids_and_dots_in_names():
    text = "<|tool_call_begin|>functions.my.tool:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    (call,) = parse("kimi_k2", text).tool_calls
    assert (call.name, call.id) == ("my.tool", "functions.my.tool:3")


def test_kimi_an_id_used_twice_is_counted_up():
    one = "<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert [call.id for call in parse("kimi_k2", one * 3).tool_calls] == [
        "functions.a:0",
        "functions.a:1",
        "functions.a:2",
    ]


def test_kimi_an_id_ends_with_its_call():
    begin, separator, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    parsed = parse("kimi_k2", f"{begin}functions.a:0{end}{begin}functions.b:1{separator}{{}}{end}")
    assert good(parsed) == [("a", {}), ("b", {})]
    assert [call.id for call in parsed.tool_calls] == ["functions.a:0", "functions.b:1"]
    for unsure in (f"{begin}functions.a:0", f"{begin}a{end} so {separator}{{}}", f"{begin}a b:1{end}"):
        assert [name for name, _ in broken(parse("kimi_k2", unsure))] == [UNREADABLE_NAME]


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_kimi_a_call_with_nothing_for_arguments_has_none(blank):
    call = f"<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{blank}"
    section = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
    parsed = parse("kimi_k2", section.format(f"{call}<|tool_call_end|>" * 2))
    assert good(parsed) == [("a", {})] * 2
    assert parsed.content is None
    cut = parse("kimi_k2", call)
    assert broken(cut) == [("a", "")]  # the length ended it, so that nobody knows what would have come


@pytest.mark.parametrize(
    ("parser", "written"),
    [("deepseek_v3", "function<｜tool▁sep｜>a\n```json\n\n```"), ("deepseek_v3_1", "a<｜tool▁sep｜>")],
)
def test_deepseek_a_call_with_nothing_for_arguments_has_none(parser, written):
    assert good(parse(parser, f"<｜tool▁call▁begin｜>{written}<｜tool▁call▁end｜>")) == [("a", {})]


@pytest.mark.parametrize(
    "call", ["<tool_call>a</tool_call>", "<tool_call>a\n</tool_call>", "<tool_call>\na\n</tool_call>"]
)
def test_glm_a_call_may_have_no_arguments(call):
    assert good(parse("glm47", call)) == [("a", {})]


def test_glm_tags_inside_a_value_belong_to_it():
    text = "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>b</tool_call>c</arg_value>\n</tool_call>"
    assert good(parse("glm45", text)) == [("write", {"path": "a</arg_value>b</tool_call>c"})]


def test_glm_an_unfinished_call_is_told():
    parsed = parse("glm45", "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>/tmp")
    assert [name for name, _ in broken(parsed)] == ["write"]


def test_glm_a_value_without_an_end_does_not_swallow_the_next_call():
    start = "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>"
    parsed = parse("glm45", f"{start}a\n</tool_call>\n{start}b</arg_value>\n</tool_call>")
    assert good(parsed) == [("write", {"path": "b"})]
    assert [name for name, _ in broken(parsed)] == ["write"]
    quoted = parse("glm45", f"{start}a</tool_call>\n<tool_call>b</arg_value>\n</tool_call>")
    assert good(quoted) == [("write", {"path": "a</tool_call>\n<tool_call>b"})]


def coder(body, name="write"):
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def test_qwen_coder_types_come_from_the_schema_not_from_the_look_of_the_value():
    body = "".join(f"<parameter={name}>\n123\n</parameter>\n" for name in ("path", "lines", "other"))
    assert good(parse("qwen3_coder", coder(body))) == [("write", {"path": "123", "lines": 123, "other": "123"})]


def test_qwen_coder_keeps_indentation_and_tags_inside_a_value():
    value = "    if x:\n        print('</parameter>')\n"
    body = f"<parameter=path>\n{value}\n</parameter>\n"
    assert good(parse("qwen3_coder", coder(body))) == [("write", {"path": value})]


TAGGED = {
    "qwen3_coder": (
        "<tool_call>\n<function={}>\n",
        "<parameter={}>\n",
        "\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "minimax": (
        '<minimax:tool_call><invoke name="{}">',
        '<parameter name="{}">',
        "</parameter>",
        "</invoke></minimax:tool_call>",
    ),
    "deepseek_v3_2": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="{}">',
        '<｜DSML｜parameter name="{}" string="true">',
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke></｜DSML｜function_calls>",
    ),
}


@pytest.mark.parametrize("parser", TAGGED)
@pytest.mark.parametrize("before", ["", "a "])
@pytest.mark.parametrize("after", ["", " b"])
def test_a_value_that_holds_the_end_of_a_call_is_read_as_it_is(parser, before, after):
    call, opening, closing, end = TAGGED[parser]
    value = before + end + after
    one = (
        call.format("write") + opening.format("path") + value + closing + opening.format("other") + "x" + closing + end
    )
    parsed = parse(parser, f"Now\n{one}\n{one}\nthen")
    assert good(parsed) == [("write", {"path": value, "other": "x"})] * 2
    assert parsed.content == "Now\nthen"


@pytest.mark.parametrize("parser", TAGGED)
@settings(deadline=None)
@given(data=st.data())
def test_a_value_may_hold_all_tags_but_its_own_end_before_another_and_a_new_call(parser, data):
    call, opening, closing, end = TAGGED[parser]
    tags = re.findall(r"<[^>]*>", (call + opening + closing + end).replace("{}", "path"))
    wrapper_open, call_open, parameter_open, parameter_close, call_close, _ = tags
    pieces = st.sampled_from([*tags, "\n", " ", "a", '"', "{"])
    values = data.draw(st.lists(st.lists(pieces, max_size=8).map("".join), min_size=1, max_size=3))
    ends = re.compile(rf"{parameter_close}\s*({call_close}|{re.escape(parameter_open)})")
    begins = re.compile(rf"({wrapper_open}|{call_close})\s*{re.escape(call_open)}")
    assume(not any(pattern.search(value) for pattern in (ends, begins) for value in values))
    written = "".join(opening.format("path" * n) + value + closing for n, value in enumerate(values, 1))
    parsed = parse(parser, call.format("write") + written + end)
    assert good(parsed) == [("write", {"path" * n: value for n, value in enumerate(values, 1)})]
    assert parsed.content is None


def test_qwen_coder_a_value_that_ends_twice_is_told_and_takes_no_other_call_with_it():
    inner = "a\n</parameter>\n</function>\n</tool_call>\nb"
    parsed = parse("qwen3_coder", coder(f"<parameter=path>\n{inner}\n</parameter>\n") + "\nand\n" + coder(""))
    assert good(parsed) == [("write", {})]
    ((name, raw),) = broken(parsed)
    assert (name, inner in raw) == ("write", True)


def test_qwen_coder_forgives_a_missing_end_of_a_parameter_and_a_missing_wrapper():
    text = "Now: <function=write>\n<parameter=path>\na\n<parameter=lines>2</function>"
    parsed = parse("qwen3_coder", text)
    assert good(parsed) == [("write", {"path": "a", "lines": 2})]
    assert parsed.content == "Now:"


def test_qwen_coder_a_call_without_an_end_does_not_swallow_the_next():
    text = "<tool_call>\n<function=write>\n<parameter=path>\na\n</tool_call>\n" + coder(
        "<parameter=path>\nb\n</parameter>\n"
    )
    parsed = parse("qwen3_coder", text)
    assert good(parsed) == [("write", {"path": "b"})]
    assert [name for name, _ in broken(parsed)] == ["write"]


def test_dsml_says_itself_what_is_a_string():
    text = (
        '<｜DSML｜function_calls><｜DSML｜invoke name="a">'
        '<｜DSML｜parameter name="x" string="true">1</｜DSML｜parameter>'
        '<｜DSML｜parameter name="y" string="false">[1]</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>'
    )
    assert good(parse("deepseek_v3_2", text)) == [("a", {"x": "1", "y": [1]})]
