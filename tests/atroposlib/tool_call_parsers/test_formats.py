"""What is particular to a format, case by case."""

import json
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atroposlib.tool_call_parsers import get_parser
from atroposlib.tool_call_parsers.base import MAX_CALLS, UNREADABLE_NAME, fresh_id
from atroposlib.tool_call_parsers.json_schema import without_references
from atroposlib.tool_call_parsers.typed_values import value_of
from tests.atroposlib.tool_call_parsers.formats import harmony

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


MISTRAL_IDS = st.sampled_from(["abc123def", "abc123de2", "000000001", "1 x", "", "call_1", "abc123defg", "é23456789"])


@pytest.mark.parametrize("in_list", [True, False])
@given(ids=st.lists(MISTRAL_IDS, min_size=1, max_size=6), number=st.none() | st.integers(0, 3))
def test_mistral_ids_have_nine_letters_and_are_unique_whatever_the_model_writes(in_list, ids, number):
    if in_list:
        text = "[TOOL_CALLS]" + json.dumps([{"name": "a", "arguments": {}, "id": id} for id in ids])
    else:
        text = "".join(f"[TOOL_CALLS]a[CALL_ID]{id}[ARGS]{{}}" for id in ids)
    parsed = get_parser("mistral").parse(text, TOOLS, call_number=number)
    made = [call.id for call in parsed.tool_calls]
    assert good(parsed) == [("a", {})] * len(ids)
    assert all(re.fullmatch("[A-Za-z0-9]{9}", id) for id in made)
    assert len(set(made)) == len(ids)
    if ids[0] in ("abc123def", "abc123de2", "000000001"):
        assert made[0] == ids[0]


def test_mistral_an_id_of_an_earlier_turn_is_counted_up_in_nine_letters():
    assert fresh_id("abc123def", {"abc123def", "abc123de2"}) == "abc123de3"
    taken = {"abc123def", *(f"abc123de{n}" for n in range(10)), *(f"abc123d{n}" for n in range(10, 100))}
    assert fresh_id("abc123def", taken) == "abc123100"


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


DEFINED = {
    "$defs": {
        "Count": {"type": "integer"},
        "Place": {"type": "object", "properties": {"x": {"type": "number"}}},
        "Colour": {"enum": ["red", 1]},
        "Again": {"$ref": "#/$defs/Count"},
        "Circle": {"$ref": "#/$defs/Circle"},
        "Tree": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Tree"}}, {"$ref": "#/$defs/Tree"}]},
        "a/b~c d": {"type": "boolean"},
    },
    "definitions": {"Old": {"type": ["integer", "null"]}},
    "type": "object",
}


@pytest.mark.parametrize(
    ("schema", "text", "meant"),
    [
        ({"$ref": "#/$defs/Count"}, "5", 5),
        ({"$ref": "#/$defs/Count", "description": "how many"}, "5", 5),
        ({"$ref": "#/$defs/Again"}, "5", 5),
        ({"$ref": "#/$defs/Place"}, '{"x": 1}', {"x": 1}),
        ({"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, '{"x": 1}', {"x": 1}),
        ({"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]}, "null", None),
        ({"allOf": [{"$ref": "#/$defs/Count"}], "default": 3}, "5", 5),
        ({"$ref": "#/definitions/Old"}, "null", None),
        ({"$ref": "#/$defs/Colour"}, "1", 1),
        ({"$ref": "#/$defs/a~1b~0c%20d"}, "true", True),
        ({"$ref": "#/$defs/Tree"}, "[[], []]", [[], []]),
        ({"$ref": "#/$defs/Tree/anyOf/0"}, "[]", []),
        ({"$ref": "#"}, "{}", {}),
        ({"$ref": "#/$defs/Circle"}, "5", "5"),
        ({"$ref": "#/$defs/Nowhere"}, "5", "5"),
        ({"$ref": "#/$defs/Tree/anyOf/9"}, "5", "5"),
        ({"$ref": "#Count"}, "5", "5"),
        ({"$ref": "https://example.org/schema#/$defs/Count"}, "5", "5"),
        ({"$ref": 5}, "5", "5"),
    ],
)
@pytest.mark.parametrize("parser", ["qwen3_coder", "minimax", "glm45", "deepseek_v3_2"])
def test_a_type_may_be_referred_to(parser, schema, text, meant):
    parameters = {**DEFINED, "properties": {"x": schema}}
    written = {
        "qwen3_coder": f"<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>",
        "minimax": f'<invoke name="f"><parameter name="x">{text}</parameter></invoke>',
        "glm45": f"<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
        "deepseek_v3_2": f'<｜DSML｜invoke name="f"><｜DSML｜parameter name="x">{text}</｜DSML｜parameter>'
        "</｜DSML｜invoke>",
    }[parser]
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    assert good(get_parser(parser).parse(written, tools)) == [("f", {"x": meant})]
    outer = {"$ref": "#/$defs/Whole", "$defs": {**DEFINED["$defs"], "Whole": {"properties": {"x": schema}}}}
    if "definitions" not in str(schema) and schema != {"$ref": "#"}:
        tools = [{"type": "function", "function": {"name": "f", "parameters": outer}}]
        assert good(get_parser(parser).parse(written, tools)) == [("f", {"x": meant})]


def test_schemas_that_multiply_are_looked_at_once():
    many = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(40)}
    root = {"$defs": {**many, "D40": {"type": "integer"}}}
    assert value_of("5", without_references({"$ref": "#/$defs/D0"}, root)) == 5
    deep = {"type": "integer"}
    for _ in range(5000):
        deep = {"anyOf": [deep]}
    assert value_of("5", without_references(deep, {})) == "5"


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


@pytest.mark.parametrize("role", [" to=functions.write", "to=functions.write", " to=functions.write ", "\n to=write"])
@pytest.mark.parametrize("kind", ["commentary json", "commentary <|constrain|>json", "commentary", "analysis"])
@pytest.mark.parametrize("parser", ["harmony", "gpt_oss"])
def test_harmony_a_call_may_begin_where_the_prompt_of_the_template_ends(parser, role, kind):
    text = f'{role}<|channel|>{kind}<|message|>{{"path": "a"}}'
    parsed = parse(parser, f"{text}<|call|>")
    assert (good(parsed), parsed.content) == ([("write", {"path": "a"})], None)
    assert good(parse(parser, text)) == [("write", {"path": "a"})]
    more = parse(parser, f"{text}<|call|><|start|>assistant<|channel|>final<|message|>Done.<|return|>")
    assert (good(more), more.content) == ([("write", {"path": "a"})], "Done.")
    assert broken(parse(parser, f"{role}<|channel|>{kind}<|message|>{{path}}<|call|>")) == [("write", "{path}")]


@given(
    calls=st.lists(st.tuples(st.sampled_from(["write", "read.it"]), st.dictionaries(st.text(), st.text())), min_size=1)
)
def test_harmony_what_the_template_writes_is_read_without_what_the_prompt_holds_of_it(calls):
    text = harmony(calls).removeprefix("<|start|>assistant")
    parsed = parse("harmony", text)
    assert (good(parsed), parsed.content) == (calls, None)


@pytest.mark.parametrize("text", [" to=functions.write", "to=me is no call", " to=functions.write{}", "so to=a<b"])
def test_harmony_what_only_looks_like_a_recipient_is_text(text):
    parsed = parse("harmony", text)
    assert (parsed.content, parsed.tool_calls) == (text, ())


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
