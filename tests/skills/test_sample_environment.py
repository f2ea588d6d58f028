"""The environment in the skill that teaches to write one, typed in as a file and run by the commands beside it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.e2e.programs import environment, run
from tests.environments.agent_engine import AgentEngine, save_tokenizer, serving_in_a_thread

SKILL = Path(__file__).parents[2] / "skills" / "hermes-atropos-environments" / "SKILL.md"
BOXES = ("--env.terminal_backend", "local", "--env.tokenizer_name", "tokenizer")


class Counter(AgentEngine):
    """An agent that counts the words with the terminal, and answers with what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.command = "wc -w < /workspace/notes.txt"

    def answer(self, conversation: str) -> str:
        found = re.search(r'"output": "(\d+)', conversation)
        assert found is not None, conversation
        return found[1]


def blocks(language: str, page: Path = SKILL) -> list[str]:
    """The fenced blocks of the skill, or of another page of it."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(mode: str, engine_url: str) -> list[str]:
    """The words after the program in the skill's command for this mode, with the URL of an engine that runs."""
    lines = "\n".join(blocks("bash")).replace("\\\n", " ").splitlines()
    (line,) = [line for line in lines if f" {mode} " in line]
    words = shlex.split(line)
    assert words[:2] == ["python", "environments/word_count_env.py"]
    return [engine_url if word.startswith("http://localhost:9001") else word for word in words[2:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with the sample in it."""
    (source,) = blocks("python")
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "word_count_env.py").write_text(source)
    save_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def play(folder: Path, mode: str) -> None:
    with serving_in_a_thread(Counter()) as url:
        command = environment(*commands(mode, f"{url}/v1"), *BOXES)
        command[1] = "environments/word_count_env.py"
        ended = run(command, folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_sample_collects_groups(folder):
    play(folder, "process")
    groups = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [group["scores"] for group in groups] == [[1.0, 1.0], [1.0, 1.0]]
    assert all(message["role"] != "system" for group in groups for message in group["messages"][0])
    assert all(group["overrides"][0]["certificate"]["turns"] == 2 for group in groups)


def test_the_sample_is_evaluated_on_items_of_its_own(folder):
    play(folder, "evaluate")
    results = json.loads((folder / "results" / "metrics.json").read_text())["results"]["all"]
    assert (results["eval/num_samples"], results["eval/num_invalid"], results["eval/success_rate"]) == (20, 0, 1.0)


def test_the_plain_sample_collects_groups_and_is_evaluated(tmp_path):
    (source,) = blocks("python", SKILL.parent / "references" / "base-env.md")
    (tmp_path / "sums_env.py").write_text(source)
    save_tokenizer(tmp_path / "tokenizer")
    flags = ("--env.tokenizer_name", "tokenizer", "--env.use_wandb", "false", "--env.total_steps", "2")
    kept = {
        "process": ("--env.data_path_to_save_groups", "out.jsonl"),
        "evaluate": ("--env.data_dir_to_save_evals", "results"),
    }
    with serving_in_a_thread(Counter()) as url:
        for mode, where in kept.items():
            words = [sys.executable, "sums_env.py", mode, "--openai.base_url", f"{url}/v1", *flags, *where]
            ended = run(words, tmp_path)
            assert ended.returncode == 0, ended.stdout + ended.stderr
    groups = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [[len(group[key]) for key in ("tokens", "masks", "inference_logprobs", "scores")] for group in groups] == [
        [4, 4, 4, 4],
        [4, 4, 4, 4],
    ]
    results = json.loads((tmp_path / "results" / "metrics.json").read_text())["results"]["all"]
    assert results["eval/success_rate"] == 0.0
