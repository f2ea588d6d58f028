"""The command line from end to end: what a user types, what comes out, and with which exit code."""

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from tests.atroposlib.envs.counting_env import CountingEnv, lines, run
from tests.atroposlib.envs.server_handling.stub_engine import StubEngine, serving

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Runs write where they are started unless told otherwise."""
    monkeypatch.chdir(tmp_path)


# process


def test_process_writes_as_many_groups_as_were_asked_for_in_the_order_of_items(tmp_path, capsys):
    path = tmp_path / "new" / "groups.jsonl"
    code = run(CountingEnv, "process", "--env.total_steps", "5", "--data_path_to_save_groups", str(path))
    assert code == 0
    groups = lines(path)
    assert [group["tokens"][0][0] for group in groups] == [1, 2, 3, 4, 5]
    assert groups[0]["anything"] == [1, 1]
    assert groups[0]["inference_logprobs"] == [[1.0, -0.5, -0.25]] * 2
    assert groups[0]["distill_token_ids"] is None
    assert f"process --show {path}" in capsys.readouterr().out


def test_a_second_run_writes_to_a_new_file(tmp_path):
    path = tmp_path / "groups.jsonl"
    for _ in range(3):
        assert run(CountingEnv, "process", "--total_steps", "1", "--data_path_to_save_groups", str(path)) == 0
    assert sorted(each.name for each in tmp_path.glob("*.jsonl")) == [
        "groups.jsonl",
        "groups_1.jsonl",
        "groups_2.jsonl",
    ]


def test_process_writes_to_the_data_folder_unless_told_otherwise(tmp_path):
    assert run(CountingEnv, "process", "--env.total_steps", "1") == 0
    assert len(lines(tmp_path / "data" / "counting.jsonl")) == 1
    assert (tmp_path / "data" / "counting.html").read_text().count("nothing") >= 2


def test_one_rollout_is_shown_readably_after_a_run_or_from_a_file(tmp_path, capsys):
    path = tmp_path / "groups.jsonl"
    words = ("process", "--env.total_steps", "2", "--data_path_to_save_groups", str(path))
    assert run(CountingEnv, *words, "--show") == 0
    after_run = capsys.readouterr().out
    assert run(CountingEnv, "process", "--show", str(path)) == 0
    from_file = capsys.readouterr().out
    for shown in (after_run, from_file):
        assert "[user]\n1\n" in shown
        assert "[assistant]\nnothing" in shown
        assert "2 of them trained on" in shown


def test_a_group_of_one_is_a_group(tmp_path):
    path = tmp_path / "groups.jsonl"
    words = ("--env.group_size", "1", "--env.ensure_scores_are_not_same", "--env.total_steps", "2")
    assert run(CountingEnv, "process", *words, "--data_path_to_save_groups", str(path)) == 0
    assert [len(group["tokens"]) for group in lines(path)] == [1, 1]


def test_a_run_without_a_path_keeps_going_when_items_run_out(tmp_path, caplog):
    assert run(CountingEnv, "process", "--env.items", "3", "--env.total_steps", "9") == 0
    assert len(lines(tmp_path / "data" / "counting.jsonl")) == 3
    assert "3 of 9 groups were made" in caplog.text


def test_a_run_that_collects_nothing_ends_and_says_why(tmp_path, capsys):
    assert run(CountingEnv, "process", "--env.fail_every", "1") == 1
    assert "items in a row gave no group: RuntimeError (" in capsys.readouterr().err
    assert list(tmp_path.rglob("*.jsonl")) == []


class FromAList(CountingEnv):
    """Takes its items as most environments do: by index, modulo the length, at random or from an iterator."""

    items: ClassVar[list[int]] = []
    how = "index"

    async def get_next_item(self):
        ways = {
            "index": lambda: self.items[0],
            "modulo": lambda: self.items[1 % len(self.items)],
            "choice": lambda: random.choice(self.items),
            "iterator": lambda: next(iter(self.items)),
            "none": lambda: None,
        }
        return ways[self.how]()


@pytest.mark.parametrize("how", ["index", "modulo", "choice", "iterator", "none"])
def test_an_environment_without_items_is_an_error_that_says_so(how, capsys):
    assert run(type("Empty", (FromAList,), {"how": how}), "process") == 2
    said = capsys.readouterr().err
    assert "Empty has no items: its dataset is empty" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("mode", "method"),
    [
        ("process", "setup"),
        ("process", "get_next_item"),
        ("process", "collect_trajectory"),
        ("process", "collect_trajectories"),
        ("process", "postprocess_histories"),
        ("process", "cleanup"),
        ("process", "preflight"),
        ("evaluate", "evaluate"),
        ("serve", "setup"),
    ],
)
def test_a_method_without_async_is_named_at_once(mode, method, capsys, caplog):
    def written_plainly(self, *args):
        return {}

    assert run(type("Plain", (CountingEnv,), {method: written_plainly}), mode) == 2
    said = capsys.readouterr().err
    assert f"Plain.{method}() gave dict, which cannot be awaited; write it as `async def {method}`" in said
    assert "Traceback" not in said + caplog.text
    assert "failed" not in caplog.text


def test_methods_that_an_environment_lacks_are_named_before_it_is_made(capsys):
    class Bare(BaseEnv):
        pass

    assert run(Bare, "process") == 2
    lacking = "evaluate(), get_next_item(), setup(), collect_trajectory() or collect_trajectories()"
    assert f"Bare must define {lacking}" in capsys.readouterr().err
    assert run(type("Measured", (FromAList,), {"setup": BaseEnv.setup}), "evaluate") == 2
    assert "Measured must define setup()" in capsys.readouterr().err


def test_an_environment_that_fails_after_its_first_item_is_shown_with_the_failing_line(caplog):
    class Ending(FromAList):
        async def get_next_item(self):
            return {"n": 1} if self.pool.started == 0 else self.items[0]

    assert run(Ending, "process", "--env.total_steps", "3") == 1
    assert "IndexError" in caplog.text


def test_groups_that_are_left_out_do_not_count(tmp_path):
    class Same(CountingEnv):
        async def collect_trajectory(self, item):
            rollout, later = await super().collect_trajectory(item)
            return {**rollout, "scores": 1.0 if item["n"] % 2 else rollout["scores"]}, later

    path = tmp_path / "groups.jsonl"
    words = ("--env.total_steps", "3", "--env.ensure_scores_are_not_same", "--data_path_to_save_groups", str(path))
    assert run(Same, "process", *words) == 0
    assert [group["tokens"][0][0] for group in lines(path)] == [2, 4, 6]


# evaluate


def test_evaluate_writes_results_samples_and_what_they_were_made_with(tmp_path, capsys):
    folder = tmp_path / "results"
    words = ("--env.data_dir_to_save_evals", str(folder), "--env.seed", "7", "--openai.api_key", "sk-secret")
    assert run(CountingEnv, "evaluate", *words, "--openai.base_url", "http://127.0.0.1:9", "--openai.wait_s", "0") == 2
    assert run(CountingEnv, "evaluate", *words[:4]) == 0
    results = json.loads((folder / "metrics.json").read_text())
    assert results["results"]["all"]["eval/score"] == 0.5
    assert results["results"]["atropos|counting_eval|0"]["none"] is None
    assert results["config_general"]["made_with"]["seed"] == 7
    assert lines(folder / "samples.jsonl") == [{"n": 1}, {"n": 2}]
    made_with = yaml.safe_load((folder / "evaluate_config.yaml").read_text())
    assert made_with["env"]["seed"] == 7
    out = capsys.readouterr().out
    assert "| eval/score" in out
    assert f"cat {folder}/metrics.json" in out


async def test_no_file_of_an_evaluation_holds_a_key(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "sk-from-env")
    async with serving(StubEngine()) as url:
        words = ("evaluate", "--data_dir_to_save_evals", str(tmp_path), "--openai.base_url", url)
        for key in (("--openai.api_key", "sk-typed"), ("--openai.api_key_env", "SECRET_OF_THE_TEST")):
            assert await asyncio.to_thread(run, CountingEnv, *words, *key) == 0
    texts = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("api_key" in text for text in texts)
    assert not any("sk-" in text for text in texts)


def test_an_evaluation_that_fails_leaves_the_results_of_an_earlier_one_as_they_were(tmp_path, capsys):
    words = ("evaluate", "--env.data_dir_to_save_evals", str(tmp_path))
    assert run(CountingEnv, *words, "--env.seed", "7") == 0
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert "The results are in" in capsys.readouterr().out
    assert run(CountingEnv, *words, "--env.seed", "8", "--env.evaluate_raises") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert "The results are in" not in capsys.readouterr().out


def test_the_file_that_an_evaluation_wrote_repeats_it(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(CountingEnv, "evaluate", "--env.seed", "9", "--env.data_dir_to_save_evals", str(first)) == 0
    again = ("--config", str(first / "evaluate_config.yaml"), "--env.data_dir_to_save_evals", str(second))
    assert run(CountingEnv, "evaluate", *again) == 0
    one, two = (yaml.safe_load((folder / "evaluate_config.yaml").read_text()) for folder in (first, second))
    two["env"]["data_dir_to_save_evals"] = one["env"]["data_dir_to_save_evals"]
    assert one == two


def test_an_evaluation_that_raises_ends_with_1(capsys, caplog):
    assert run(CountingEnv, "evaluate", "--env.evaluate_raises") == 1
    assert "the evaluation failed" in caplog.text


# help and errors


@pytest.mark.parametrize("words", [["--help"], ["-h"]])
def test_help_without_a_mode_lists_the_modes(words, capsys):
    assert run(CountingEnv, *words) == 0
    said = capsys.readouterr().out
    assert all(mode in said for mode in ("serve", "process", "evaluate"))


def test_help_of_a_mode_shows_flags_with_the_values_of_this_environment(capsys):
    assert run(CountingEnv, "process", "--help") == 0
    said = capsys.readouterr().out
    assert "--env.group_size int = 2" in said
    assert "--env.items int = 10000" in said
    assert "--env.include_messages bool = True" in said
    assert "--env.data_path_to_save_groups str or None = data/counting.jsonl" in said
    assert "--openai.base_url" in said
    assert "then in openai" in said
    assert "--tokenizer_name alone means another flag" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what to do"),
        (["train"], "say what to do"),
        (["proces", "--env.group_size", "1"], "unknown mode 'proces'; is process meant?"),
        (["Evaluate"], "unknown mode 'Evaluate'; is evaluate meant?"),
        (["--env.group_size", "1"], "say what to do"),
        (["process", "--env.group_sise", "1"], "is --env.group_size meant"),
        (["process", "--env.group_size", "many"], "--env.group_size"),
        (["process", "--env.group_size", "0"], "--env.group_size: Input should be greater than or equal to 1"),
        (["process", "--env.total_steps", "0"], "--env.total_steps is 0, so no groups are made"),
        (["serve", "--env.total_steps", "-1"], "--env.total_steps is -1, so no steps are run"),
        (["evaluate", "--env.max_token_length", "0"], "--env.max_token_length: Input should be greater"),
        (["evaluate", "--openai.timeout", "0"], "--openai.timeout: Input should be greater"),
        (["process", "--max_n_completions", "0"], "--max_n_completions: Input should be greater than or equal to 1"),
        (["serve", "--env.max_rollout_tokens", "0"], "--env.max_rollout_tokens: Input should be greater than or equal"),
        (["serve", "--env.min_batch_allocation", "7"], "--env.min_batch_allocation: Input should be less than or"),
        (["serve", "--env.min_batch_allocation", "nan"], "--env.min_batch_allocation: Input should be"),
        (["serve", "--env.eval_limit_ratio", "-3"], "--env.eval_limit_ratio: Input should be greater than or equal"),
        (["serve", "--env.eval_limit_ratio", "50"], "--env.eval_limit_ratio: Input should be less than or equal to 1"),
        (["serve", "--env.inference_weight", "-1"], "--env.inference_weight: Input should be greater than or equal"),
        (["serve", "--env.max_batches_offpolicy", "-1"], "--env.max_batches_offpolicy: Input should be greater than"),
        (["serve", "--env.rollout_server_wait_s", "-1"], "--env.rollout_server_wait_s: Input should be greater than"),
        (["process", "--data_path_to_save_groups", "/proc/nowhere/x.jsonl"], "cannot write to /proc/nowhere"),
        (["process", "--data_path_to_save_groups", "/proc"], "/proc is a folder; name a file"),
        (["process", "--openai.base_url", "http://127.0.0.1:99999"], "--openai.base_url: 'http://127.0.0.1:99999"),
        (["evaluate", "--openai.base_url", "no url"], "--openai.base_url: 'http://no url"),
        (["serve", "--openai.base_url", "ftp://x"], "--openai.base_url: 'ftp://x"),
        (["serve", "--env.rollout_server_url", "http://:8000"], "--env.rollout_server_url: 'http://:8000'"),
        (["serve", "--env.rollout_server_url", "127.0.0.1:9", "--env.rollout_server_wait_s", "0"], "gave up after 0 s"),
        (["evaluate", "--data_dir_to_save_evals", "/proc/nowhere"], "--env.data_dir_to_save_evals"),
        (["evaluate", "--show"], "--show belongs to process"),
        (["process", "--show", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["serve", "--env.rollout_server_token_env", "NO_SUCH_VARIABLE_HERE"], "NO_SUCH_VARIABLE_HERE"),
    ],
)
def test_a_wrong_command_line_is_one_message_and_exit_code_2(words, message, capsys):
    assert run(CountingEnv, *words) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said


def test_an_environment_with_a_setting_that_must_be_given_asks_for_it(capsys):
    class StrictConfig(BaseEnvConfig):
        dataset_name: str

    class Strict(CountingEnv):
        env_config_cls = StrictConfig
        config_init = BaseEnv.config_init

    assert run(Strict, "process", "--help") == 0
    assert "--env.dataset_name str (required)" in capsys.readouterr().out
    assert run(Strict, "process") == 2
    assert "--env.dataset_name is required" in capsys.readouterr().err


def test_a_program_runs_as_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-m", "tests.atroposlib.envs.counting_env", "process", "--env.total_steps", "2"]
    path = tmp_path / "groups.jsonl"
    words = [*command, "--data_path_to_save_groups", str(path)]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert len(lines(path)) == 2
    assert f"python -m tests.atroposlib.envs.counting_env process --show {path}" in ended.stdout


def test_importing_the_base_environment_is_light():
    code = "import sys, atroposlib.envs.base; print(','.join(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = ended.stdout.strip().split(",")
    heavy = {"torch", "transformers", "openai", "fastapi", "wandb", "datasets", "aiohttp", "numpy", "yaml"}
    assert heavy.isdisjoint(loaded)
