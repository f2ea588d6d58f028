"""format, formatreasoning, accuracyx, r1 and cascading_r1_math."""

from __future__ import annotations

import pytest

from atroposlib.envs.reward_fns import registry

WELL_FORMED = "<think>2 + 3</think>It is 5."


@pytest.mark.parametrize(
    ("parameters", "scores"),
    [
        ({}, [1.0, 1.0, 0.0, 1.0, 0.0]),
        ({"require_all_tags": True}, [1.0, 0.0, 0.0, 0.0, 0.0]),
        ({"case_sensitive": True}, [1.0, 1.0, 0.0, 0.0, 0.0]),
        ({"allow_empty": False}, [1.0, 0.0, 0.0, 1.0, 0.0]),
        ({"preferred_tags": ["x.y"]}, [0.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_format_looks_for_pairs_of_tags(parameters, scores):
    texts = [
        "<think>\na\n</think><answer>b</answer>",
        "<answer></answer>",
        "<think>open",
        "<THINK>a</think>",
        "</think><think>",
    ]
    assert registry.create({"type": "format", "params": parameters})(texts) == scores


def test_format_says_what_it_found_and_what_it_missed():
    [verdict] = registry.create("format").verdicts(["<think>a</think>"])
    assert verdict.why == "found <think>; missing <answer>"


@pytest.mark.parametrize(
    ("text", "parameters", "score"),
    [
        (WELL_FORMED, {}, 0.5),
        (WELL_FORMED, {"reward_value": 2.0}, 2.0),
        ("It is 5.", {}, 0.0),
        ("It is 5.", {"require_thinking": False}, 0.5),
        ("<think> </think>It is 5.", {}, 0.0),
        ("<think>2 + 3</think> ", {}, 0.0),
        ("<think>2 + 3</think> ", {"require_response": False}, 0.5),
        ("<think>2</think><think>3</think>It is 5.", {}, 0.0),
        ("<think>2</think><think>3</think>It is 5.", {"allow_multiple_thinking": True}, 0.5),
        ("<think>never closed. It is 5.", {}, 0.0),
        ("<think>a < b</think>5", {}, 0.5),
    ],
)
def test_formatreasoning_wants_thoughts_and_then_a_response(text, parameters, score):
    assert registry.create("formatreasoning", **parameters)([text]) == [score]


@pytest.mark.parametrize(
    ("text", "gold", "parameters", "score"),
    [
        ("It is 5.", "5", {}, 1.0),
        ("It is 15.", "5", {}, 0.0),
        ("It is -5.", "5", {}, 0.0),
        ("It is 5.0 or so", 5, {}, 1.0),
        ("It is 1,005.", "1005", {}, 1.0),
        ("It is 1,005.", "5", {}, 0.0),
        ("It is 2/4.", "0.5", {}, 1.0),
        ("It is 5.5.", "5", {}, 0.0),
        ("We go to Paris, then", "paris", {}, 1.0),
        ("Parisians", "paris", {}, 0.0),
        ("We go to paris", "Paris", {"case_sensitive": True}, 0.0),
        ("New\nYork", "new york", {}, 1.0),
        ("art, start, partial: art", "art", {}, 1.0),
        ("C++ it is", "C++", {}, 1.0),
        ("<think>5</think>It is 6.", "5", {}, 0.0),
        ("Paris", "paris", {"exact_match": True}, 1.0),
        ("It is Paris", "paris", {"exact_match": True}, 0.0),
        ("It is 5.", "5", {"reward_value": 0.25}, 0.25),
        ("It is 5.", ["4", "5"], {}, 1.0),
        ("anything", "", {}, 0.0),
    ],
)
def test_accuracyx_wants_the_answer_as_a_whole_in_the_response(text, gold, parameters, score):
    assert registry.create("accuracyx", **parameters)([text], solution=[gold]) == [score]


@pytest.mark.parametrize(
    ("text", "parameters", "score"),
    [
        (WELL_FORMED, {}, 1.5),
        ("It is 5.", {}, 1.0),
        ("<think>2 + 3</think>It is 15.", {}, 0.5),
        ("It is 15.", {}, 0.0),
        (WELL_FORMED, {"format_weight": 1.0, "accuracy_weight": 2.0}, 3.0),
        (WELL_FORMED, {"weight": 2.0}, 3.0),
    ],
)
def test_r1_is_form_and_accuracy(text, parameters, score):
    assert registry.create("r1", **parameters)([text], solution="5") == [score]


@pytest.mark.parametrize(
    ("text", "parameters", "score"),
    [
        (r"<think>2 < 3</think> \boxed{5}", {}, 1.5),
        (r"<think></think> \boxed{5}", {}, 1.5),
        (r"So: <think>2 < 3</think> \boxed{5}", {}, 1.0),
        (r"<think>a</think><think>b</think> \boxed{5}", {}, 1.0),
        (r"<think>a \boxed{5}", {}, 1.0),
        (r"\boxed{5}", {}, 1.0),
        (r"<think>2 < 3</think> \boxed{6}", {}, 0.0),
        (r"<think>2 < 3</think> \boxed{5}", {"reward_value": 0.25}, 1.25),
        (r"<think>2 < 3</think> \boxed{5.01}", {"tolerance": "0.1"}, 1.5),
    ],
)
def test_cascading_r1_math_gives_a_bonus_for_form_only_where_the_answer_is_right(text, parameters, score):
    assert registry.create({"type": "cascading_r1_math", "params": parameters})([text], solution="5") == [score]
