"""The contract of a reward."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

from atroposlib.envs.reward_fns import CombinedReward, RewardFunction, registry
from atroposlib.envs.reward_fns.verdict import Verdict, quoted
from atroposlib.errors import RewardError
from tests.atroposlib.envs.reward_fns.doubles import GivenReward, WaitingReward


async def judge(text: str) -> float:
    return float(len(text))


def test_rewards_are_weighted_and_reported():
    reported: list[dict[str, float]] = []
    reward = GivenReward([1, 0.5, False], weight=2.0, name="mine")
    reward.set_wandb_logger(SimpleNamespace(log=reported.append))
    assert reward(["a", "b", "c"]) == [2.0, 1.0, 0.0]
    assert reported == [
        {
            "reward/mine/mean_raw": 0.5,
            "reward/mine/mean_weighted": 1.0,
            "reward/mine/min": 0.0,
            "reward/mine/max": 1.0,
        }
    ]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (ValueError("broken grader"), "ValueError: broken grader"),
        (SystemExit(1), "SystemExit: 1"),
        ([1.0], "1 rewards for 2 completions"),
        ([1.0, float("nan")], "not finite"),
        ([1.0, None], "no numbers"),
        (None, "no numbers"),
        (RewardError("said so itself"), "said so itself"),
    ],
)
async def test_a_reward_that_fails_is_an_error_and_never_a_score(answer, complaint):
    def raise_or_return(completions, **_):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    reward = GivenReward(name="mine")
    reward.compute = raise_or_return
    with pytest.raises(RewardError, match=complaint):
        reward(["a", "b"])
    with pytest.raises(RewardError, match=complaint):
        CombinedReward([reward])(["a", "b"])


async def test_a_reward_that_waits_is_awaited():
    reward = WaitingReward(weight=2.0)
    assert await reward.acall(["a", "bb"], judge=judge) == [2.0, 4.0]
    assert await CombinedReward([reward, GivenReward([1, 1])]).acall(["a", "bb"], judge=judge) == [3.0, 5.0]
    with pytest.raises(RewardError, match="await acompute"):
        reward(["a"])


async def test_a_reward_that_waits_and_fails_is_an_error():
    with pytest.raises(RewardError, match="waiting failed: TypeError"):
        await WaitingReward().acall(["a"], judge=None)


@pytest.mark.parametrize(
    ("completion", "content"),
    [
        ("text", "text"),
        ({"role": "assistant", "content": "text"}, "text"),
        ({"message": {"role": "assistant", "content": "text"}}, "text"),
        ([{"role": "user", "content": "q"}, {"role": "assistant", "content": "text"}], "text"),
        ([{"role": "assistant", "content": None, "tool_calls": []}, {"role": "assistant", "content": "text"}], "text"),
        ([{"role": "assistant", "content": "a look first"}, {"role": "assistant", "content": "text"}], "text"),
        ({"role": "assistant", "content": [{"type": "text", "text": "te"}, {"type": "text", "text": "xt"}]}, "text"),
        ({"role": "user", "content": "q"}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_text_of_a_completion(completion, content):
    assert RewardFunction.get_content(completion) == content


def test_a_reward_is_called_by_its_registered_name_unless_it_has_one_of_its_own():
    assert registry.create("formatreasoning").name == "formatreasoning"
    assert registry.create("exactmatch").name == "exact_match"
    assert registry.create("length", name="short").name == "short"
    assert GivenReward().name == "given"


def test_a_verdict_is_a_number_that_says_why():
    verdict = Verdict(0.5, "half of it")
    assert verdict == 0.5
    assert (verdict * 2, sum([verdict, verdict])) == (1.0, 1.0)
    travelled = pickle.loads(pickle.dumps(verdict))
    assert (travelled, travelled.why) == (0.5, "half of it")


def test_a_quotation_is_short_and_on_one_line():
    assert quoted("two\nlines") == "“two⏎lines”"
    assert len(quoted("x" * 10_000)) < 100
    assert quoted("\x1b[31mred\u202e") == "“\\x1b[31mred\\u202e”"


@pytest.mark.parametrize(
    ("normalization", "expected"), [("none", [3.0, 2.0]), ("sum", [0.75, 0.5]), ("minmax", [1.0, 0.0])]
)
def test_weights_count_in_a_combination(normalization, expected):
    parts = [GivenReward([1, 0], weight=1.0), GivenReward([1, 1], weight=2.0), GivenReward([0, 0], weight=1.0)]
    assert CombinedReward(parts, normalization=normalization)(["a", "b"]) == expected


def test_a_combination_of_equals_has_no_range():
    assert CombinedReward([GivenReward([0.5, 0.5])], normalization="minmax")(["a", "b"]) == [0.5, 0.5]
    assert CombinedReward([GivenReward([])])([]) == []


def test_the_parts_of_a_combination_are_reported_too():
    reported: list[dict[str, float]] = []
    reward = CombinedReward([GivenReward([1.0], name="one"), GivenReward([0.0], name="two")], name="both")
    reward.set_wandb_logger(SimpleNamespace(log=reported.append))
    reward(["a"])
    assert [key for metrics in reported for key in metrics if key.endswith("mean_raw")] == [
        "reward/one/mean_raw",
        "reward/two/mean_raw",
        "reward/both/mean_raw",
    ]


def test_a_list_is_the_weighted_mean():
    config = [{"type": "format", "weight": 3.0}, {"type": "exact_match", "weight": 1.0}]
    assert registry.create(config)(["<think>x</think>5", "5"], solution="5") == [1.0, 0.25]


@pytest.mark.parametrize("name", ["accuracy", "exact_match", "accuracyx"])
def test_right_answers_must_be_given_one_for_each(name):
    reward = registry.create(name)
    assert reward(["a", "b"], solution=["a", "a"]) == reward(["a", "b"], ground_truth="a") == [1.0, 0.0]
    assert reward(["a"], solution="the whole derivation of a", ground_truth="a") == [1.0]
    with pytest.raises(RewardError, match="needs the right answers"):
        reward(["a"])
    with pytest.raises(RewardError, match="1 right answers for 2"):
        reward(["a", "b"], solution=["a"])
    with pytest.raises(RewardError, match="completion 1 is missing"):
        reward(["a", "b"], solution=["a", None])
    with pytest.raises(RewardError, match="a mapping of text, unit"):
        reward(["a"], solution={"text": "5", "unit": "m"})


@pytest.mark.parametrize(
    ("config", "answer", "box"),
    [
        ("accuracy", True, False),
        ("format", False, False),
        ("length", False, False),
        ("llm_judge", False, False),
        ("code_exec", True, True),
        ("json_schema", False, False),
        ({"type": "json_schema", "compare": True}, True, False),
        ({"type": "regex_extract", "pattern": "a"}, True, False),
        ({"type": "regex_extract", "pattern": "a", "compare": "found"}, False, False),
        (["format", "length"], False, False),
        (["format", "r1"], True, False),
        (["format", {"type": "combined", "rewards": ["code_exec"]}], True, True),
    ],
)
def test_a_reward_says_what_it_cannot_do_without(config, answer, box):
    reward = registry.create(config)
    assert (reward.needs_answer, reward.needs_box) == (answer, box)
