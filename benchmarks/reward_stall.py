"""How long verifiers hold up other rollouts: many rollouts at once, each with a slow ``ctx.terminal`` in its reward.

    python benchmarks/reward_stall.py [--rollouts 64] [--seconds 0.5] [--backend auto]

The boxes are open before the clock starts. Two ways are measured in one run: ``ctx.terminal`` as an environment writes
it (without ``await``, in an async ``compute_reward``), and the same call made to block the event loop until a thread
has its result. Prints one line of JSON: seconds of wall time and the longest lag of the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from environments.tool_context import ToolContext, bridged
from environments.tools.workspaces import BoxPlan, workspace_scope
from sandboxes.base import SandboxSpec

PROBE_S = 0.002


@dataclass
class Lag:
    """The longest time for which the event loop did not come back."""

    longest_s: float = 0.0


@contextmanager
def measured_lag() -> Iterator[Lag]:
    """Measure the lag of the running loop during the block."""
    lag, loop = Lag(), asyncio.get_running_loop()

    def probe(due: float) -> None:
        nonlocal handle
        lag.longest_s = max(lag.longest_s, loop.time() - due)
        handle = loop.call_later(PROBE_S, probe, loop.time() + PROBE_S)

    handle = loop.call_later(PROBE_S, probe, loop.time() + PROBE_S)
    try:
        yield lag
    finally:
        handle.cancel()


Reward = Callable[[ToolContext], Awaitable[float]]


def as_written(command: str) -> Reward:
    """The reward of an environment: a plain call in an async function."""

    async def compute_reward(ctx: ToolContext) -> float:
        return float(ctx.terminal(command)["exit_code"] == 0)

    return compute_reward


def blocking(command: str) -> Reward:
    """The same call without the bridge: the event loop stands still until a thread has the result."""

    async def compute_reward(ctx: ToolContext) -> float:
        with ThreadPoolExecutor(1) as pool:
            return float(pool.submit(ctx.terminal, command).result()["exit_code"] == 0)

    return compute_reward


async def measure(contexts: list[ToolContext], reward: Reward) -> dict[str, float]:
    """Wall time and loop lag of all rewards at once."""
    started = time.perf_counter()
    with measured_lag() as lag:
        rewards = await asyncio.gather(*(bridged(reward, ctx) for ctx in contexts))
    wall_s = time.perf_counter() - started
    assert rewards == [1.0] * len(contexts)
    return {"wall_s": round(wall_s, 3), "longest_lag_s": round(lag.longest_s, 4)}


async def measure_bridged(rollouts: int, backend: str, command: str) -> dict[str, float]:
    """Boxes on this event loop, as in an environment."""
    async with workspace_scope(BoxPlan(backend, SandboxSpec())):
        contexts = [ToolContext(str(uuid.uuid4())) for _ in range(rollouts)]
        await asyncio.gather(*(ctx.aterminal("true") for ctx in contexts))
        return await measure(contexts, as_written(command))


async def measure_blocking(rollouts: int, backend: str, command: str) -> dict[str, float]:
    """Boxes on a loop in a thread, so that blocking this one does not hold them up, too."""
    contexts = [ToolContext.open(backend) for _ in range(rollouts)]
    try:
        await asyncio.gather(*(asyncio.to_thread(ctx.terminal, "true") for ctx in contexts))
        return await measure(contexts, blocking(command))
    finally:
        await asyncio.gather(*(asyncio.to_thread(ctx.cleanup) for ctx in contexts))


async def compare(rollouts: int, seconds: float, backend: str) -> dict[str, object]:
    """Both ways in one run."""
    command = f"sleep {seconds:g}"
    without_stall = await measure_bridged(rollouts, backend, command)
    stalled = await measure_blocking(rollouts, backend, command)
    return {
        "bench": "reward_stall",
        "rollouts": rollouts,
        "seconds": seconds,
        "backend": backend,
        "bridged": without_stall,
        "blocking": stalled,
        "speedup": round(stalled["wall_s"] / without_stall["wall_s"], 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each reward's command takes")
    parser.add_argument("--backend", default="auto")
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(compare(arguments.rollouts, arguments.seconds, arguments.backend))))


if __name__ == "__main__":
    main()
