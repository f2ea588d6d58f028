"""The Docker daemon is restarted in the middle of a rollout: the rollout fails by name, and the next one is played."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.errors import RolloutInvalid
from environments.hermes_base_env import HermesAgentBaseEnv
from sandboxes import docker_daemon, images, reaper
from sandboxes.ownership import SANDBOX_LABEL
from tests.environments.rollouts.private_daemon import PrivateDaemon, private_daemon
from tests.machine import command_lines, until

DEADLINE_S = 60.0
REFUSED_SOCKETS = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
"""Docker's SDK leaves a socket to the garbage collector where the daemon refuses its connection."""


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateDaemon]:
    """A daemon of the test's own, which holds the tiny image."""
    with private_daemon() as daemon:
        monkeypatch.setenv("DOCKER_HOST", daemon.host)
        images.build_image(images.RECIPES["busybox"], lambda _line: None)
        yield daemon


class HelloEnv(HermesAgentBaseEnv):
    """The reward is whether the agent's file is in the box."""

    name = "hello"

    async def setup(self) -> None:
        self.items = self.eval_items = [{"word": "hello"}]

    async def get_next_item(self) -> Any:
        return self.items[0]

    def format_prompt(self, item: Any) -> str:
        return "Write hello into the file hello"

    async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
        return 1.0 if ctx.terminal("cat hello")["output"].strip() == "hello" else 0.0


def make(commands: list[str]) -> HelloEnv:
    """An environment whose agent runs one command in each rollout."""
    waiting = iter(commands)

    def script(request: Any) -> Any:
        if "<|im_start|>tool" in request.text:
            return "done"
        return {"tool_calls": [{"name": "terminal", "arguments": {"command": next(waiting)}}]}

    server = ScriptedServer(script)
    config = HelloEnv.env_config_cls(
        docker_image=images.BUSYBOX, use_wandb=False, enabled_toolsets=["terminal"], group_size=1
    )
    env = HelloEnv(config, [server], testing=True)
    env.tokenizer = server.tokenizer
    return env


def containers() -> list[dict[str, Any]]:
    client = docker_daemon.connect()
    try:
        found: list[dict[str, Any]] = client.api.containers(all=True, filters={"label": f"{SANDBOX_LABEL}=1"})
        return found
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.filterwarnings(REFUSED_SOCKETS)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_daemon_restarted_in_a_rollout_fails_it_by_name_and_the_next_is_played(
    daemon: PrivateDaemon, number: signal.Signals
) -> None:
    mark = f"{random.randrange(10**6, 10**7)}.{random.randrange(10**6)}"
    env = make([f"sleep {mark}", "echo hello > hello"])
    await env.setup()
    rollout = asyncio.create_task(env.collect_trajectory(env.items[0]))
    await until(lambda: command_lines(holding=f"sleep {mark}"), DEADLINE_S)
    await asyncio.to_thread(daemon.end, number)
    await asyncio.to_thread(daemon.start)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RolloutInvalid) as failure:
            await rollout
    assert failure.value.reason == "sandbox_error"
    await until(lambda: not command_lines(holding=f"sleep {mark}"), DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):
        member, _ = await env.collect_trajectory(env.items[0])
    assert member["scores"] == 1.0
    await env.aclose()
    await asyncio.to_thread(reaper.reap)
    assert await asyncio.to_thread(containers) == []
    gc.collect()


@pytest.mark.slow
@pytest.mark.docker
def test_the_daemon_of_these_tests_leaves_the_network_of_the_machine_alone() -> None:
    before = machine_network()
    with private_daemon() as daemon:
        daemon.end(signal.SIGTERM)
        daemon.start()
        assert machine_network() == before
    assert machine_network() == before


def machine_network() -> str:
    """Bridges with their addresses, and the packet filter without its counters."""
    commands = (["ip", "-o", "address", "show", "type", "bridge"], ["iptables", "-S"], ["iptables", "-S", "-t", "nat"])
    if any(shutil.which(words[0]) is None for words in commands):
        pytest.skip("needs ip and iptables, to see the network of the machine")
    return "".join(subprocess.run(words, capture_output=True, text=True, check=True).stdout for words in commands)
