"""What a model writes as arguments, and what a tool gets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools.arguments import check_arguments, parse_arguments
from environments.tools.base import ToolFailure, parameters

SCHEMA = parameters(
    ("command",),
    command={"type": "string"},
    timeout={"type": "integer"},
    background={"type": "boolean"},
    ratio={"type": "number"},
    mode={"type": "string", "enum": ["a", "b"]},
    items={"type": "array", "items": parameters(("id",), id={"type": "string"}, done={"type": "boolean"})},
    extra={"type": "object"},
)


@pytest.mark.parametrize("nothing", [None, "", "  ", "null", "{}", {}])
def test_nothing_means_no_arguments(nothing):
    assert parse_arguments(nothing) == {}


def test_an_object_may_come_parsed():
    assert parse_arguments({"a": 1}) == {"a": 1}


def test_a_newline_inside_a_string_is_accepted():
    assert parse_arguments('{"command": "a\nb"}') == {"command": "a\nb"}


@pytest.mark.parametrize("broken", ["{", "ls -la", '{"a": }', '{"a": 1} trailing'])
def test_broken_json_is_told_to_the_model(broken):
    with pytest.raises(ToolFailure, match="Invalid JSON"):
        parse_arguments(broken)


@pytest.mark.parametrize("other", ["[1]", "3", '"text"', "true", [1], 3])
def test_what_is_no_object_is_told_to_the_model(other):
    with pytest.raises(ToolFailure, match="must be a JSON object"):
        parse_arguments(other)


def test_deep_nesting_is_an_error_and_no_crash():
    with pytest.raises(ToolFailure):
        parse_arguments("[" * 100_000)


@given(st.one_of(st.text(), st.none(), st.integers(), st.dictionaries(st.text(), st.text())))
def test_whatever_is_written_gives_an_object_or_a_word_for_the_model(raw):
    try:
        arguments = check_arguments(parse_arguments(raw), SCHEMA)
    except ToolFailure:
        return
    assert isinstance(arguments, dict)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_every_value_of_every_parameter_is_converted_or_refused(value):
    for name in SCHEMA["properties"]:
        try:
            checked = check_arguments({"command": "x", name: value}, SCHEMA)
        except ToolFailure:
            continue
        assert value is None or name in checked


@pytest.mark.parametrize(
    ("given_value", "name", "converted"),
    [
        ("42", "timeout", 42),
        (42.0, "timeout", 42),
        ("true", "background", True),
        ("False", "background", False),
        ("0.5", "ratio", 0.5),
        (7, "command", "7"),
        ({"id": "1"}, "items", [{"id": "1"}]),
        ('[{"id": 3, "done": "true"}]', "items", [{"id": "3", "done": True}]),
        ('{"a": 1}', "extra", {"a": 1}),
    ],
)
def test_what_has_one_meaning_is_converted(given_value, name, converted):
    assert check_arguments({"command": "x", name: given_value}, SCHEMA)[name] == converted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", "soon"),
        ("timeout", 1.5),
        ("timeout", True),
        ("timeout", float("inf")),
        ("background", "maybe"),
        ("background", 1),
        ("command", ["ls"]),
        ("mode", "c"),
        ("items", [{}]),
        ("items", [{"id": "1", "unknown": 1}]),
        ("extra", "[]"),
    ],
)
def test_what_has_no_meaning_is_refused(name, value):
    with pytest.raises(ToolFailure):
        check_arguments({"command": "x"} | {name: value}, SCHEMA)


def test_a_missing_and_an_unknown_parameter_are_named():
    with pytest.raises(ToolFailure, match="Missing parameter 'command'"):
        check_arguments({}, SCHEMA)
    with pytest.raises(ToolFailure, match=r"Unknown parameter 'cmd'.*command"):
        check_arguments({"cmd": "ls"}, SCHEMA)


def test_null_for_an_optional_parameter_counts_as_absent():
    assert check_arguments(json.loads('{"command": "x", "timeout": null}'), SCHEMA) == {"command": "x"}
