"""The environment of the documentation, typed in as a file and run by the documented commands, as programs."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.api.server import create_app
from sandboxes import reaper
from tests.atroposlib.api.serving import serving as api_serving
from tests.atroposlib.envs.trainer import Trainer
from tests.environments.agent_engine import ANSWER, AgentEngine, save_tokenizer, serving_in_a_thread
from tests.environments.conftest import require
from tests.machine import command_lines, wait_until

REPOSITORY = Path(__file__).parents[2]
TYPED = Path(__file__).parent / "seed" / "my_env.py"
BOXES = [
    pytest.param("bubblewrap", marks=pytest.mark.namespaces),
    pytest.param("docker", marks=pytest.mark.docker),
]

pytestmark = [pytest.mark.timeout(180)]


@pytest.fixture
def folder(tmp_path):
    """A user's folder: their environment, and the model's tokenizer."""
    (tmp_path / "environments").mkdir()
    shutil.copy(TYPED, tmp_path / "environments" / "my_env.py")
    save_tokenizer(tmp_path / "tokenizer")
    return tmp_path


@pytest.fixture
def engine():
    engine = AgentEngine()
    with serving_in_a_thread(engine):
        yield engine


def command(*words):
    return [sys.executable, "environments/my_env.py", *words]


def surroundings(**more):
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"} | more


def run(folder, *words, code=0, **more):
    done = subprocess.run(
        command(*words), cwd=folder, env=surroundings(**more), capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def process_words(url, model="stub"):
    return (
        *("process", "--env.total_steps", "10", "--env.group_size", "1"),
        *("--env.use_wandb", "false", "--env.data_path_to_save_groups", "output.jsonl"),
        *("--openai.base_url", f"{url}/v1", "--openai.model_name", model),
        *("--openai.server_type", "openai", "--openai.health_check", "false"),
    )


def evaluate_words(url, results):
    return (
        *("evaluate", "--env.eval_size", "20", "--env.data_dir_to_save_evals", str(results)),
        *("--openai.base_url", f"{url}/v1", "--openai.model_name", "stub"),
        *("--openai.server_type", "openai", "--openai.health_check", "false"),
    )


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("gives_ids", [True, False])
def test_process_writes_ten_groups(folder, engine, box, gives_ids):
    engine.gives_ids = gives_ids
    words = process_words(engine.url)
    run(folder, *words, "--env.terminal_backend", require(box), "--env.tokenizer_name", "tokenizer")
    groups = lines(folder / "output.jsonl")
    assert len(groups) == 10
    assert {score for group in groups for score in group["scores"]} == {0.75, 0.25}
    for group in groups:
        messages = group["messages"][0]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
        assert "def test_sum" in json.loads(messages[2]["content"])["output"]
        assert messages[3]["content"] == ANSWER
        assert bool(group["tokens"][0]) is gives_ids
        assert group["overrides"][0].get("trainable", True) is gives_ids


@pytest.mark.slow
@pytest.mark.parametrize("box", BOXES)
def test_evaluate_writes_what_the_environments_own_evaluation_found(folder, engine, box):
    run(folder, *evaluate_words(engine.url, folder / "results"), "--env.terminal_backend", require(box))
    metrics = json.loads((folder / "results" / "metrics.json").read_text())["results"]["all"]
    samples = lines(folder / "results" / "samples.jsonl")
    assert metrics == {"eval/mean_reward": 0.5}
    assert len(samples) == 20
    assert {sample["response"] for sample in samples} == {ANSWER}


@pytest.mark.slow
@pytest.mark.docker
def test_a_reward_may_run_tests_in_the_agents_box(folder, engine):
    words = (*process_words(engine.url), "--env.terminal_backend", require("docker"), "--tokenizer_name", "tokenizer")
    run(folder, *words, SEED_REWARD="tests")
    assert {score for group in lines(folder / "output.jsonl") for score in group["scores"]} == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("box", BOXES)
async def test_serve_feeds_a_trainer_and_leaves_nothing_when_it_is_stopped(folder, engine, box):
    async with api_serving(create_app()) as url, asyncio.timeout(150):
        trainer = Trainer(url)
        await trainer.register(batch_size=4, max_token_len=65536, num_steps=100)
        await trainer.start()
        program = await asyncio.create_subprocess_exec(
            *command("serve", "--openai.base_url", f"{engine.url}/v1"),
            *("--env.rollout_server_url", url, "--env.terminal_backend", require(box)),
            *("--env.tokenizer_name", "tokenizer", "--env.group_size", "2", "--env.use_wandb", "false"),
            cwd=folder,
            env=surroundings(),
        )
        batches = await trainer.take(2)
        program.send_signal(signal.SIGINT)
        assert await program.wait() == 130
    groups = [group for batch in batches for group in batch]
    assert len(groups) == 4
    for group in groups:
        assert set(group["scores"]) == {0.75, 0.25}
        for tokens, masks, logprobs in zip(group["tokens"], group["masks"], group["inference_logprobs"], strict=True):
            assert len(tokens) == len(masks) == len(logprobs)
            assert sum(mask != -100 for mask in masks) > 50
        assert all(override["certificate"]["turns"] == 2 for override in group["overrides"])
    assert await asyncio.to_thread(left_by, program.pid) == []


def left_by(pid):
    """What a program that has ended left behind, as the reaper sees it."""
    return [leftover for leftover in reaper.reap(dry_run=True) if leftover.owner.pid == pid]


@pytest.mark.slow
@pytest.mark.parametrize("box", BOXES)
def test_what_a_killed_environment_leaves_is_reaped(folder, engine, box):
    engine.command = "sleep 271828"
    words = (*process_words(engine.url), "--env.terminal_backend", require(box), "--env.tokenizer_name", "tokenizer")
    program = subprocess.Popen(
        command(*words, "--env.max_num_workers", "3"), cwd=folder, env=surroundings(), stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: len(sleepers()) == 3)
    finally:
        program.kill()
        program.wait()
    reaper.reap()
    assert left_by(program.pid) == []
    assert sleepers() == []


def sleepers():
    """The commands of the agents, as processes of this machine."""
    return [line for line in command_lines(holding="sleep 271828") if line == "sleep 271828"]


def test_serve_refuses_an_engine_on_the_address_of_the_trajectory_server(folder):
    done = run(folder, "serve", "--openai.base_url", "http://localhost:8000/v1", code=2)
    assert "--env.rollout_server_url" in done.stderr


def test_serve_refuses_an_engine_that_tells_no_token_ids(folder, engine):
    engine.gives_ids = False
    done = run(folder, "serve", "--openai.base_url", f"{engine.url}/v1", "--env.terminal_backend", "local", code=2)
    assert "token ids" in done.stderr


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (("--env.terminal_backend", "modal"), "unknown terminal_backend 'modal'"),
        (("--env.enabled_toolsets", "nothing"), "Unknown toolset 'nothing'"),
        (("--env.distribution", "x"), "Unknown distribution 'x'"),
        (("--env.max_agent_turns", "many"), "max_agent_turns"),
        (("--env.no_such_flag", "1"), "no_such_flag"),
        (("--env.docker_image", "a:b", "--env.terminal_backend", "local"), "docker_image"),
        (("--env.docker_build", "nowhere"), "nowhere/Dockerfile"),
        (("--env.sandbox_network", "host"), "names of the only hosts"),
    ],
)
def test_a_wrong_setting_ends_with_one_message_and_code_2(folder, engine, flags, word):
    words = (*process_words(engine.url), "--env.tokenizer_name", "tokenizer")
    done = run(folder, *words, *flags, code=2)
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_docker_daemon_that_is_not_there_is_named(folder, engine):
    words = (*process_words(engine.url), "--env.tokenizer_name", "tokenizer")
    done = run(folder, *words, code=2, DOCKER_HOST="unix:///nowhere/docker.sock")
    assert "terminal_backend 'docker'" in done.stderr
