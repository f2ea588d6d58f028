"""A disk that is full: the message names the flag of the folder, and what was complete is there as it was."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.programs import environment, make_folder, message, module, run, with_full_disk
from tests.environments.agent_engine import AgentEngine, serving_in_a_thread

COUNTING = "tests.atroposlib.envs.counting_env"
NO_ROOM = "File too large"
"""What the system says here; of a disk, that no space is left on it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "work")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(command: list[str], folder: Path, says: str) -> subprocess.CompletedProcess[str]:
    ended = run(with_full_disk(command), folder, {"PYTHONDONTWRITEBYTECODE": "1"})
    assert ended.returncode == 2, ended.stderr
    (said,) = message(ended.stderr)
    assert said.endswith(says)
    return ended


@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_results_that_find_no_room_leave_those_of_an_earlier_evaluation(earlier, folder):
    command = module(COUNTING, "evaluate", "--env.data_dir_to_save_evals", "results", "--env.seed")
    for seed in range(earlier):
        assert run([*command, str(seed)], folder).returncode == 0
    before = contents(folder)
    says = f"--env.data_dir_to_save_evals: cannot write to results: {NO_ROOM}"
    ended = refused([*command, "9", "--env.eval_samples", "1000"], folder, says)
    assert "The results are in" not in ended.stdout
    assert contents(folder) == before


def test_settings_that_find_no_room_are_not_there_by_half(folder):
    command = module(COUNTING, "evaluate", "--env.data_dir_to_save_evals", "results")
    assert run(command, folder).returncode == 0
    says = f"--env.data_dir_to_save_evals: cannot write to results/evaluate_config.yaml: {NO_ROOM}"
    refused([*command, "--env.wandb_name", "x" * 3000], folder, says)
    left = contents(folder / "results")
    assert "evaluate_config.yaml" not in left
    assert len([name for name in left if name.endswith("metrics.json")]) == 2


def test_an_evaluation_whose_answers_find_no_room_is_gone_on_with_later(folder):
    with serving_in_a_thread(AgentEngine()) as url:
        command = environment(
            *("evaluate", "--openai.base_url", url, "--env.tokenizer_name", "tokenizer", "--env.use_wandb", "false"),
            *("--env.terminal_backend", "local", "--env.data_dir_to_save_evals", "results", "--env.eval_size", "4"),
        )
        partial = "results/samples.partial.jsonl"
        told = refused(command, folder, f"--env.data_dir_to_save_evals: cannot write to {partial}: {NO_ROOM}")
        assert f"the answers so far are kept in {partial}" in told.stderr
        kept = (folder / partial).read_text().splitlines()
        assert 0 < len(kept) < 4
        assert all(line.endswith("}}") for line in kept)
        assert run(command, folder).returncode == 0
    assert len((folder / "results" / "samples.jsonl").read_text().splitlines()) == 4


def test_metrics_that_find_no_room_end_a_run_in_whole_lines(folder):
    command = module(COUNTING, "process", "--env.metrics_dir", "metrics", "--env.total_steps", "50")
    says = "free the disk, or choose another folder (--env.metrics_dir, or --save-path of the trainer)"
    refused([*command, "--data_path_to_save_groups", "None"], folder, says)
    lines = (folder / "metrics" / "metrics.jsonl").read_text().splitlines()
    assert 0 < len(lines) < 50
    assert all(line.endswith("}") for line in lines)
