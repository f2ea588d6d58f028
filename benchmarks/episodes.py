"""Whole episodes in boxes beside a container per episode with one ``docker exec`` per command.

    python benchmarks/episodes.py [--image hermes-sandbox:bookworm] [--episodes 32] [--check]

An episode: start, ten commands, a file of 20 kB written and read, a command that verifies it, removal; sixteen at once.
Prints episodes per second, seconds per episode, and what an idle bubblewrap box holds in memory; with --check it ends
with 1 where a goal is missed. Needs a Docker daemon and namespaces. ``docker, warm`` takes its boxes from a pool.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import docker_cli
import psutil

from sandboxes import Sandbox, SandboxSpec, bubblewrap, docker
from sandboxes.images import BOOKWORM
from sandboxes.pool import SandboxPool

AT_ONCE = 16
COMMANDS = 10
COMMAND = "echo $((1 + 1)); ls / > /dev/null"
DATA = os.urandom(20_000)
VERIFY = f"test $(wc -c < /tmp/answer) = {len(DATA)}"
FILES_KB = "du -sk --one-file-system /workspace /tmp | awk '{ s += $1 } END { print s }'"
IDLE_BOXES = 16
IDLE_GOAL_MB = 1.0

Episode = Callable[[], Awaitable[None]]


async def by_command_line(image: str) -> None:
    async with docker_cli.container_of(image) as container:
        for _ in range(COMMANDS):
            await docker_cli.execute(container, COMMAND)
        await docker_cli.execute(container, "cat > /tmp/answer", stdin=DATA)
        expect(await docker_cli.execute(container, "cat /tmp/answer") == DATA)
        await docker_cli.execute(container, VERIFY)


async def in_box(taking: Awaitable[Sandbox]) -> None:
    box = await taking
    try:
        for _ in range(COMMANDS):
            expect((await box.exec(["sh", "-c", COMMAND])).exit_code == 0)
        await box.write("/tmp/answer", DATA)
        expect(await box.read("/tmp/answer") == DATA)
        expect((await box.exec(["sh", "-c", VERIFY])).exit_code == 0)
    finally:
        await box.close()


def expect(holds: bool) -> None:
    if not holds:
        raise RuntimeError("an episode went wrong")


async def rate(name: str, episode: Episode, count: int) -> float:
    """Episodes per second."""
    slots = asyncio.Semaphore(AT_ONCE)
    seconds = []

    async def timed() -> None:
        async with slots:
            started = time.perf_counter()
            await episode()
            seconds.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(timed() for _ in range(count)))
    per_second = count / (time.perf_counter() - started)
    print(f"{name:28} {per_second:8.2f} episodes/s   median {statistics.median(seconds):6.2f} s", flush=True)
    return per_second


async def measure(image: str, count: int) -> bool:
    """Whether both goals are reached; the command line is measured before and after, and counts by its mean."""
    spec = SandboxSpec(image=image)

    def command_line() -> Awaitable[float]:
        return rate("docker command line", lambda: by_command_line(image), max(AT_ONCE, count // 2))

    before = await command_line()
    in_docker = await rate("docker", lambda: in_box(docker.start(spec)), count)
    in_namespaces = await rate("bubblewrap", lambda: in_box(bubblewrap.start(SandboxSpec())), 8 * count)
    async with SandboxPool(docker.start, warm=4) as pool:
        warm = await rate("docker, warm", lambda: in_box(pool.take(spec)), count)
    base = statistics.mean([before, await command_line()])
    print(f"docker {in_docker / base:.1f}x (goal 3x), docker, warm {warm / base:.1f}x, ", end="")
    print(f"bubblewrap {in_namespaces / base:.0f}x (goal 25x)")
    return in_docker >= 3 * base and in_namespaces >= 25 * base


async def idle_memory() -> bool:
    """Whether a box that does nothing stays below the goal: its processes' share of memory, and the files it holds."""
    boxes = await asyncio.gather(*(bubblewrap.start(SandboxSpec()) for _ in range(IDLE_BOXES)))
    try:
        processes = [child for child in psutil.Process().children(recursive=True) if is_of_box(child)]
        mb = sum(process.memory_full_info().pss for process in processes) / IDLE_BOXES / 1e6
        files = [
            await box.exec("du -sk --one-file-system /workspace /tmp | awk '{s+=$1} END {print s}'") for box in boxes
        ]
    finally:
        await asyncio.gather(*(box.close() for box in boxes))
    mb += statistics.mean(int(result.stdout) for result in files) / 1e3
    print(
        f"an idle bubblewrap box: {mb:.2f} MB in {len(processes) / IDLE_BOXES:.0f} processes (goal {IDLE_GOAL_MB} MB)"
    )
    return mb <= IDLE_GOAL_MB


def is_of_box(process: psutil.Process) -> bool:
    return Path(process.exe()).name.startswith("runner-")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default=BOOKWORM)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--check", action="store_true", help="end with 1 where a goal is missed")
    options = parser.parse_args()
    reached = [await idle_memory(), await measure(options.image, options.episodes)]
    return int(options.check and not all(reached))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
