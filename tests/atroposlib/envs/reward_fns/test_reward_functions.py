"""Rewards: weights, failures, names, and the built-in ones."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atroposlib.envs.reward_fns import CombinedReward, RewardFunction, RewardRegistry, registry
from atroposlib.envs.reward_fns.registry import snake_case
from atroposlib.errors import ConfigError, RewardError


class GivenReward(RewardFunction):
    """Answers what it was given."""

    def __init__(self, answer: Any = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.answer = answer

    def compute(self, completions: Any, **_: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class WaitingReward(RewardFunction):
    async def acompute(self, completions: Any, judge: Any = None, **_: Any) -> list[float]:
        return [await judge(completion) for completion in completions]


async def judge(text: str) -> float:
    return float(len(text))


# --- the contract ---


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
        ([1.0], "1 rewards for 2 completions"),
        ([1.0, float("nan")], "not finite"),
        ([1.0, None], "no numbers"),
        (None, "no numbers"),
        (RewardError("said so itself"), "said so itself"),
    ],
)
async def test_a_reward_that_fails_is_an_error_and_never_a_score(answer, complaint):
    reward = GivenReward(answer, name="mine")
    with pytest.raises(RewardError, match=complaint):
        reward(["a", "b"])
    with pytest.raises(RewardError, match=complaint):
        await reward.acall(["a", "b"])
    with pytest.raises(RewardError, match=complaint):
        CombinedReward([reward])(["a", "b"])


async def test_a_reward_that_waits_is_awaited():
    reward = WaitingReward(weight=2.0)
    assert await reward.acall(["a", "bb"], judge=judge) == [2.0, 4.0]
    assert await CombinedReward([reward, GivenReward([1, 1])]).acall(["a", "bb"], judge=judge) == [3.0, 5.0]
    with pytest.raises(RewardError, match="await acompute"):
        reward(["a"])


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


# --- combining ---


@pytest.mark.parametrize(
    ("normalization", "expected"), [("none", [3.0, 2.0]), ("sum", [0.75, 0.5]), ("minmax", [1.0, 0.0])]
)
def test_weights_count_in_a_combination(normalization, expected):
    parts = [GivenReward([1, 0], weight=1.0), GivenReward([1, 1], weight=2.0), GivenReward([0, 0], weight=1.0)]
    assert CombinedReward(parts, normalization=normalization)(["a", "b"]) == expected


def test_a_combination_of_equals_has_no_range():
    assert CombinedReward([GivenReward([0.5, 0.5])], normalization="minmax")(["a", "b"]) == [0.5, 0.5]
    assert CombinedReward([GivenReward([])])([]) == []


def test_a_list_is_the_weighted_mean():
    config = [{"type": "format", "weight": 3.0}, {"type": "exact_match", "weight": 1.0}]
    assert registry.create(config)(["<think>x</think>5", "5"], solution="5") == [1.0, 0.25]


@pytest.mark.parametrize(
    "config",
    [
        {"type": "combined", "rewards": ["format"], "normalization": "median"},
        {"type": "combined", "rewards": [{"type": "format", "weight": 0.0}], "normalization": "sum"},
        {"type": "combined"},
        {"type": "format", "weight": 1.0, "params": {"func": 1}, "compute": 2, "rewards": None, "self": 1},
        {"weight": 1.0},
        "no_such_reward",
        "no.such.module:Reward",
        "os:sep",
    ],
)
def test_wrong_configurations_are_errors_of_configuration(config):
    with pytest.raises(ConfigError):
        registry.create(config)


# --- names ---


def test_the_built_in_rewards_are_listed_before_they_are_imported():
    assert {"accuracy", "combined", "exact_match", "format", "length"} <= set(RewardRegistry().list())


@pytest.mark.parametrize("name", ["exact_match", "exactmatch", "ExactMatchReward", "exact-match", "exact_match_reward"])
def test_older_spellings_find_the_same_reward(name):
    assert type(registry.create(name)).__name__ == "ExactMatchReward"


@pytest.mark.parametrize(
    ("class_name", "name"),
    [("ReasoningStepsReward", "reasoning_steps"), ("R1Reward", "r1"), ("MyCustom", "my_custom"), ("Reward", "reward")],
)
def test_names_are_in_snake_case(class_name, name):
    assert snake_case(class_name) == name


def test_classes_are_registered_by_decorator_with_or_without_a_name():
    mine = RewardRegistry(folders=())

    @mine.register
    class MyCustomReward(GivenReward):
        pass

    @mine.register(name="special")
    class OtherReward(GivenReward):
        pass

    assert mine.list() == mine.list_registered() == ["my_custom", "special"]
    made = mine.create({"type": "my_custom", "weight": 0.5, "params": {"answer": [1.0]}})
    assert (type(made), made.weight, made(["a"])) == (MyCustomReward, 0.5, [0.5])
    assert mine.get("special") is OtherReward
    with pytest.raises(TypeError):
        mine.register(int)


def test_a_class_that_takes_a_name_replaces_its_holder():
    mine = RewardRegistry(folders=())
    mine.register(GivenReward, name="a_b")
    mine.register(WaitingReward, name="ab")
    assert mine.list() == ["ab"]
    assert mine.get("a_b") is WaitingReward


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = "from atroposlib.envs.reward_fns import RewardFunction, registry\n"
    body = "    def compute(self, completions, **kwargs): return [{}] * len(completions)\n"
    (tmp_path / "my_reward.py").write_text(
        base + "@registry.register\nclass FolderCustomReward(RewardFunction):\n" + body.format(1.0)
    )
    (tmp_path / "bare_class_reward.py").write_text(base + "class Bare(RewardFunction):\n" + body.format(2.0))
    (tmp_path / "plain.py").write_text("def plain(completions, scale=1, **kwargs): return 3.0 * scale\n")
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    return tmp_path


def test_files_of_a_folder_are_found_by_the_names_of_their_files(folder):
    mine = RewardRegistry([folder])
    assert mine.list() == ["bare_class", "broken", "my", "plain"]
    assert mine.create("bare_class")(["a"]) == [2.0]
    assert mine.create({"type": "plain", "params": {"scale": 2}})(["a", "b"]) == [6.0, 6.0]


def test_files_of_a_folder_are_found_by_the_names_of_their_classes(folder):
    registry.add_folder(folder)
    assert registry.create("folder_custom")(["a"]) == [1.0]
    assert "folder_custom" in registry.list()


def test_a_file_that_cannot_be_imported_is_named_where_a_name_is_not_found(folder):
    with pytest.raises(ConfigError, match=r"there are .*broken\.py cannot be imported: No module named"):
        RewardRegistry([folder]).get("broken")


def test_a_class_anywhere_is_named_by_its_module():
    made = registry.create({"type": f"{__name__}:GivenReward", "answer": [1.0]})
    assert isinstance(made, GivenReward)


def test_what_a_config_names_is_loaded():
    config = SimpleNamespace(reward_functions=["format", {"type": "length"}], reward_funcs=["accuracy"])
    assert registry.load_required_functions(config) == {"format", "length", "accuracy"}
    with pytest.raises(ConfigError):
        registry.load_required_functions(SimpleNamespace(reward_funcs=["no_such_reward"]))


# --- the built-in ones ---


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        (r"\boxed{5}", "5", True),
        (r"\boxed{15}", "5", False),
        (r"first \boxed{4}, no: \boxed{5}", "5", True),
        (r"<think>\boxed{5}</think> \boxed{6}", "5", False),
        ("42", 42, True),
        ("$42$", "42", True),
        ("The answer is 42.", "42", True),
        ("<answer> 42 </answer>", "42", True),
        ("So 3 apples and 4 pears make 7", "7", True),
        ("#### -5", "-5", True),
        ("#### 1,234", "1234", True),
        ("#### 1,234", "1", False),
        (r"\boxed{5} dollars", "2 + 3 = 5\n#### 5", True),
        (r"\boxed{1} \boxed{2}", "1,2", True),
        (r"\boxed{1} \boxed{2}", "2", True),
        (r"\boxed{x=5}", "5", True),
        (r"\boxed{10\%}", "10", True),
        (r"\boxed{10\%}", "0.1", True),
        (r"\boxed{\frac12}", "0.5", True),
        (r"\boxed{-\frac{1}{2}}", "-1/2", True),
        (r"\boxed{1/2}", "0.5", True),
        (r"\boxed{\$5}", "5", True),
        (r"\boxed{5 \text{ cm}}", "5", True),
        (r"\boxed{1.001}", "1", False),
        (r"\boxed{\text{Blue}}", "blue", True),
        (r"\boxed{red}", "blue", False),
        (r"\boxed{unclosed", "5", False),
        ("", "5", False),
        (r"\boxed{1}" * 7, "1", False),
        (r"\boxed{9^{9^{9^{9}}}}", "5", False),
        (r"\boxed{123456!}", "5", False),
    ],
)
def test_accuracy_judges_the_final_answer(text, gold, right):
    assert registry.create("accuracy")([text], solution=gold) == [float(right)]


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        (r"\boxed{(x+1)^2}", "x^2+2x+1", True),
        (r"\boxed{\frac{\sqrt{2}}{2}}", r"\frac{1}{\sqrt{2}}", True),
        (r"\boxed{[0,1)}", "[0,1)", True),
        (r"\boxed{(0,1)}", "[0,1)", False),
    ],
)
def test_accuracy_knows_mathematics_in_any_thread(text, gold, right):
    pytest.importorskip("math_verify")
    scores: list[list[float]] = []
    thread = threading.Thread(target=lambda: scores.append(registry.create("accuracy")([text], solution=gold)))
    thread.start()
    thread.join()
    assert scores == [[float(right)]]


@pytest.mark.parametrize("name", ["accuracy", "exact_match"])
def test_right_answers_must_be_given_one_for_each(name):
    reward = registry.create(name)
    assert reward(["a", "b"], solution=["a", "a"]) == reward(["a", "b"], ground_truth="a") == [1.0, 0.0]
    with pytest.raises(RewardError, match="solution, ground_truth"):
        reward(["a"])
    with pytest.raises(RewardError, match="1 right answers for 2"):
        reward(["a", "b"], solution=["a"])


def test_tolerance_may_come_from_yaml_as_text():
    assert registry.create({"type": "accuracy", "params": {"tolerance": "1e-2"}})(["1.001"], solution="1") == [1.0]


@pytest.mark.parametrize(
    ("parameters", "scores"),
    [
        ({}, [1.0, 1.0, 0.0, 1.0]),
        ({"require_all_tags": True}, [1.0, 0.0, 0.0, 0.0]),
        ({"case_sensitive": True}, [1.0, 1.0, 0.0, 0.0]),
        ({"preferred_tags": ["x.y"]}, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_format_looks_for_pairs_of_tags(parameters, scores):
    texts = ["<think>\na\n</think><answer>b</answer>", "<answer></answer>", "<think>open", "<THINK>a</think>"]
    assert registry.create({"type": "format", "params": parameters})(texts) == scores


def test_length_is_full_up_to_half_and_nothing_at_the_end():
    reward = registry.create({"type": "length", "max_tokens": 100})
    texts = [""] * 5
    assert reward(texts, token_lengths=[0, 50, 75, 100, 500]) == [1.0, 1.0, 0.5, 0.0, 0.0]
    assert reward(["word " * 75]) == [0.5]
    tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens: list(text))
    assert reward(["x" * 75], tokenizer=tokenizer) == [0.5]
    by_config = registry.create("length")
    assert by_config(["x"], token_lengths=[75], config=SimpleNamespace(max_tokens=100)) == [0.5]
    with pytest.raises(RewardError, match="max_tokens"):
        by_config(["x"])
    with pytest.raises(ConfigError, match="1 or more"):
        registry.create({"type": "length", "max_tokens": 0})


@pytest.mark.parametrize(
    ("text", "parameters", "score"),
    [
        ("  New   York ", {}, 1.0),
        ("<think>Boston</think>new york", {}, 1.0),
        ("It is <answer>no</answer> <answer>New York</answer>.", {}, 1.0),
        ("new york", {"case_sensitive": True}, 0.0),
        ("New York City", {}, 0.0),
    ],
)
def test_an_exact_match_is_word_for_word(text, parameters, score):
    assert registry.create("exact_match", **parameters)([text], solution="New York") == [score]
