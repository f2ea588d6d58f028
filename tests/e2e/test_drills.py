"""Kill, interrupt and restart what runs: nothing is left on the machine, and nothing that was accepted is lost."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.atroposlib.api.serving import ServerProcess
from tests.e2e.leftovers import MARK, Owner
from tests.e2e.programs import environment, make_folder, module, run, surroundings
from tests.environments.agent_engine import AgentEngine, serving_in_a_thread
from tests.environments.conftest import require
from tests.machine import command_lines, wait_until
from tests.trainer.services import TrajectoryServer
from trainer.http import JsonClient

ROLLOUTS = 4
GROUPS_PER_BATCH = 2
BUBBLEWRAP = pytest.param("bubblewrap", marks=pytest.mark.namespaces)
DOCKER = pytest.param("docker", marks=pytest.mark.docker)
RUN = {
    "wandb_group": "group",
    "wandb_project": "project",
    "batch_size": 4,
    "max_token_len": 65536,
    "checkpoint_dir": "",
    "save_checkpoint_interval": -1,
    "starting_step": 0,
    "num_steps": 1000,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder."""
    return make_folder(tmp_path_factory.mktemp("user") / "work")


@pytest.fixture
def agents() -> Iterator[AgentEngine]:
    """An engine whose agents all run one command that does not end by itself, and that no one else runs."""
    engine = AgentEngine()
    engine.command = f"sleep {random.randrange(10**7, 10**8)}"
    with serving_in_a_thread(engine):
        yield engine


@pytest.fixture
def queue() -> Iterator[str]:
    """A trajectory server with a trainer that has asked for a batch."""
    with TrajectoryServer() as server:
        register(server.url)
        yield server.url


def register(url: str) -> None:
    JsonClient(url).post("/register", RUN)
    JsonClient(url).get("/batch")


