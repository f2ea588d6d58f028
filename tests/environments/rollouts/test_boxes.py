"""Where the boxes of a run come from: one pool, swept as long as it lasts. Real boxes, a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from atroposlib.errors import ConfigError
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig
from sandboxes import Sandbox, SandboxSpec, SandboxUnavailable, check_backend, local, reaper, register_backend, registry
from sandboxes.image_build import BUILT_REPOSITORY, content_digest
from tests.machine import until

BACKEND = "counted"


class Boxes:
    """A backend that remembers its boxes; ``gate`` holds back those that start."""

    def __init__(self) -> None:
        self.started: list[Sandbox] = []
        self.starting = 0
        self.most_starting = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            await self.gate.wait()
            box = await local.start(SandboxSpec(workdir=spec.workdir))
        finally:
            self.starting -= 1
        self.started.append(box)
        return box


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> Boxes:
    monkeypatch.setattr(registry, "_registered", {})
    made = Boxes()
    register_backend(BACKEND, made.start)
    return made


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the sweeper of runs was told, in order."""
    told: list[str] = []

    @contextlib.asynccontextmanager
    async def sweeping() -> Any:
        told.append("begins")
        yield
        told.append("ends")

    monkeypatch.setattr(reaper, "sweeping", sweeping)
    return told


class WordEnv(HermesAgentBaseEnv):
    """The box is given a word, the agent copies it, the reward is whether it did."""

    name = "words"
    during: Callable[[], Awaitable[None]] | None = None

    async def setup(self) -> None:
        self.items = [{"word": f"word{n}"} for n in range(20)]
        self.eval_items = self.items

    async def get_next_item(self) -> Any:
        self._index += 1
        return self.items[self._index - 1]

    def format_prompt(self, item: Any) -> str:
        return f"Copy {item['word']}"

    async def prepare_box(self, item: Any, ctx: Any) -> None:
        assert ctx.terminal("ls")["output"] == ""
        ctx.write_file("given.txt", item["word"])

    async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
        if self.during is not None:
            await self.during()
        return 1.0 if ctx.terminal("cat answer.txt")["output"] == item["word"] else 0.0


def plays(request: Any) -> Any:
    text = request.text if request.kind != "chat" else str([message["role"] for message in request.messages])
    if "<|im_start|>tool" in text or "'tool'" in text:
        return "done"
    return {"tool_calls": [{"name": "terminal", "arguments": {"command": "cat given.txt > answer.txt"}}]}


def make(**settings: Any) -> WordEnv:
    server = ScriptedServer(plays)
    given = {"terminal_backend": BACKEND, "use_wandb": False, "enabled_toolsets": ["terminal"], "group_size": 2}
    env = WordEnv(WordEnv.env_config_cls(**given | settings), [server], testing=True)
    env.tokenizer = server.tokenizer
    return env


async def evaluated(env: WordEnv) -> None:
    async with asyncio.timeout(60):
        await env.evaluate_manager()
    await env.aclose()


def rewards(env: WordEnv) -> list[float]:
    folder = env.config.data_dir_to_save_evals
    assert folder is not None
    return [orjson.loads(line)["reward"] for line in (Path(folder) / "samples.jsonl").read_text().splitlines()]


async def test_rollouts_take_warm_boxes_each_of_its_own_and_none_is_left(boxes: Boxes, tmp_path: Any) -> None:
    env = make(warm_boxes=2, eval_size=4, max_eval_workers=1, data_dir_to_save_evals=str(tmp_path))

    async def a_box_stands_ready() -> None:
        await until(lambda: sum(not box.closed for box in boxes.started) == 3)

    env.during = a_box_stands_ready  # two beside the one that is graded
    await evaluated(env)
    assert rewards(env) == [1.0] * 4
    assert len(boxes.started) == 6
    assert all(box.closed for box in boxes.started)


