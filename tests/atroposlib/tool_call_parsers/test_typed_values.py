"""Values without types, read by the schema of their tool."""

import pytest

from atroposlib.tool_call_parsers import get_parser
from atroposlib.tool_call_parsers.json_schema import without_references
from atroposlib.tool_call_parsers.typed_values import value_of
from tests.atroposlib.tool_call_parsers.parsing import good


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