class Program:
    """A program that runs, with a temporary folder and a mark of its own. What it says is in ``log``."""

    def __init__(self, command: list[str], folder: Path, scratch: Path) -> None:
        self.temporary = scratch / f"temporary-{uuid.uuid4().hex[:8]}"
        self.temporary.mkdir(parents=True)
        self.log = scratch / f"{self.temporary.name}.log"
        mark = uuid.uuid4().hex
        variables = surroundings(TMPDIR=str(self.temporary), **{MARK: mark})
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)
        self.owner = Owner(self.process.pid, self.temporary, mark)

    def end_by(self, number: int, within_s: float = 60.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(within_s)

    def said(self) -> str:
        return self.log.read_text()


@contextmanager
def running(command: list[str], folder: Path, scratch: Path) -> Iterator[Program]:
    """A program, killed at the end where it still runs."""
    program = Program(command, folder, scratch)
    try:
        yield program
    except BaseException:
        sys.stderr.write(program.said())
        raise
    finally:
        program.process.kill()
        program.process.wait()


def collecting(mode: str, backend: str, engine_url: str, *words: str) -> list[str]:
    """The command of an environment that plays ``ROLLOUTS`` rollouts at once."""
    return environment(
        *(mode, "--openai.base_url", engine_url, "--env.tokenizer_name", "tokenizer", "--env.use_wandb", "false"),
        *("--env.terminal_backend", require(backend), "--env.group_size", "2"),
        *("--env.max_num_workers", str(ROLLOUTS // 2), "--env.max_eval_workers", str(ROLLOUTS), *words),
    )


def wait_for_agents(agents: AgentEngine, program: Program) -> None:
    """Until every rollout's agent runs its command."""
    wait_until(lambda: len(asleep(agents)) >= ROLLOUTS, program=program.process)


def asleep(agents: AgentEngine) -> list[str]:
    """The agents' commands that run. The shells that wait for them hold the command too, but do not begin with it."""
    return [words for words in command_lines(holding=agents.command) if words.strip() == agents.command]


# environments


@pytest.mark.parametrize("backend", [BUBBLEWRAP, DOCKER])
def test_the_reaper_removes_everything_of_a_killed_environment(backend, folder, agents, queue, tmp_path):
    command = collecting("serve", backend, agents.url, "--env.rollout_server_url", queue)
    with running(command, folder, tmp_path) as program:
        wait_for_agents(agents, program)
        assert program.owner.boxes() == ROLLOUTS
        program.end_by(signal.SIGKILL)
        reaped = run(module("sandboxes.reaper"), folder, {"TMPDIR": str(program.temporary)})
    assert reaped.returncode == 0, reaped.stdout + reaped.stderr
    assert program.owner.left() == []
    assert command_lines(holding=agents.command) == []


@pytest.mark.parametrize(
    ("mode", "number", "backend"),
    [
        pytest.param("process", signal.SIGINT, "bubblewrap", marks=pytest.mark.namespaces),
        pytest.param("serve", signal.SIGTERM, "bubblewrap", marks=pytest.mark.namespaces),
        pytest.param("evaluate", signal.SIGINT, "docker", marks=pytest.mark.docker),
    ],
)
def test_a_signal_leaves_nothing_for_the_reaper(mode, number, backend, folder, agents, queue, tmp_path):
    words = ("--env.rollout_server_url", queue) if mode == "serve" else ()
    with running(collecting(mode, backend, agents.url, *words), folder, tmp_path) as program:
        wait_for_agents(agents, program)
        assert program.owner.boxes() == ROLLOUTS
        assert program.end_by(number) == 128 + number
    assert program.owner.left() == []
    assert command_lines(holding=agents.command) == []
    assert f"{mode} was stopped by {signal.Signals(number).name}" in program.said()
    assert "Traceback" not in program.said()


@pytest.mark.namespaces
def test_a_signal_while_boxes_are_being_opened_leaves_nothing(folder, agents, tmp_path):
    with running(collecting("process", "bubblewrap", agents.url), folder, tmp_path) as program:
        # the first request is the probe; an agent's box is opened when its first reply has come
        wait_until(lambda: len(agents.bodies("/v1/completions")) > ROLLOUTS, program=program.process)
        assert program.end_by(signal.SIGINT) == 130
    assert program.owner.left() == []
    assert command_lines(holding=agents.command) == []


@pytest.mark.namespaces
def test_rollouts_that_take_too_long_leave_nothing(folder, agents, tmp_path):
    command = collecting(
        "process", "bubblewrap", agents.url, "--env.worker_timeout", "0.7", "--env.max_num_workers", "8"
    )
    with running(command, folder, tmp_path) as program:
        assert program.process.wait(100) == 1
    assert re.search(r"items in a row gave no group: timeout \(\d+\)\n", program.said())
    assert program.owner.left() == []
    assert command_lines(holding=agents.command) == []


# the trajectory server


class Taker:
    """Takes batches as a trainer does. ``taken``: the items whose groups came, in their order."""

    def __init__(self, url: str) -> None:
        self._client = JsonClient(url)
        self._last: str | None = None
        self.taken: list[int] = []

    def take(self) -> bool:
        """The next batch, if one is ready; asking for it acknowledges the one before."""
        answer = self._client.get("/batch", ack=self._last)
        self._last = answer.headers.get("x-batch-id") or self._last
        groups: list[dict[str, Any]] = answer.body["batch"] or []
        self.taken += [group["tokens"][0][0] for group in groups]
        return bool(groups)

    def take_until(self, count: int, program: Program) -> None:
        wait_until(lambda: self.take() and len(self.taken) >= count, program=program.process)

    def take_the_rest(self) -> None:
        while self.take():
            pass


def counting(url: str, recorded: Path) -> list[str]:
    """The command of an environment that needs no engine: group ``n`` holds the number ``n``."""
    return module(
        *("tests.atroposlib.envs.counting_env", "serve", "--env.rollout_server_url", url),
        *("--env.seconds", "0.01", "--env.data_path_to_save_groups", str(recorded)),
    )


@pytest.mark.parametrize("keeps", [True, False], ids=["with a store", "without a store"])
def test_a_killed_server_is_served_on_and_with_a_store_it_loses_nothing(keeps, tmp_path):
    server = ServerProcess(*(["--store", str(tmp_path / "queue.sqlite")] if keeps else []))
    recorded = tmp_path / "groups.jsonl"
    server.start()
    try:
        register(server.url)
        taker = Taker(server.url)
        with running(counting(server.url, recorded), tmp_path, tmp_path) as program:
            taker.take_until(10, program)
            for _ in range(2):
                server.kill()
                server.start()
                if not keeps:
                    register(server.url)
                taker.take_until(len(taker.taken) + 10, program)
            assert program.end_by(signal.SIGINT) == 130
        taker.take_the_rest()
    finally:
        server.kill()
    made = {json.loads(line)["tokens"][0][0] for line in recorded.read_text().splitlines()}
    assert len(taker.taken) == len(set(taker.taken))
    assert set(taker.taken) <= made
    if keeps:
        assert len(made - set(taker.taken)) < GROUPS_PER_BATCH
    assert "Traceback" not in program.said()


TRAINER = """
import sys, time
from atroposlib.wire import Registration
from trainer.http import JsonClient
from trainer.trajectories import TrajectorySource

source = TrajectorySource(JsonClient(sys.argv[1]))
source.register(Registration(**{run}))
for step in range(int(sys.argv[2])):
    print(*(group["tokens"][0][0] for group in source.next_batch(step)), flush=True)
time.sleep(600)
"""


@contextmanager
def trainer(url: str, batches: int) -> Iterator[list[str]]:
    """The trainer's own client takes batches and never asks for the one after; then it is killed."""
    command = [sys.executable, "-c", TRAINER.format(run=RUN), url, str(batches)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings()) as process:
        assert process.stdout is not None
        try:
            yield [process.stdout.readline().strip() for _ in range(batches)]
        finally:
            process.kill()


def test_a_batch_of_a_killed_trainer_is_given_out_again(tmp_path):
    server = ServerProcess("--store", str(tmp_path / "queue.sqlite"))
    server.start()
    try:
        register(server.url)
        with running(counting(server.url, tmp_path / "groups.jsonl"), tmp_path, tmp_path):
            with trainer(server.url, 2) as batches:
                first, lost = batches
            with trainer(server.url, 2) as batches:
                again, following = batches
    finally:
        server.kill()
    assert again == lost
    assert len({first, lost, following}) == 3


# the quickstart

LONG = [pytest.mark.slow, pytest.mark.timeout(200)]
MOMENTS = [
    pytest.param("logs/*.log", id="its first child starts"),
    pytest.param("evaluations/*/samples.partial.jsonl", id="boxes are open"),
    pytest.param("trainer/metrics.jsonl", id="the policy is trained", marks=LONG),
]
"""Files that have something in them from a moment on."""


@pytest.mark.namespaces
@pytest.mark.parametrize("sign", MOMENTS)
def test_ctrl_c_ends_the_quickstart_and_all_that_it_started(sign, tmp_path):
    require("bubblewrap")
    target = tmp_path / "run"
    command = module("environments.local_run.quickstart", "--folder", str(target), "--backend", "bubblewrap")
    with running([*command, "--eval-size", "4", "--steps", "50"], tmp_path, tmp_path) as program:
        wait_until(lambda: any(path.stat().st_size for path in target.glob(sign)), 150, program.process)
        program.owner.note_children()
        assert program.end_by(signal.SIGINT) == 130
    assert program.owner.left() == []
    assert f"What it wrote is in {target}" in program.said()
    assert "Traceback" not in program.said()
