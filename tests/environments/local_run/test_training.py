"""Server, trainer and environment side by side, and when training ends."""

import os
import sys
import time
from contextlib import suppress

import pytest
from rich.console import Console

from environments.local_run.processes import ChildFailed, ChildSpec, ProcessGroup
from environments.local_run.training import Training

IDLE = "import time; time.sleep(600)"
TRAINER = """
import json, sys, time
step = 0
while True:
    step += 1
    with open(sys.argv[1], "a") as metrics:
        metrics.write(json.dumps({"step": step, "train/reward_mean": 0.5}) + "\\n")
    time.sleep(0.01)
"""


def training(folder, trainer=TRAINER, **options) -> Training:
    metrics = folder / "metrics.jsonl"
    server, learner, environment = (
        ChildSpec(name, [sys.executable, "-c", program, str(metrics)])
        for name, program in (("server", IDLE), ("trainer", trainer), ("environment", IDLE))
    )
    return Training(server, learner, environment, metrics, steps=10**6, **options)


async def test_training_ends_in_time_and_what_was_learned_counts(tmp_path):
    async with ProcessGroup(tmp_path / "logs") as group:
        points = await training(tmp_path, until=time.monotonic() + 1.0).run(group, Console(quiet=True))
    assert points[-1].step >= 1


async def test_a_single_step_is_done_even_where_there_is_no_time(tmp_path):
    async with ProcessGroup(tmp_path / "logs") as group:
        points = await training(tmp_path, until=time.monotonic() - 100).run(group, Console(quiet=True))
    assert points[-1].step >= 1


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs waitid")
async def test_a_trainer_that_fails_in_the_moment_in_which_it_is_to_end_is_told_with_its_last_lines(tmp_path):
    async with ProcessGroup(tmp_path / "logs") as group:

        def wait_until_it_has_failed():
            with suppress(ChildProcessError):  # asyncio has been told already, but not the loop, which stands here
                os.waitid(os.P_PID, group.children[1].process.pid, os.WEXITED | os.WNOWAIT)
            return {}

        failing = TRAINER.replace("time.sleep(0.01)", "raise SystemExit('out of memory')")
        run = training(tmp_path, failing, until=time.monotonic() - 100, more=wait_until_it_has_failed)
        with pytest.raises(ChildFailed, match=r"(?s)trainer ended with exit code 1\..*out of memory"):
            await run.run(group, Console(quiet=True))


async def test_a_trainer_that_fails_is_told_from_one_that_was_ended(tmp_path):
    async with ProcessGroup(tmp_path / "logs") as group:
        with pytest.raises(ChildFailed, match="trainer"):
            await training(tmp_path, trainer="raise SystemExit(3)").run(group, Console(quiet=True))
