"""The whole loop as processes: trajectory server, trainer with its engine, and an environment of a few lines."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.machine import wait_until
from tests.trainer.services import TrajectoryServer
from tests.trainer.tiny_model import save_policy
from trainer.checkpoints import CheckpointFolder
from trainer.http import JsonClient, Refused, Unreachable

WANTED = range(3, 131)
"""The scripted task: say these tokens, which are half of them all."""
GROUP = 8


class ScriptedEnvironment(threading.Thread):
    """Samples groups from the engine, rewards the share of ``WANTED`` tokens, and posts them until stopped."""

    def __init__(self, engine_url: str, server_url: str) -> None:
        super().__init__(daemon=True)
        self._engine = JsonClient(engine_url)
        self._server = JsonClient(server_url)
        self._stopping = threading.Event()
        self._rng = random.Random(0)

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._server.get("/status").body["queue_size"] < 4:
                    self._server.post("/scored_data", self._group())
                    continue
            except (Unreachable, Refused):
                pass  # trainer and server are killed and restarted under it
            self._stopping.wait(0.02)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _group(self) -> dict[str, Any]:
        prompt = [self._rng.randrange(3, 259) for _ in range(4)]
        body = {
            "prompt": prompt,
            "n": GROUP,
            "max_tokens": 8,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        }
        choices = self._engine.post("/v1/completions", body).body["choices"]
        outputs = [choice["token_ids"] for choice in choices]
        logprobs = [choice["logprobs"]["token_logprobs"] for choice in choices]
        versions = [[span["version"] for span in choice["weight_versions"]] for choice in choices]
        return {
            "tokens": [prompt + output for output in outputs],
            "masks": [[-100] * len(prompt) + output for output in outputs],
            "inference_logprobs": [[1.0] * len(prompt) + own for own in logprobs],
            "scores": [sum(token in WANTED for token in output) / len(output) for output in outputs],
            "overrides": [{"certificate": {"policy_versions": own}} for own in versions],
        }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def _trainer(*flags: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "trainer.grpo", "--threads", "1", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[list[str], Path, TrajectoryServer]]:
    """Flags of a trainer, its folder and its server, with an environment that serves it all the while."""
    port = _free_port()
    with TrajectoryServer() as server:
        flags = [
            *("--model", str(save_policy(tmp_path / "policy")), "--vllm-port", str(port)),
            *("--atropos-url", server.url, "--save-path", str(tmp_path / "run")),
            *("--batch-size", "32", "--gradient-accumulation-steps", "1", "--lr", "1e-2", "--seed", "0"),
        ]
        environment = ScriptedEnvironment(f"http://127.0.0.1:{port}", server.url)
        environment.start()
        yield flags, tmp_path / "run", server
        environment.stop()


def test_reward_rises_and_sampler_and_trainer_agree(run: tuple[list[str], Path, TrajectoryServer]) -> None:
    flags, folder, _ = run
    with _trainer(*flags, "--training-steps", "40", "--checkpoint-interval", "40") as process:
        assert process.wait(timeout=90) == 0
    metrics = _metrics(folder)
    assert [line["step"] for line in metrics] == list(range(1, 41))
    rewards = [line["train/reward_mean"] for line in metrics]
    assert sum(rewards[:2]) / 2 < 0.7
    assert sum(rewards[-5:]) / 5 > 0.9
    assert max(line["train/logprob_gap"] for line in metrics) < 1e-4
    assert all(line["train/logprob_gap_alarm"] == 0 for line in metrics)
    assert [line["policy/version"] for line in metrics] == list(range(1, 41))
    assert (folder / "step_40" / "model.safetensors").exists()


def test_trainer_that_is_killed_goes_on_from_its_last_checkpoint(run: tuple[list[str], Path, TrajectoryServer]) -> None:
    flags, folder, server = run
    flags = [*flags, "--training-steps", "8", "--checkpoint-interval", "2"]
    with _trainer(*flags) as process:
        wait_until(lambda: (folder / "step_2").exists() and len(_metrics(folder)) >= 3)
        process.kill()
    before = len(_metrics(folder))
    with _trainer(*flags, "--resume") as process:
        assert process.wait(timeout=60) == 0
    steps = [line["step"] for line in _metrics(folder)]
    assert steps[before] == max(step for step in range(0, before + 1, 2)) + 1
    assert steps[-1] == 8
    assert (folder / "step_8").exists()
    assert JsonClient(server.url).get("/status").body["groups_dropped"] == {}


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs a disk that is full for one process alone")
@pytest.mark.parametrize(
    ("room", "interval", "says"),
    [
        (20_000, "1", "--save-path: cannot write to {folder}: .*File too large.*--resume goes on from {newest}"),
        (2_000, "2", "metrics cannot be written to {folder}: File too large; .*--save-path"),
    ],
    ids=["for no checkpoint", "for no metrics"],
)
def test_full_disk_ends_the_trainer_by_name_and_its_last_checkpoint_stays(
    run: tuple[list[str], Path, TrajectoryServer], room: int, interval: str, says: str
) -> None:
    flags, folder, _ = run
    flags = [*flags, "--checkpoint-interval", interval, "--training-steps"]
    with _trainer(*flags, "1000") as process:
        wait_until(lambda: any(folder.glob("step_*")))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, room))
        said = process.communicate(timeout=60)[1].splitlines()
    assert process.returncode == 2
    newest = CheckpointFolder(folder).all()[-1]
    assert re.search(says.format(folder=folder, newest=newest.path.name), said[-1])
    assert list(folder.glob(".step_*")) == []
    assert all(line["step"] for line in _metrics(folder))
    with _trainer(*flags, str(newest.step + 1), "--resume") as process:
        assert process.wait(timeout=60) == 0


def test_engine_stays_until_the_last_environment_has_ended(run: tuple[list[str], Path, TrajectoryServer]) -> None:
    flags, folder, server = run
    engine, queue = JsonClient(f"http://127.0.0.1:{flags[3]}"), JsonClient(server.url)
    with _trainer(*flags, "--training-steps", "4") as process:
        wait_until(lambda: len(_metrics(folder)) >= 1)
        env_id = queue.post("/register-env", {"max_token_length": 64, "group_size": GROUP}).body["env_id"]
        wait_until(lambda: (folder / "step_4").exists())
        time.sleep(0.5)
        assert engine.get("/v1/models").body["data"]
        queue.post("/disconnect-env", {"env_id": env_id})
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    assert "the engine stays until the environments have ended (1 left)" in said


def test_interrupted_trainer_saves_what_it_has_learned(run: tuple[list[str], Path, TrajectoryServer]) -> None:
    flags, folder, _ = run
    with _trainer(*flags, "--training-steps", "1000", "--checkpoint-interval", "1000") as process:
        wait_until(lambda: len(_metrics(folder)) >= 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    last = _metrics(folder)[-1]["step"]
    assert (folder / f"step_{last}").exists()


def test_trainer_survives_a_restart_of_the_server(run: tuple[list[str], Path, TrajectoryServer]) -> None:
    flags, folder, server = run
    with _trainer(*flags, "--training-steps", "8") as process:
        wait_until(lambda: len(_metrics(folder)) >= 2)
        server.stop()
        time.sleep(0.3)
        server.start()
        assert process.wait(timeout=60) == 0
    assert [line["step"] for line in _metrics(folder)] == list(range(1, 9))
