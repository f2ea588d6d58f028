"""A box beside the docker command line: one command, sixteen at once, a claim from the pool, a megabyte in and out.

    python benchmarks/sandbox.py [--image hermes-sandbox:bookworm] [--rounds 15] [--check]

Both sides take turns in one run. Prints the medians in milliseconds and their ratio to the command line's; with --check
it ends with 1 where a docker box misses its goal. Needs a Docker daemon; the bubblewrap column needs namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import docker_cli

from sandboxes import Sandbox, SandboxSpec, SandboxUnavailable, bubblewrap, check_backend, docker, open_sandbox
from sandboxes.images import BOOKWORM
from sandboxes.pool import SandboxPool

MEGABYTE = 1 << 20
AT_ONCE = 16
OURS_PER_ROUND = 5

Action = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Figure:
    """One line of the table; ``goal`` is how many times faster a docker box has to be."""

    name: str
    goal: float | None
    theirs: Action
    docker: Action
    bubblewrap: Action | None


async def elapsed_ms(action: Action) -> float:
    started = time.perf_counter()
    await action()
    return (time.perf_counter() - started) * 1e3


async def medians_ms(figure: Figure, rounds: int) -> list[float | None]:
    """Of theirs, docker and bubblewrap, which take turns; ours several times each turn, being so much shorter."""
    actions = (figure.theirs, figure.docker, figure.bubblewrap)
    times: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for index, action in enumerate(actions):
            if action is not None:
                times[index] += [await elapsed_ms(action) for _ in range(OURS_PER_ROUND if index else 1)]
    return [statistics.median(values) if values else None for values in times]


def at_once(action: Action) -> Action:
    return lambda: asyncio.gather(*(action() for _ in range(AT_ONCE)))


def a_command(box: Sandbox) -> Action:
    return lambda: box.exec(["sh", "-c", "true"])


def figures_inside(container: str, box: Sandbox, dense: Sandbox | None, folder: Path) -> Sequence[Figure]:
    """What is measured in boxes that run already."""
    data = os.urandom(MEGABYTE)
    source, target = folder / "in", folder / "out"
    source.write_bytes(data)

    def command() -> Awaitable[object]:
        return docker_cli.execute(container, "true")

    def copy(origin: str, goal: str) -> Action:
        return lambda: docker_cli.docker("cp", origin, goal)

    def each(action: Callable[[Sandbox], Action]) -> tuple[Action, Action | None]:
        return action(box), action(dense) if dense is not None else None

    inside = f"{container}:/f"
    return (
        Figure("one command", 30, command, *each(a_command)),
        Figure(f"{AT_ONCE} commands at once", 40, at_once(command), *each(lambda box: at_once(a_command(box)))),
        Figure("1 MB in", 10, copy(str(source), inside), *each(lambda box: lambda: box.write("f", data))),
        Figure("1 MB out", None, copy(inside, str(target)), *each(lambda box: lambda: box.read("f"))),
    )


async def claims_ms(start: Callable[[SandboxSpec], Awaitable[Sandbox]], spec: SandboxSpec, rounds: int) -> float:
    """A warm box and its first command; that the next box is started and this one removed is not part of it."""
    times = []
    async with SandboxPool(start, warm=1) as pool:
        await (await pool.take(spec)).close()
        for _ in range(rounds):
            while not pool.ready(spec):  # noqa: ASYNC110 - the pool tells how many, not when
                await asyncio.sleep(0.01)
            started = time.perf_counter()
            box = await pool.take(spec)
            await box.exec(["sh", "-c", "true"])
            times.append((time.perf_counter() - started) * 1e3)
            await box.close()
    return statistics.median(times)


def show(name: str, goal: float | None, theirs: float, ours: float, dense: float | None) -> bool:
    """Print a line; False where the goal is missed."""
    more = "" if dense is None else f"{dense:10.2f} {theirs / dense:7.0f}x"
    wanted = "" if goal is None else f"  goal {goal:.0f}x"
    print(f"{name:32} {theirs:10.1f} {ours:10.2f} {theirs / ours:7.0f}x {more}{wanted}", flush=True)
    return goal is None or theirs / ours >= goal


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default=BOOKWORM)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--check", action="store_true", help="end with 1 where a goal is missed")
    options = parser.parse_args()
    print(f"{'median, ms':32} {'docker CLI':>10} {'docker box':>10} {'ratio':>8} {'bubblewrap':>10} {'ratio':>8}")
    reached = [*await measure_inside(options.image, options.rounds), await measure_start(options.image, options.rounds)]
    return int(options.check and not all(reached))


async def measure_inside(image: str, rounds: int) -> list[bool]:
    reached = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        container = await stack.enter_async_context(docker_cli.container_of(image))
        box = await stack.enter_async_context(open_sandbox("docker", SandboxSpec(image=image)))
        dense = await stack.enter_async_context(open_sandbox("bubblewrap")) if has_namespaces() else None
        for figure in figures_inside(container, box, dense, folder):
            theirs, ours, denser = await medians_ms(figure, rounds)
            assert theirs is not None
            assert ours is not None
            reached.append(show(figure.name, figure.goal, theirs, ours, denser))
    return reached


async def measure_start(image: str, rounds: int) -> bool:
    async def theirs() -> None:
        containers.append(await docker_cli.run(image))
        await docker_cli.execute(containers[-1], "true")

    containers: list[str] = []
    try:
        runs = [await elapsed_ms(theirs) for _ in range(rounds)]
    finally:
        await asyncio.gather(*map(docker_cli.remove, containers))
    claims = await claims_ms(docker.start, SandboxSpec(image=image), rounds)
    dense = await claims_ms(bubblewrap.start, SandboxSpec(), rounds) if has_namespaces() else None
    return show("warm claim and first command", 80, statistics.median(runs), claims, dense)


def has_namespaces() -> bool:
    try:
        check_backend("bubblewrap")
    except SandboxUnavailable:
        return False
    return True


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
