"""accuracy: the final answer against the truth."""

from __future__ import annotations

import threading

import pytest

from atroposlib.envs.reward_fns import registry
from atroposlib.errors import RewardError


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        (r"\boxed{5}", "5", True),
        (r"\boxed{15}", "5", False),
        (r"first \boxed{4}, no: \boxed{5}", "5", True),
        (r"first \boxed{5}, no: \boxed{4}", "5", False),
        (r"<think>\boxed{5}</think> \boxed{6}", "5", False),
        (r"<think>\boxed{6}</think> \boxed{5}", "5", True),
        ("42", 42, True),
        ("42", 42.0, True),
        ("$42$", "42", True),
        ("So 3 apples and 4 pears make 7", "7", True),
        (r"\boxed{5} dollars", "2 + 3 = 5\n#### 5", True),
        (r"\boxed{5}", r"Since $2+3=5$ we get \boxed{5}.", True),
        (r"\boxed{1} \boxed{2}", "1,2", True),
        (r"\boxed{2} \boxed{1}", "1,2", True),
        (r"\boxed{1} \boxed{2}", "2", True),
        (r"\boxed{red}", "blue", False),
        (r"\boxed{unclosed", "5", False),
        ("", "5", False),
        (r"\boxed{B}", "B", True),
        ("(b) because it is so", "(B)", True),
        ("The answer is C.", "B", False),
        ("no letter at all", "B", False),
        (r"\boxed{3}", ["2", "3"], True),
        (r"\boxed{4}", ["2", "3"], False),
    ],
)
def test_the_final_answer_is_judged(text, gold, right):
    assert registry.create("accuracy")([text], solution=[gold]) == [float(right)]


@pytest.mark.parametrize(
    ("text", "gold", "why"),
    [
        (r"\boxed{5}", "#### 5", r"“5” (in the last \boxed{}) = “5” (truth)"),
        ("The answer is 6.", "5", "“6” (said to be the answer) ≠ “5” (truth)"),
        (r"\boxed{x+1}", "1+x", r"“x+1” (in the last \boxed{}) = “1+x” (truth) as mathematics"),
        (r"\boxed{6}", ["4", "5"], r"“6” (in the last \boxed{}) ≠ “4” (truth) and 1 more"),
        ("(B)", "C", "“B” (the whole text) ≠ “C” (truth)"),
        ("", "5", "there is no answer"),
        (r"\boxed{1}" * 7, "1", "7 boxes are guesses, at most 6 are allowed"),
    ],
)
def test_it_says_what_it_read_from_the_answer_and_from_the_truth(text, gold, why):
    [verdict] = registry.create("accuracy").verdicts([text], solution=[gold])
    assert verdict.why == why


def test_more_boxes_than_allowed_are_guesses():
    assert registry.create("accuracy")([r"\boxed{1}" * 7], solution="1") == [0.0]
    assert registry.create("accuracy", max_boxed_threshold=7)([r"\boxed{1}" * 7], solution="1") == [1.0]


def test_thoughts_count_where_they_are_not_split_off():
    text = r"<think>\boxed{5}</think> I am done"
    assert registry.create("accuracy")([text], solution="5") == [0.0]
    assert registry.create("accuracy", split_on_think_tag=False)([text], solution="5") == [1.0]


@pytest.mark.parametrize(("answer", "tolerance", "right"), [("1.01", 0.1, 1.0), ("1.01", 0.001, 0.0), ("2", 1, 1.0)])
def test_tolerance_is_the_distance_that_is_allowed(answer, tolerance, right):
    assert registry.create("accuracy", tolerance=tolerance)([answer], solution="1") == [right]


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        (r"\boxed{(x+1)^2}", "x^2+2x+1", True),
        (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}", True),
        (r"\boxed{(0,1)}", "[0,1)", False),
    ],
)
def test_mathematics_is_known_in_any_thread(text, gold, right):
    pytest.importorskip("math_verify")
    scores: list[list[float]] = []
    thread = threading.Thread(target=lambda: scores.append(registry.create("accuracy")([text], solution=gold)))
    thread.start()
    thread.join()
    assert scores == [[float(right)]]


def test_what_would_take_for_ever_is_an_error_also_without_scoring():
    pytest.importorskip("math_verify")
    reward = registry.create("accuracy", time_limit_s=1.0)
    with pytest.raises(RewardError, match=r"comparing '9\^\{9\^\{9\^\{9\}\}\}' with '5' took longer than 1 s"):
        reward([r"\boxed{4}", r"\boxed{9^{9^{9^{9}}}}"], solution="5")
    assert reward([r"\boxed{\sqrt{25}}"], solution="5") == [1.0]
