"""The debugger at a terminal, driven key by key, over an engine of this test."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from environments.dataset_environment.workbench.program import main
from tests.environments.agent_engine import serving_in_a_thread
from tests.environments.dataset_environment.chat_engine import AddingEngine
from tests.environments.dataset_environment.sums import write_gsm8k
from tests.environments.dataset_environment.terminal import Terminal

REPOSITORY = Path(__file__).parents[4]
PROGRAM = [sys.executable, "-m", "atroposlib.cli.dataset_env_debugger"]
ENV = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def engine():
    adding = AddingEngine()
    with serving_in_a_thread(adding):
        yield adding


@pytest.fixture
def folder(here, engine):
    """A working folder with data, and an agent ``adding``."""
    write_gsm8k(here / "gsm8k")
    (here / "configs" / "agents").mkdir(parents=True)
    agent = f"engine: openai\nbase_url: {engine.url}/v1\nmodel_name: stub\nmax_tokens: 64\n"
    (here / "configs" / "agents" / "adding.yaml").write_text(agent)
    return here


def terminal(folder, *flags):
    return Terminal([*PROGRAM, "--env", "gsm8k", "--agent", "adding", *flags], str(folder), ENV)


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_prompts_and_answers_are_changed_by_hand_judged_again_and_kept(folder):
    with terminal(folder, "--interactive", "--debug") as bench:
        bench.wait_for("1: question gsm8k/train/")
        bench.wait_for("reward 1.000")
        bench.wait_for("> ")
        bench.type("w\n")
        bench.wait_for("a line with a dot alone ends it")
        bench.type("I think it is\n\\boxed{1000}\n.\n")
        bench.wait_for("written answer")
        bench.wait_for("reward 0.000")
        bench.type("s\n")
        bench.wait_for("kept; to check it: pytest")
        bench.type("p\nWhat is 500 plus 500?\n.\n")
        bench.wait_for("What is 500 plus 500?")
        bench.wait_for("1000")
        bench.wait_for("reward 0.000")
        bench.type("x\n")
        bench.wait_for("none of the letters")
        bench.type("\n")
        bench.wait_for("2: question gsm8k/train/")
        bench.wait_for("reward 1.000")
        bench.type("q\n")
        assert bench.end() == 0
    assert "\x1b[1;32m" in bench.text, "a full reward is bold and green"
    assert "\x1b[1;31m" in bench.text, "no reward is bold and red"
    assert "user: What is" in plain(bench.text)
    assert "“1000”" in plain(bench.text)
    assert len((folder / "reward_cases" / "gsm8k.jsonl").read_text().splitlines()) == 1
    assert (folder / "reward_cases" / "test_gsm8k.py").exists()


def test_ctrl_c_ends_the_session_at_once(folder):
    with terminal(folder, "--interactive") as bench:
        bench.wait_for("> ")
        assert bench.end(typing="\x03") == 130  # Ctrl-C
    assert "Traceback" not in bench.text


@contextmanager
def started(folder, *flags):
    """The program without a terminal; its temporary files go to ``folder/tmp``."""
    (folder / "tmp").mkdir()
    env = ENV | {"TMPDIR": str(folder / "tmp")}
    with subprocess.Popen([*PROGRAM, *flags], cwd=folder, env=env, stdout=PIPE, stderr=PIPE, text=True) as program:
        try:
            yield program
        finally:
            program.kill()


def test_an_engine_that_is_waited_for_is_told_of_without_a_terminal_too(folder):
    (folder / "own.yaml").write_text("base_url: http://127.0.0.1:9\n")
    with started(folder, "--env", "gsm8k", "--agent", "own.yaml") as program:
        assert any("waiting up to" in line for line in program.stderr)
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 130


def test_an_engine_that_is_not_there_is_named_shortly_by_the_key_of_the_agents_file(folder, capsys):
    (folder / "own.yaml").write_text("base_url: http://127.0.0.1:9\n")
    started_at = time.monotonic()
    assert main(["--env", "gsm8k", "--agent", "own.yaml"]) == 2
    assert time.monotonic() - started_at < 30
    said = capsys.readouterr().err
    assert "no engine answered at http://127.0.0.1:9/v1 within 5 s; start it, or correct base_url in own.yaml" in said
    assert "(wait_s in own.yaml sets how long to wait)" in said
    assert "--openai" not in said


def test_a_model_that_the_engine_has_not_is_asked_for_by_the_key_of_the_agents_file(folder, capsys):
    engine = AddingEngine()
    engine.models = ["first", "second"]
    with serving_in_a_thread(engine) as url:
        (folder / "own.yaml").write_text(f"base_url: {url}\n")
        assert main(["--env", "gsm8k", "--agent", "own.yaml"]) == 2
    assert "serves 2 models; choose with model_name in own.yaml: first, second" in capsys.readouterr().err


def test_sigterm_ends_the_engine_and_leaves_no_file(folder):
    with started(folder, "--env", "gsm8k", "--agent", "embedded") as program:
        while not (found := [*(folder / "tmp").glob("engine-*/*.log")]):
            assert program.poll() is None
            time.sleep(0.05)
        program.terminate()
        assert program.wait(30) == 130
    assert not found[0].parent.exists()


def run(folder, *flags):
    done = subprocess.run(
        [*PROGRAM, *flags], cwd=folder, env=ENV, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_questions_are_answered_in_a_row_and_summed_up(folder, engine):
    shown = run(
        folder, "--env", "gsm8k", "--agent", "adding", "--samples", "3", "--temperature", "0.5", "--top-p", "0.9"
    )
    assert "3 answers judged, 0 not" in shown.stdout
    assert "\x1b[" not in shown.stdout, "no colours where there is no terminal"
    body = engine.bodies("/v1/chat/completions")[-1]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.5, 0.9, 64)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--env", "gsm9k"), "no configuration 'gsm9k' (is gsm8k"),
        (("--agent", "nobody"), "no configuration 'nobody'"),
        (("--env", "rewarding.yaml", "--agent", "adding"), "reward 'format' has no parameter 'tolerance'"),
        (("--env", "gsm8k", "--agent", "adding", "--temperature", "-1"), "--env.temperature"),
    ],
)
def test_a_wrong_setting_ends_with_one_message_and_code_2(folder, capsys, flags, complaint):
    rewarding = "dataset_path: x.jsonl\nreward_functions: [{type: format, params: {tolerance: 1}}]\n"
    (folder / "rewarding.yaml").write_text(rewarding)
    assert main(flags) == 2
    assert complaint in capsys.readouterr().err
