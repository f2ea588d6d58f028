"""exact_match, regex_extract, multiple_choice and json_schema."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.envs.reward_fns import registry
from atroposlib.envs.reward_fns.scoring import score
from atroposlib.errors import ConfigError, RewardError

# --- exact_match ---


@pytest.mark.parametrize(
    ("text", "parameters", "value"),
    [
        ("  New   York ", {}, 1.0),
        ("<think>Boston</think>new york", {}, 1.0),
        ("It is <answer>no</answer> <answer>New York</answer>.", {}, 1.0),
        ("new york", {"case_sensitive": True}, 0.0),
        ("New York City", {}, 0.0),
    ],
)
def test_an_exact_match_is_word_for_word(text, parameters, value):
    assert registry.create("exact_match", **parameters)([text], solution="New York") == [value]


def test_an_exact_match_with_any_of_several_truths_will_do():
    assert registry.create("exact_match")(["NYC"], solution=[["New York", "NYC"]]) == [1.0]


# --- regex_extract ---


@pytest.mark.parametrize(
    ("text", "gold", "parameters", "value"),
    [
        ("Result: 5", "5", {"pattern": r"Result:\s*(\S+)"}, 1.0),
        ("Result: 4\nResult: 5", "5", {"pattern": r"Result:\s*(\S+)"}, 1.0),
        ("Result: 4\nResult: 5", "4", {"pattern": r"Result:\s*(\S+)", "pick": "first"}, 1.0),
        ("result: 5", "5", {"pattern": r"Result:\s*(\S+)"}, 1.0),
        ("result: 5", "5", {"pattern": r"Result:\s*(\S+)", "case_sensitive": True}, 0.0),
        ("Result: 5.0", "5", {"pattern": r"Result:\s*(\S+)"}, 0.0),
        ("Result: 5.0", "5", {"pattern": r"Result:\s*(\S+)", "compare": "number"}, 1.0),
        ("Result: five", "5", {"pattern": r"Result:\s*(\S+)", "compare": "number"}, 0.0),
        ("Result: 5.01", "5", {"pattern": r"(\S+)$", "compare": "number", "tolerance": "0.1"}, 1.0),
        ("<think>Result: 5</think>", "5", {"pattern": r"Result:\s*(\S+)"}, 0.0),
        ("<think>Result: 5</think>", "5", {"pattern": r"Result: (\d)", "split_on_think_tag": False}, 1.0),
        ("k=v", "v", {"pattern": r"(?P<key>\w)=(?P<value>\w)", "group": "value"}, 1.0),
        ("k=v", "v", {"pattern": r"(\w)=(\w)", "group": 2}, 1.0),
        ("k=v", "k=v", {"pattern": r"\w=\w"}, 1.0),
        ("a (b)? c", "x", {"pattern": r"a(x)?"}, 0.0),
        ("anything", None, {"pattern": r"\w+", "compare": "found"}, 1.0),
        ("", None, {"pattern": r"\w+", "compare": "found"}, 0.0),
        ("5", ["4", "5"], {"pattern": r"\d"}, 1.0),
    ],
)
def test_what_a_pattern_finds_is_compared(text, gold, parameters, value):
    keywords = {} if gold is None else {"solution": [gold]}
    assert registry.create({"type": "regex_extract", "params": parameters})([text], **keywords) == [value]


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({}, "pattern"),
        ({"pattern": "("}, "is no regular expression"),
        ({"pattern": "a", "group": 1}, "has no group 1"),
        ({"pattern": "a", "group": "b"}, "has no group 'b'"),
        ({"pattern": "a", "compare": "maths"}, "compare"),
    ],
)
def test_wrong_patterns_are_errors_of_configuration(parameters, complaint):
    with pytest.raises(ConfigError, match=complaint):
        registry.create({"type": "regex_extract", "params": parameters})


async def test_a_pattern_that_backtracks_for_ever_is_an_error_of_its_item():
    reward = registry.create({"type": "regex_extract", "pattern": "(a+)+$", "compare": "found", "time_limit_s": 1})
    scores = await score(reward, ["aaa", "a" * 60 + "b", "a"])
    assert [each.reward for each in scores] == [1.0, None, 1.0]
    assert "took longer than 1 s" in str(scores.failures[1])


# --- multiple_choice ---

ITEM = {"choices": ["London", "Paris", "Rome"]}


@pytest.mark.parametrize(
    ("text", "gold", "parameters", "value"),
    [
        ("B", "B", {}, 1.0),
        ("The answer is (b).", "B", {}, 1.0),
        ("B) Paris", "(B)", {}, 1.0),
        ("C", "B", {}, 0.0),
        (r"<think>A</think>\boxed{B}", "B", {}, 1.0),
        ("B", 1, {}, 1.0),
        ("B", "1", {}, 1.0),
        ("B", 2, {"first_index": 1}, 1.0),
        ("no idea", "B", {}, 0.0),
        ("The answer is Paris.", "B", {"choices_field": "choices"}, 1.0),
        ("Paris", "B", {"choices_field": "choices"}, 1.0),
        ("Rome", "B", {"choices_field": "choices"}, 0.0),
        ("B", "Paris", {"choices_field": "choices"}, 1.0),
        ("D", "B", {"choices_field": "choices"}, 0.0),
        ("Z", "Z", {"letters": "XYZ"}, 1.0),
    ],
)
def test_the_choice_is_compared_by_its_letter(text, gold, parameters, value):
    assert registry.create("multiple_choice", **parameters)([text], solution=gold, item=ITEM) == [value]


@pytest.mark.parametrize(
    ("gold", "item", "parameters"),
    [
        ("Madrid", ITEM, {}),
        (7, ITEM, {"choices_field": "choices"}),
        ("D", ITEM, {"choices_field": "choices"}),
        ("B", {}, {"choices_field": "choices"}),
        ("B", None, {"choices_field": "choices"}),
        ("B", {"choices": "abc"}, {"choices_field": "choices"}),
    ],
)
def test_a_truth_that_is_no_choice_is_an_error(gold, item, parameters):
    with pytest.raises(RewardError, match="multiple_choice"):
        registry.create("multiple_choice", **parameters)(["B"], solution=gold, item=item)


def test_choices_may_be_nested_as_in_arc():
    item = {"choices": {"label": ["A", "B"], "text": ["ice", "fire"]}}
    assert registry.create("multiple_choice", choices_field="choices")(["fire"], solution="B", item=item) == [1.0]


# --- json_schema ---

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "parameters", "value"),
    [
        ('{"name": "ann", "age": 3}', {}, 1.0),
        ('<think>{}</think>\n{"name": "ann", "age": 3}', {}, 1.0),
        ('Here:\n```json\n{"name": "ann", "age": 3}\n```\nDone.', {}, 1.0),
        ('```\n{}\n```\n```json\n{"name": "ann", "age": 3}\n```', {}, 1.0),
        ('It is {"name": "ann", "age": 3}, I think.', {}, 1.0),
        ('It is {"name": "ann", "age": 3}, I think.', {"strict": True}, 0.0),
        ('{"name": "ann"}', {}, 0.0),
        ('{"name": "ann", "age": -1}', {}, 0.0),
        ('{"name": "ann", "age": 3, "more": 1}', {}, 0.0),
        ('{"name": "ann", "age": NaN}', {}, 0.0),
        ("no JSON", {}, 0.0),
        ("", {}, 0.0),
        ("{" * 100_000, {}, 0.0),
        ("[" * 100_000, {}, 0.0),
    ],
)
def test_json_is_found_and_validated(text, parameters, value):
    pytest.importorskip("jsonschema")
    assert registry.create("json_schema", schema=SCHEMA, **parameters)([text]) == [value]


def test_a_schema_may_stand_in_a_file_or_in_the_item(tmp_path):
    pytest.importorskip("jsonschema")
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    assert registry.create("json_schema", schema=str(path))(['{"name": "ann", "age": 3}']) == [1.0]
    by_item = registry.create("json_schema", schema_field="schema")
    assert by_item(["3"], item={"schema": {"type": "integer"}}) == [1.0]
    assert by_item(["3"], item={"schema": '{"type": "string"}'}) == [0.0]
    with pytest.raises(RewardError, match="no schema in its field 'schema'"):
        by_item(["3"], item={})
    with pytest.raises(RewardError, match="the schema itself is wrong"):
        by_item(["3"], item={"schema": {"type": "number or so"}})


@pytest.mark.parametrize(
    ("text", "gold", "value"),
    [
        ('{"a": [1]}', {"a": [1]}, 1.0),
        ('{"a": [1]}', '{"a": [1]}', 1.0),
        ('{"a": [2]}', '{"a": [1]}', 0.0),
        ("5", 5, 1.0),
    ],
)
def test_json_can_be_compared_with_the_truth(text, gold, value):
    assert registry.create("json_schema", compare=True)([text], solution=[gold]) == [value]
    with pytest.raises(RewardError, match="needs the right answers"):
        registry.create("json_schema", compare=True)([text])


@pytest.mark.parametrize("parameters", [{"schema": {"type": "number or so"}}, {"schema": "/no/such/file.json"}])
def test_a_wrong_schema_is_an_error_of_configuration(parameters):
    pytest.importorskip("jsonschema")
    with pytest.raises(ConfigError, match="schema"):
        registry.create("json_schema", **parameters)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_whatever_is_json_is_found_in_a_fence(value):
    text = f"Here you are:\n```json\n{json.dumps(value)}\n```\n"
    assert registry.create("json_schema", compare=True)([text], solution=[json.dumps(value)]) == [1.0]


@given(st.text(max_size=200))
def test_no_text_breaks_the_finding_of_json(text):
    assert registry.create("json_schema")([text])[0] in (0.0, 1.0)
