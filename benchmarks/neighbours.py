"""What the neighbour of a box notices while that box attacks the machine: time of a command, quiet and attacked.

    python benchmarks/neighbours.py [--backends docker bubblewrap] [--rounds 5] [--check]

Each round times 120 commands of the neighbour while the other box is idle, then as many while it attacks. Printed are
the medians over the rounds of the 99th percentiles, of the 90th, and of their ratios; with --check it ends with 1 where
the ratio of the 99th percentiles is not below 3. Each attack starts only where it finds the mark that was put into its
box, so that it can never run anywhere else.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandboxes import ExecResult, Sandbox, SandboxSpec, open_sandbox

ATTACKS = {
    "fork bomb": "bomb() { bomb | bomb & }; bomb; sleep 1000",
    "processes that stay": "while :; do sleep 1000 & done",
    "memory": "while :; do head -c 200000000 /dev/zero | tail -c 190000000 > /dev/null; done",
    "disk": "while :; do head -c 100000000 /dev/zero > /workspace/big; head -c 100000000 /dev/zero > /tmp/big; done",
    "files": "i=0; while :; do : > /workspace/f$i; i=$((i + 1)); done",
    "cpu": "for i in 1 2 3 4; do while :; do :; done & done; wait",
}
SMALL = SandboxSpec(cpus=0.25, memory_mb=96, pids=48, disk_mb=32)
COMMANDS = 120
MOST_SLOWER = 3.0


async def command_times(box: Sandbox) -> list[float]:
    """Seconds that each of ``COMMANDS`` commands takes, sorted."""
    times = []
    for _ in range(COMMANDS):
        started = time.perf_counter()
        assert (await box.exec(["sh", "-c", "true"])).exit_code == 0
        times.append(time.perf_counter() - started)
    return sorted(times)


def percentile(times: list[float], share: float) -> float:
    """Of sorted times."""
    return times[round(share * (len(times) - 1))]


@asynccontextmanager
async def attacked(box: Sandbox, name: str) -> AsyncIterator[None]:
    """The box attacks meanwhile; nothing of it runs afterwards."""
    task = asyncio.create_task(_attack(box, ATTACKS[name]))
    try:
        await asyncio.sleep(0.3)  # the attack is to be under way; how far does not matter
        yield
        if task.done():
            raise RuntimeError(f"the attack {name!r} ended by itself: {task.exception() or task.result()}")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await box.kill_all()


async def _attack(box: Sandbox, text: str) -> ExecResult:
    mark = f"/workspace/throwaway-{uuid.uuid4().hex}"
    await box.write(mark, b"")
    return await box.exec(f"test -f {mark} || exit 99; {text}", timeout_s=60, output_limit=1000)


async def measure(backend: str, name: str, rounds: int) -> float:
    """Print one line; the ratio of the 99th percentiles."""
    quiet, busy = [], []
    async with open_sandbox(backend, SMALL) as attacker, open_sandbox(backend) as neighbour:
        for _ in range(rounds):
            quiet.append(await command_times(neighbour))
            async with attacked(attacker, name):
                busy.append(await command_times(neighbour))
    shown, ratios = "", {}
    for share in (0.9, 0.99):
        before, during = ([percentile(times, share) * 1e3 for times in each] for each in (quiet, busy))
        ratios[share] = statistics.median(b / a for a, b in zip(before, during, strict=True))
        shown += f"   p{share * 100:.0f} {statistics.median(before):6.2f} {statistics.median(during):6.2f}"
        shown += f" {ratios[share]:5.2f}x"
    print(f"{backend:11} {name:20}{shown}", flush=True)
    return ratios[0.99]


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["docker", "bubblewrap"])
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="end with 1 where a goal is missed")
    options = parser.parse_args()
    print("ms of a command, quiet and attacked, and their ratio")
    ratios = [await measure(b, name, options.rounds) for b in options.backends for name in options.attacks]
    return int(options.check and max(ratios) >= MOST_SLOWER)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