async def test_without_warm_boxes_one_starts_for_each_rollout(boxes: Boxes, tmp_path: Any) -> None:
    env = make(eval_size=4, data_dir_to_save_evals=str(tmp_path))
    await evaluated(env)
    assert rewards(env) == [1.0] * 4
    assert len(boxes.started) == 4
    assert all(box.closed for box in boxes.started)


async def test_only_so_many_boxes_start_at_once_and_the_metrics_say_who_waits(boxes: Boxes) -> None:
    logged: list[Any] = []

    class Tracker:
        def log(self, metrics: Any, step: int) -> None:
            logged.append(metrics)

        def finish(self) -> None: ...

    boxes.gate.clear()
    env = make(max_boxes_starting=2, eval_size=5, max_eval_workers=5)
    run = asyncio.create_task(evaluated(env))
    await until(lambda: env._boxes.describe()["sandbox/waiting"] == 5)
    env.tracker = Tracker()
    await env.wandb_log()
    boxes.gate.set()
    await run
    assert boxes.most_starting == 2
    assert logged[0]["sandbox/waiting"] == 5
    assert logged[0]["sandbox/longest_wait_s"] > 0
    assert env._boxes.describe()["sandbox/waiting"] == 0


@pytest.mark.parametrize("gate", ["boxes start", "boxes stand ready"])
async def test_a_cancelled_run_closes_what_it_opened(boxes: Boxes, gate: str) -> None:
    env = make(warm_boxes=2, eval_size=4)

    async def for_ever() -> None:
        await asyncio.Event().wait()

    env.during = for_ever
    if gate == "boxes start":
        boxes.gate.clear()
    run = asyncio.create_task(evaluated(env))
    if gate == "boxes start":
        await until(lambda: boxes.starting == 4)
    else:
        await until(lambda: len(boxes.started) == 6)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await env.aclose()
    assert boxes.starting == 0
    assert all(box.closed for box in boxes.started)


async def test_a_run_with_boxes_is_swept_to_its_end(boxes: Boxes, swept: list[str]) -> None:
    env = make(eval_size=2, warm_boxes=1)

    async def sweeps() -> None:
        assert swept == ["begins"]

    env.during = sweeps
    await evaluated(env)
    assert swept == ["begins", "ends"]
    assert len(boxes.started) >= 2


async def test_a_run_without_boxes_is_not_swept(boxes: Boxes, swept: list[str]) -> None:
    class Env(WordEnv):
        async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
            return 1.0

    server = ScriptedServer(lambda _: "done")
    config = Env.env_config_cls(
        terminal_backend=BACKEND, use_wandb=False, enabled_toolsets=["todo"], group_size=2, eval_size=2
    )
    env = Env(config, [server], testing=True)
    env.tokenizer = server.tokenizer
    await evaluated(env)
    assert swept == []
    assert boxes.started == []


# -- what a box is made of, and what it may reach


def require(backend: str) -> str:
    try:
        check_backend(backend)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    return backend


class SayingEnv(WordEnv):
    """The agent runs the item's command; the reward is whether it said what the item says."""

    async def prepare_box(self, item: Any, ctx: Any) -> None: ...

    async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
        said = [message["content"] for message in result.messages if message["role"] == "tool"]
        return 1.0 if item["says"] in said[0] else 0.0


def saying(command: str, **settings: Any) -> SayingEnv:
    def script(request: Any) -> Any:
        return "done" if "<|im_start|>tool" in request.text else call(command)

    server = ScriptedServer(script)
    given = {"use_wandb": False, "enabled_toolsets": ["terminal"], "group_size": 1}
    env = SayingEnv(SayingEnv.env_config_cls(**given | settings), [server], testing=True)
    env.tokenizer = server.tokenizer
    return env


def call(command: str) -> Any:
    return {"tool_calls": [{"name": "terminal", "arguments": {"command": command}}]}


