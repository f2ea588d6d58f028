"""What is particular to a format, case by case."""

import json

import pytest

from atroposlib.tool_call_parsers import get_parser
from atroposlib.tool_call_parsers.base import UNREADABLE_NAME
from atroposlib.tool_call_parsers.typed_values import value_of

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


def test_mistral_keeps_the_calls_of_a_list_apart():
    text = (
        '[TOOL_CALLS] [{"name": "a", "arguments": {}}, {"name": "b", "arguments": {oops}}, '
        '{"name": "c", "arguments": {}}]'
    )
    parsed = parse("mistral", text)
    assert [call.name for call in parsed.tool_calls] == ["a", "b", "c"]
    assert broken(parsed) == [("b", '{"name": "b", "arguments": {oops}}')]


def test_mistral_ids_are_kept_or_made_of_nine_letters():
    parsed = parse("mistral", '[TOOL_CALLS]a[CALL_ID]Xy1234567[ARGS]{}[TOOL_CALLS]b{"token": "[TOOL_CALLS]"}</s>')
    first, second = parsed.tool_calls
    assert first.id == "Xy1234567"
    assert len(second.id) == 9
    assert second.id.isalnum()
    assert json.loads(second.arguments) == {"token": "[TOOL_CALLS]"}


def test_mistral_without_arguments_is_an_error():
    assert broken(parse("mistral", "[TOOL_CALLS]write now, please")) == [("write", "write now, please")]


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


def coder(body, name="write"):
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def test_qwen_coder_types_come_from_the_schema_not_from_the_look_of_the_value():
    body = "".join(f"<parameter={name}>\n123\n</parameter>\n" for name in ("path", "lines", "other"))
    assert good(parse("qwen3_coder", coder(body))) == [("write", {"path": "123", "lines": 123, "other": "123"})]


def test_qwen_coder_keeps_indentation_and_tags_inside_a_value():
    value = "    if x:\n        print('</parameter>')\n"
    body = f"<parameter=path>\n{value}\n</parameter>\n"
    assert good(parse("qwen3_coder", coder(body))) == [("write", {"path": value})]


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


@pytest.mark.parametrize(
    ("text", "schema", "meant"),
    [
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, "5.0"),
        ("5", {"type": "number"}, 5),
        ("5e-1", {"type": "number"}, 0.5),
        ("1e999", {"type": "number"}, "1e999"),
        ("True", {"type": "boolean"}, True),
        ("yes", {"type": "boolean"}, "yes"),
        ("[1]", {"type": "array"}, [1]),
        ("{'a': None}", {"type": "object"}, {"a": None}),
        ("{}", {"type": "array"}, "{}"),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("7", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 7),
        ("2", {"enum": [1, 2]}, 2),
        ("a", {"enum": ["a", "b"]}, "a"),
        ("true", {}, "true"),
        ("true", {"type": "surprise"}, "true"),
    ],
)
def test_a_value_is_read_by_its_schema(text, schema, meant):
    value = value_of(text, schema)
    assert (value, type(value)) == (meant, type(meant))


HARMONY = (
    "<|channel|>analysis<|message|>I need the file.<|end|>"
    "<|start|>assistant<|channel|>commentary<|message|>Let me write it.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.write <|constrain|>json<|message|>"
    '{"path": "a <|call|> b", "lines": 2}<|call|>'
)


def test_harmony_thoughts_and_preambles_are_content_and_the_call_is_read():
    parsed = parse("harmony", HARMONY)
    assert good(parsed) == [("write", {"path": "a <|call|> b", "lines": 2})]
    assert parsed.content == "<think>\nI need the file.\n</think>\n\nLet me write it."


@pytest.mark.parametrize("end", ["", "<|return|>", "<|end|>"])
def test_harmony_answers_without_calls_lose_their_markup(end):
    text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.{end}"
    assert parse("harmony", text).content == "<think>\nHm.\n</think>\n\nIt is 4."
    assert parse("harmony", f"<|channel|>final<|message|>It is 4.{end}").content == "It is 4."


def test_harmony_thoughts_that_were_cut_stay_open():
    parsed = parse("harmony", "<|channel|>analysis<|message|>I wonder")
    assert (parsed.content, parsed.tool_calls) == ("<think>\nI wonder", ())


def test_harmony_a_broken_call_takes_no_other_with_it():
    text = (
        "<|channel|>commentary to=functions.write<|message|>{path: a}<|call|>"
        "<|start|>assistant<|channel|>commentary to=browser.search json<|message|>{}<|call|>"
        "<|start|>assistant to=functions.write<|channel|>commentary<|message|>[1]<|call|>"
    )
    parsed = parse("harmony", text)
    assert good(parsed) == [("browser.search", {})]
    assert broken(parsed) == [("write", "{path: a}"), ("write", "[1]")]


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
