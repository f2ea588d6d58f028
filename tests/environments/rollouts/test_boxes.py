"""Where the boxes of a run come from: one pool, swept as long as it lasts. Real boxes, a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from atroposlib.envs.server_handling.scripted_server import ScriptedServer
from environments.hermes_base_env import HermesAgentBaseEnv
from sandboxes import Sandbox, SandboxSpec, local, reaper, register_backend, registry

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


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


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
