"""A new environment: written by one command, and runnable as it is."""

import ast
import subprocess
import sys

import pytest

from environments.new import environment_source, main
from tests.environments.agent_engine import AgentEngine, save_tokenizer, serving_in_a_thread
from tests.environments.test_documented_environment import lines, surroundings


def test_the_file_is_named_after_the_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["my_env"])
    source = (tmp_path / "environments" / "my_env.py").read_text()
    assert "class MyEnv(HermesAgentBaseEnv)" in source
    assert 'name = "my-env"' in source
    assert "python environments/my_env.py process" in capsys.readouterr().out


def test_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "my_env.py").write_text("mine")
    with pytest.raises(SystemExit) as ended:
        main(["my_env"])
    assert ended.value.code == 2
    assert "exists" in capsys.readouterr().err
    assert (tmp_path / "environments" / "my_env.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "My-Env", "1st", "../up", "a b", "é", "a.b"])
def test_what_is_no_name_of_a_module_is_refused(name):
    with pytest.raises(ValueError, match="no name for an environment"):
        environment_source(name)


@pytest.mark.parametrize("name", ["a", "word_count_env", "x2", "a__b", "a_"])
def test_every_name_gives_python(name):
    ast.parse(environment_source(name))


def test_it_runs_as_it_was_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["my_env"])
    save_tokenizer(tmp_path / "tokenizer")
    engine = AgentEngine()
    engine.command = "wc -w < notes.txt > answer.txt"
    with serving_in_a_thread(engine) as url:
        words = [sys.executable, "environments/my_env.py", "process", "--env.total_steps", "2", "--env.group_size", "2"]
        flags = ["--env.use_wandb", "false", "--env.terminal_backend", "local", "--env.tokenizer_name", "tokenizer"]
        where = ["--env.data_path_to_save_groups", "out.jsonl", "--openai.base_url", f"{url}/v1"]
        subprocess.run([*words, *flags, *where], env=surroundings(), check=True, timeout=100, capture_output=True)
    assert [group["scores"] for group in lines(tmp_path / "out.jsonl")] == [[1.0, 1.0], [1.0, 1.0]]
