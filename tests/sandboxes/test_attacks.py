"""Attacks from inside on what a machine has, and what the neighbours notice of them.

Each attack starts only where it finds the mark that was put into its box, so that it can never run anywhere else.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
import uuid

import pytest

from sandboxes import Sandbox, SandboxSpec, open_sandbox
from tests.sandboxes.boxes import CLOSED_BACKENDS, require

pytestmark = pytest.mark.slow

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
ATTEMPTS = 4
MOST_SLOWER = 3.0


@pytest.fixture(params=CLOSED_BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    backend = require(request.param)
    if backend == "bubblewrap" and os.geteuid() != 0:
        pytest.skip("without control groups the cpu of a box is not bounded")
    return backend


async def p99_s(box: Sandbox) -> float:
    times = []
    for _ in range(COMMANDS):
        started = time.perf_counter()
        assert (await box.exec(["sh", "-c", "true"])).exit_code == 0
        times.append(time.perf_counter() - started)
    return sorted(times)[round(0.99 * (COMMANDS - 1))]


async def attack(box: Sandbox, text: str) -> None:
    mark = f"/workspace/throwaway-{uuid.uuid4().hex}"
    await box.write(mark, b"")
    result = await box.exec(f"test -f {mark} || exit 99; {text}", timeout_s=60, output_limit=1000)
    assert result.exit_code != 99


@pytest.mark.parametrize("name", ATTACKS)
async def test_neighbours_hardly_notice_an_attack_and_the_box_survives_it(backend: str, name: str):
    async with open_sandbox(backend, SMALL) as attacker, open_sandbox(backend) as neighbour:
        ratios = []
        while len(ratios) < ATTEMPTS and (not ratios or min(ratios) >= MOST_SLOWER):
            quiet = await p99_s(neighbour)
            attacking = asyncio.create_task(attack(attacker, ATTACKS[name]))
            await asyncio.sleep(0.3)  # the attack is to be under way; how far does not matter
            ratios.append(await p99_s(neighbour) / quiet)
            attacking.cancel()
            await asyncio.gather(attacking, return_exceptions=True)
            await attacker.kill_all()
        assert min(ratios) < MOST_SLOWER, ratios
        assert (await attacker.exec("rm -rf /workspace/* /tmp/*; echo alive")).stdout == b"alive\n"


async def test_a_box_gets_no_more_processor_than_its_spec_says(backend: str):
    async with open_sandbox(backend, SMALL) as box:
        spent = await box.exec("timeout 2 sh -c 'while :; do :; done'; times")
        children = spent.output.splitlines()[-1]
        seconds = sum(float(minutes) * 60 + float(rest) for minutes, rest in re.findall(r"(\d+)m([\d.]+)s", children))
        assert 0.1 < seconds < 2 * SMALL.cpus * 1.5
