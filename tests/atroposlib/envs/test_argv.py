"""Words of a command line become values by the type of the field that they are for."""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from atroposlib.envs.argv import Flag, Shape, read_value, split_flags
from atroposlib.errors import ConfigError


class Colour(Enum):
    RED = "red"


class Nested(BaseModel):
    depth: int = 1


def read(annotation: Any, *words: str) -> Any:
    (flag,) = split_flags(["--x", *words])
    return TypeAdapter(annotation).validate_python(read_value(flag, Shape(annotation)))


def test_flags_reach_to_the_next_one():
    flags = split_flags(["--a", "1", "2", "--b", "--c=x=y", "--d-e", "-1", "-h"])
    assert flags == [
        Flag("a", ("1", "2")),
        Flag("b", ()),
        Flag("c", ("x=y",), joined=True),
        Flag("d-e", ("-1",)),
        Flag("help", ()),
    ]


@pytest.mark.parametrize("words", [["stray"], ["--a=1", "stray"], ["-h", "stray"]])
def test_a_word_of_no_flag_is_an_error(words):
    with pytest.raises(ConfigError, match="stray"):
        split_flags(words)


@pytest.mark.parametrize(
    ("annotation", "words", "value"),
    [
        (bool, [], True),
        (bool, ["false"], False),
        (bool, ["True"], True),
        (bool, ["0"], False),
        (bool, ["off"], False),
        (bool | None, [], True),
        (bool | None, ["None"], None),
        (int, ["-1"], -1),
        (float, ["-1e-5"], -1e-5),
        (float, ["-.5"], -0.5),
        (float, ["-inf"], float("-inf")),
        (int | None, ["None"], None),
        (int | None, ["null"], None),
        (str | None, ["None"], None),
        (str | None, ["none"], "none"),
        (str, ["None"], "None"),
        (str, ["[1]"], "[1]"),
        (str, ["train[:100]"], "train[:100]"),
        (str, [""], ""),
        (Literal["a", "b"], ["b"], "b"),
        (Colour, ["red"], Colour.RED),
        (list[str], ["a", "b", "c"], ["a", "b", "c"]),
        (list[str], ["a,b, c"], ["a", "b", "c"]),
        (list[str], ["a"], ["a"]),
        (list[str], ['["a,b", "c"]'], ["a,b", "c"]),
        (list[str], ["[a, b]"], ["a", "b"]),
        (list[str], ["[]"], []),
        (list[int], ["-1", "2"], [-1, 2]),
        (list[int] | None, ["None"], None),
        (Sequence[float], ["1,2.5"], [1.0, 2.5]),
        (tuple[int, ...], ["1", "2"], (1, 2)),
        (set[str], ["a", "a"], {"a"}),
        (list[str | dict[str, Any]], ["length", '{"type": "r1"}'], ["length", {"type": "r1"}]),
        (list, ["a", "1"], ["a", 1]),
        (str | list[str], ["one"], "one"),
        (str | list[str], ["one", "two"], ["one", "two"]),
        (str | list[str], ['["one"]'], ["one"]),
        (dict[str, int], ['{"a": 1}'], {"a": 1}),
        (dict | None, ["{a: {b: [1]}}"], {"a": {"b": [1]}}),
        (Annotated[int | None, Field(ge=1)], ["2"], 2),
        (Any, ["5"], 5),
        (Any, ["text"], "text"),
        (Any, ["True"], True),
        (bool | int, ["1"], 1),
    ],
)
def test_a_value_is_read_by_its_type(annotation, words, value):
    assert read(annotation, *words) == value


@pytest.mark.parametrize(
    ("annotation", "words", "message"),
    [
        (int, [], "needs a value"),
        (list[str], [], "needs a value"),
        (int, ["1", "2"], "'2' follows"),
        (str, ["two", "words"], "quote"),
        (dict[str, int], ["a"], "--x.KEY VALUE"),
        (dict[str, int], ['{"a": '], "neither JSON nor YAML"),
    ],
)
def test_a_wrong_number_of_words_or_broken_json_is_an_error(annotation, words, message):
    with pytest.raises(ConfigError, match=message):
        read(annotation, *words)


@pytest.mark.parametrize(
    ("annotation", "described"),
    [
        (int | None, "int or None"),
        (list[str], "list of str"),
        (dict[str, int] | None, "dict or None"),
        (Literal["a", 1], "a | 1"),
        (Colour, "red"),
        (Nested, "dict"),
        (tuple[int, ...], "list of int"),
    ],
)
def test_a_type_is_described_in_a_readers_words(annotation, described):
    assert Shape(annotation).describe() == described


def test_the_shape_of_an_entry_is_that_of_the_mappings_values():
    assert Shape(dict[str, int] | None).inner("x").members == (int,)
    assert Shape(Nested).inner("depth").members == (int,)
    assert Shape(dict).inner("x").anything


words = st.text(min_size=1).filter(lambda word: not word.startswith("--") and word != "-h")


@given(st.lists(st.tuples(st.from_regex(r"[a-z_][a-z0-9_.]*", fullmatch=True), st.lists(words, max_size=3))))
def test_splitting_loses_no_word(groups):
    groups = [(name, values) for name, values in groups if name != "help"]
    typed = [word for name, values in groups for word in (f"--{name}", *values)]
    assert [(flag.name, list(flag.values)) for flag in split_flags(typed)] == groups


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans()))
def test_every_number_and_boolean_comes_back_in_both_forms(value):
    for flags in (["--x", str(value)], [f"--x={value}"]):
        (flag,) = split_flags(flags)
        read_back = TypeAdapter(type(value)).validate_python(read_value(flag, Shape(type(value))))
        assert read_back == value


@given(st.lists(st.integers(), min_size=1), st.text().filter(lambda text: not text.startswith("--") and text != "-h"))
def test_every_list_and_text_comes_back(numbers, text):
    assert read(list[int], *map(str, numbers)) == numbers
    assert read(list[int], ",".join(map(str, numbers))) == numbers
    assert read(str, text) == text
