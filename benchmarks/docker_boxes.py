"""Docker boxes beside the docker command line: start, one command, a megabyte in and out, many at once.

    python benchmarks/docker_boxes.py [--image hermes-sandbox:bookworm] [--rounds 30] [--boxes 32]

Prints one line for each figure: ours and the command line's median in milliseconds, and the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandboxes import docker
from sandboxes.base import SandboxSpec
from sandboxes.images import BOOKWORM

MEGABYTE = 1 << 20


async def median_ms(action: Callable[[], Awaitable[object]], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        await action()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[1:])


async def cli(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "docker", *arguments, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"docker {' '.join(arguments)} failed")
    return out.decode().strip()


def show(name: str, ours: float, theirs: float) -> None:
    print(f"{name:34} {ours:9.2f} {theirs:9.2f} {theirs / ours:8.1f}x", flush=True)


async def life(image: str, rounds: int) -> None:
    run = ["run", "-d", "--network", "none", "--entrypoint", "sleep", image, "600"]

    async def ours() -> None:
        box = await docker.start(SandboxSpec(image=image))
        await box.exec("true")
        await box.close()

    async def theirs() -> None:
        container = await cli(*run)
        await cli("exec", container, "sh", "-c", "true")
        await cli("rm", "-f", container)

    show("start, first command, removal", await median_ms(ours, rounds), await median_ms(theirs, rounds))


async def inside(image: str, rounds: int) -> None:
    box = await docker.start(SandboxSpec(image=image))
    container = await cli("run", "-d", "--network", "none", "--entrypoint", "sleep", image, "600")
    data = os.urandom(MEGABYTE)
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder, "in"), Path(folder, "out")
            source.write_bytes(data)
            for name, ours, theirs in (
                ("one command", lambda: box.exec("true"), ("exec", container, "sh", "-c", "true")),
                ("1 MB in", lambda: box.write("f", data), ("cp", str(source), f"{container}:/f")),
                ("1 MB out", lambda: box.read("f"), ("cp", f"{container}:/f", str(target))),
            ):
                show(name, await median_ms(ours, 5 * rounds), await median_ms(lambda a=theirs: cli(*a), rounds))
            commands = [lambda: box.exec("true"), lambda: cli("exec", container, "sh", "-c", "true")]
            sixteen = [await median_ms(lambda c=c: asyncio.gather(*(c() for _ in range(16))), 3) for c in commands]
            show("16 commands at once", *sixteen)
    finally:
        await box.close()
        await cli("rm", "-f", container)


async def many(image: str, count: int) -> None:
    started = time.perf_counter()
    boxes = await asyncio.gather(*(docker.start(SandboxSpec(image=image)) for _ in range(count)))
    up = time.perf_counter() - started
    await asyncio.gather(*(box.close() for box in boxes))
    gone = time.perf_counter() - started - up
    print(f"{count} boxes at once: {up:.2f} s to start ({count / up:.1f}/s), {gone:.2f} s to close")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image", default=BOOKWORM)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--boxes", type=int, default=32)
    options = parser.parse_args()
    print(f"{'median, ms':34} {'box':>9} {'docker':>9} {'ratio':>9}")
    await life(options.image, max(3, options.rounds // 3))
    await inside(options.image, options.rounds)
    await many(options.image, options.boxes)


if __name__ == "__main__":
    asyncio.run(main())