@pytest.fixture
async def site() -> AsyncIterator[int]:
    """The port of a web server of this machine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


FETCH = (
    "NO_PROXY= no_proxy= python3 -c 'import sys, urllib.request as r; "
    "print(r.urlopen(sys.argv[1], timeout=20).read().decode())' http://localhost:{} 2>&1"
)


@pytest.mark.namespaces
@pytest.mark.parametrize(("hosts", "says"), [("localhost:{}", "hello"), ("example.org", "403"), ("none", "refused")])
async def test_an_agent_reaches_the_listed_hosts_alone(site: int, hosts: str, says: str) -> None:
    env = saying(FETCH.format(site), terminal_backend=require("bubblewrap"), sandbox_network=[hosts.format(site)])
    await env.setup()
    member, _ = await env.collect_trajectory({"word": "x", "says": says})
    assert member["scores"] == 1.0
    await env.aclose()


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A folder with a Dockerfile, and a file of which there is no other."""
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM hermes-sandbox:busybox\nCOPY given /given\n")
    (folder / "given").write_text(uuid.uuid4().hex)
    return folder


@pytest.mark.docker
@pytest.mark.parametrize("named_by", ["item", "settings"])
async def test_a_box_is_built_from_the_folder_that_is_named(task: Path, named_by: str) -> None:
    import docker

    require("docker")
    item = {"word": "x", "says": (task / "given").read_text()}
    settings: dict[str, Any] = {"docker_build": str(task)}
    if named_by == "item":
        item, settings = item | {"docker_build": str(task)}, {"docker_image": "hermes-sandbox:busybox"}
    env = saying("cat /given", **settings)
    try:
        await env.setup()
        member, _ = await env.collect_trajectory(item)
        assert member["scores"] == 1.0
    finally:
        await env.aclose()
        client = docker.from_env()
        client.images.remove(f"{BUILT_REPOSITORY}:{content_digest(task)[:32]}", force=True)
        client.close()


@pytest.mark.docker
async def test_a_folder_that_cannot_be_built_ends_the_run_with_its_step(task: Path) -> None:
    require("docker")
    (task / "Dockerfile").write_text("FROM hermes-sandbox:busybox\nCOPY nothing /given\n")
    env = saying("cat /given", docker_build=str(task))
    await env.setup()
    with pytest.raises(ConfigError, match=r"docker_build: .*task could not be built"):
        await env.collect_trajectory({"word": "x", "says": "y"})
    await env.aclose()


async def test_a_folder_that_is_not_there_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"docker_build: there is no file .*/nowhere/Dockerfile"):
        await saying("ls", docker_build=str(tmp_path / "nowhere")).setup()
    with pytest.raises(ConfigError, match="docker_build is set, but terminal_backend 'local' has no images"):
        await saying("ls", docker_build=str(tmp_path), terminal_backend="local").setup()


def test_an_items_image_or_folder_goes_before_those_of_the_settings() -> None:
    env = saying("ls", docker_build="/tasks/usual")
    assert env.sandbox_spec({"word": "x"}).build == Path("/tasks/usual")
    assert env.sandbox_spec({"docker_build": "/tasks/own"}).build == Path("/tasks/own")
    own = env.sandbox_spec({"docker_image": "debian:12"})
    assert (own.image, own.build) == ("debian:12", None)
    with pytest.raises(ConfigError, match="names both docker_image a and docker_build b"):
        env.sandbox_spec({"docker_image": "a", "docker_build": "b"})
    with pytest.raises(ValueError, match="exclude each other"):
        HermesAgentEnvConfig(docker_image="a", docker_build="b")


@pytest.mark.parametrize(
    ("given", "network"),
    [
        ("none", "none"),
        (["none"], "none"),
        (["bridge"], "bridge"),
        (["pypi.org", "*.pythonhosted.org:443"], ("pypi.org", "*.pythonhosted.org:443")),
    ],
)
def test_the_network_is_none_bridge_or_a_list_of_hosts(given: Any, network: Any) -> None:
    assert HermesAgentEnvConfig(sandbox_network=given).sandbox_spec().network == network


@pytest.mark.parametrize("given", ["host", ["host"], [], ["none", "pypi.org"], ["http://pypi.org/simple"]])
def test_another_network_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="sandbox_network"):
        HermesAgentEnvConfig(sandbox_network=given)
