"""Finding, listing and making rewards by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from atroposlib.envs.reward_fns import RewardFunction, RewardRegistry, registry
from atroposlib.envs.reward_fns.reward_function import snake_case
from atroposlib.errors import ConfigError
from tests.atroposlib.envs.reward_fns.doubles import GivenReward

BUILT_IN = {
    "accuracy",
    "accuracyx",
    "cascading_r1_math",
    "chandas_meter",
    "code_exec",
    "combined",
    "cosine_scaled",
    "crossword_format",
    "exact_match",
    "format",
    "formatreasoning",
    "json_schema",
    "length",
    "llm_judge",
    "multiple_choice",
    "r1",
    "reasoning_steps",
    "regex_extract",
    "repetition_penalty",
}


def test_the_built_in_rewards_are_listed_before_they_are_imported():
    program = (
        "from atroposlib.envs.reward_fns import registry; print(*registry.list(), len(registry.list_registered()))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {*said[:-1]} == BUILT_IN
    assert int(said[-1]) < len(BUILT_IN)


def test_the_built_in_rewards_keep_their_names_once_they_are_imported():
    for name in BUILT_IN:
        registry.get(name)
    assert set(registry.list()) >= BUILT_IN
    assert {name for name in registry.list() if registry.get(name).__module__.startswith("atroposlib.")} == BUILT_IN


@pytest.mark.parametrize(
    ("name", "class_name"),
    [
        ("exact_match", "ExactMatchReward"),
        ("exactmatch", "ExactMatchReward"),
        ("ExactMatchReward", "ExactMatchReward"),
        ("exact-match", "ExactMatchReward"),
        ("exact_match_reward", "ExactMatchReward"),
        ("reasoningsteps", "ReasoningStepsReward"),
        ("repetitionpenalty", "RepetitionPenaltyReward"),
        ("format_reasoning", "FormatReasoningReward"),
        ("formatreasoning", "FormatReasoningReward"),
        ("accuracy_x", "AccuracyXReward"),
        ("r1", "R1Reward"),
        ("cascading_r1_math_reward", "CascadingR1MathReward"),
    ],
)
def test_older_spellings_find_the_same_reward(name, class_name):
    assert registry.get(name).__name__ == class_name


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
    first, second = type("FirstReward", (GivenReward,), {}), type("SecondReward", (GivenReward,), {})
    mine.register(first, name="a_b")
    mine.register(second, name="ab")
    assert mine.list() == ["ab"]
    assert mine.get("a_b") is second


def test_a_class_of_the_user_keeps_its_name_when_the_built_in_one_is_imported_later():
    mine = RewardRegistry(folders=())
    own = type("LengthReward", (GivenReward,), {})
    mine.register(own)
    mine.register(registry.get("length"))
    assert mine.get("length") is own


# --- files ---


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
    registry.load(folder)
    assert registry.create("folder_custom")(["a"]) == [1.0]
    assert "folder_custom" in registry.list()


def test_a_file_from_anywhere_is_loaded_by_its_path(folder):
    mine = RewardRegistry(folders=())
    mine.load(str(folder / "bare_class_reward.py"))
    assert mine.list_registered() == ["bare_class"]


def test_a_module_is_loaded_by_its_name():
    mine = RewardRegistry(folders=())
    mine.load("tests.atroposlib.envs.reward_fns.doubles")
    assert {"given", "waiting", "obeying", "together"} <= set(mine.list_registered())


def test_a_file_dropped_into_the_package_is_found(folder):
    import atroposlib.envs.reward_fns as package

    dropped = Path(package.__file__).parent / "dropped_in_by_a_test_reward.py"
    dropped.write_text((folder / "bare_class_reward.py").read_text())
    try:
        assert RewardRegistry().create("dropped_in_by_a_test")(["a"]) == [2.0]
    finally:
        dropped.unlink()


@pytest.mark.parametrize("source", ["/no/such/file.py", "no_such_module", "no/such/folder"])
def test_what_cannot_be_loaded_is_named(source):
    with pytest.raises(ConfigError, match=source):
        RewardRegistry(folders=()).load(source)


def test_a_broken_file_is_named_where_it_is_loaded_and_where_its_name_is_asked_for(folder):
    mine = RewardRegistry([folder])
    with pytest.raises(ConfigError, match=r"'broken' cannot be imported from .*broken\.py: ModuleNotFoundError"):
        mine.get("broken")
    with pytest.raises(ConfigError, match=r"there are bare_class, my, plain; .*broken\.py cannot be imported"):
        RewardRegistry([folder]).get("something_else")
    with pytest.raises(ConfigError, match="no_such_module"):
        mine.load(folder / "broken.py")


def test_a_broken_file_that_was_mended_is_read_again(folder):
    mine = RewardRegistry([folder])
    with pytest.raises(ConfigError):
        mine.get("broken")
    (folder / "broken.py").write_text("def broken(completions, **kwargs): return 1.0\n")
    assert mine.create("broken")(["a"]) == [1.0]


def test_a_class_anywhere_is_named_by_its_module():
    made = registry.create({"type": f"{GivenReward.__module__}:GivenReward", "answer": [1.0]})
    assert isinstance(made, GivenReward)


def test_what_a_config_names_is_loaded():
    config = SimpleNamespace(reward_functions=["format", {"type": "length"}], reward_funcs=["accuracy"])
    assert registry.load_required_functions(config) == {"format", "length", "accuracy"}
    with pytest.raises(ConfigError):
        registry.load_required_functions(SimpleNamespace(reward_funcs=["no_such_reward"]))


# --- parameters ---


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"type": "combined", "rewards": ["format"], "normalization": "median"}, "'none', 'sum' or 'minmax'"),
        ({"type": "combined", "rewards": [{"type": "format", "weight": 0.0}], "normalization": "sum"}, "positive sum"),
        ({"type": "combined"}, "rewards"),
        ({"type": "format", "weight": 1.0, "params": {"func": 1}}, "it takes preferred_tags, .*weight, name"),
        ({"type": "accuracy", "tolerence": 1e-6}, "no parameter 'tolerence'.*did you mean tolerance"),
        ({"type": "accuracy", "tolerance": "narrow"}, "'tolerance' is 'narrow': Input should be a valid number"),
        ({"type": "format", "preferred_tags": "think"}, "'preferred_tags' is 'think'"),
        ({"type": "accuracy", "params": ["tolerance"]}, "must be a mapping"),
        ({"type": "reasoning_steps", "pattern_weights": {"steps": 1}}, "there are numbered_steps"),
        ({"weight": 1.0}, "needs its 'type'"),
        ("acuracy", "no reward function 'acuracy'.*did you mean accuracy.*there are accuracy, accuracyx"),
        ("no.such.module:Reward", "No module named"),
        ("os:sep", "neither a class nor a function"),
    ],
)
def test_wrong_configurations_are_errors_that_say_what_would_be_right(config, complaint):
    with pytest.raises(ConfigError, match=complaint):
        registry.create(config)


def test_numbers_that_yaml_reads_as_texts_become_numbers():
    reward = registry.create({"type": "accuracy", "weight": "0.5", "params": {"tolerance": "1e-2"}})
    assert (reward.tolerance, reward.weight) == (0.01, 0.5)
    assert reward(["1.001"], solution="1") == [0.5]


def test_numbers_become_numbers_by_the_default_where_a_parameter_has_no_annotation():
    mine = RewardRegistry(folders=())

    @mine.register
    class SeedReward(RewardFunction):
        def __init__(self, custom_param=1.0, rounds=2, label="x", weight=1.0, **kwargs):
            super().__init__(weight=weight, **kwargs)
            self.given = (custom_param, rounds, label)

    assert mine.create({"type": "seed", "custom_param": "2e0", "rounds": "3", "label": "4"}).given == (2.0, 3, "4")
    with pytest.raises(ConfigError, match="it takes custom_param, rounds, label, weight, name"):
        mine.create({"type": "seed", "custom_parm": 1})


def test_a_reward_without_a_constructor_reads_its_parameters_from_its_config():
    mine = RewardRegistry(folders=())

    @mine.register
    class BareReward(RewardFunction):
        def compute(self, completions, **kwargs):
            return [self.config["value"]] * len(completions)

    assert mine.create({"type": "bare", "weight": 2, "params": {"value": 0.5}})(["a"]) == [1.0]


def test_params_win_over_what_stands_beside_them_and_keywords_are_defaults():
    config = {"type": "length", "max_tokens": 10, "params": {"max_tokens": 20}}
    assert registry.create(config, max_tokens=5, weight=3.0).max_tokens == 20
    assert registry.create(config, max_tokens=5, weight=3.0).weight == 3.0
