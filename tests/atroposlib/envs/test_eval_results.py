"""Results of an evaluation are whole, kept beside earlier ones, and lose nothing to odd values."""

import json
from pathlib import Path

import numpy as np
import pytest

from atroposlib.envs.eval_results import Evaluation
from tests.atroposlib.envs.counting_env import CountingConfig, CountingEnv


def read(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


def test_results_have_the_form_that_readers_of_them_know(tmp_path):
    evaluation = Evaluation(
        "task", {"eval/acc": 0.5}, model_name="m", started=10.0, ended=12.5, generation_parameters={"max_new_tokens": 9}
    )
    evaluation.write(tmp_path)
    document = read(tmp_path)
    general = document["config_general"]
    assert (general["model_name"], general["total_evaluation_time_seconds"]) == ("m", "2.5")
    assert general["generation_parameters"] == {"max_new_tokens": 9}
    assert document["results"] == {"atropos|task|0": {"eval/acc": 0.5}, "all": {"eval/acc": 0.5}}


def test_an_earlier_evaluation_is_moved_not_overwritten(tmp_path):
    for number in range(3):
        Evaluation("task", {"number": number}, samples=[{"of": number}]).write(tmp_path)
    assert read(tmp_path)["results"]["all"]["number"] == 2
    earlier = sorted((tmp_path / "runs").iterdir())
    assert len(earlier) == 2
    assert sorted(read(folder)["results"]["all"]["number"] for folder in earlier) == [0, 1]
    for folder in [*earlier, tmp_path]:
        sample = json.loads((folder / "samples.jsonl").read_text())
        assert sample["of"] == read(folder)["results"]["all"]["number"]


def test_samples_of_an_earlier_evaluation_do_not_stay_beside_new_metrics(tmp_path):
    Evaluation("task", {}, samples=[{"a": 1}]).write(tmp_path)
    Evaluation("task", {}).write(tmp_path)
    assert not (tmp_path / "samples.jsonl").exists()
    assert len(list(tmp_path.rglob("samples.jsonl"))) == 1


def test_no_half_written_file_is_left(tmp_path):
    Evaluation("task", {"a": 1}).write(tmp_path)
    with pytest.raises(RuntimeError):
        Evaluation("task", {}, samples=_samples_that_fail()).write(tmp_path)
    assert read(tmp_path)["results"]["all"] == {"a": 1}


def _samples_that_fail():
    class Samples(list):
        def __iter__(self):
            yield {"first": 1}
            raise RuntimeError("broken")

    return Samples([1])


@pytest.mark.parametrize(
    "value", [None, "text", float("nan"), np.float32(0.5), {"a": 1}, object(), 10**30, [1], "a|b\nc"]
)
def test_a_metric_of_any_type_is_kept_and_shown(tmp_path, value):
    evaluation = Evaluation("task", {"odd": value, "plain": 1.0})
    evaluation.write(tmp_path)
    results = read(tmp_path)["results"]["all"]
    assert results["plain"] == 1.0
    assert "odd" in results
    assert all(line.count("|") - line.count("\\|") == 4 for line in evaluation.table().splitlines())


def test_no_metrics_at_all_are_results_too(tmp_path):
    evaluation = Evaluation("task", {})
    evaluation.write(tmp_path)
    assert read(tmp_path)["results"]["all"] == {}
    assert evaluation.table().count("\n") == 1


async def test_an_environment_writes_before_it_prints(tmp_path, capsys):
    env = CountingEnv(CountingConfig(data_dir_to_save_evals=str(tmp_path), max_token_length=77, use_wandb=False), [])
    await env.evaluate_log({"score": 1.0}, task_name="mine", model_name="m", generation_parameters={"temperature": 0})
    assert read(tmp_path)["config_general"]["generation_parameters"] == {"max_new_tokens": 77, "temperature": 0}
    assert "| mine" in capsys.readouterr().out
    await env.evaluate_log({"score": 2.0}, verbose=False)
    assert capsys.readouterr().out == ""
    await env.aclose()


async def test_results_that_are_not_kept_say_so_once(caplog):
    env = CountingEnv(CountingConfig(use_wandb=False), [])
    await env.evaluate_log({"score": 1.0}, verbose=False)
    await env.evaluate_log({"score": 2.0}, verbose=False)
    assert caplog.text.count("--env.data_dir_to_save_evals") == 1
    await env.aclose()
