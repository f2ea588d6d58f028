"""Server, trainer and environment side by side, and when training ends."""

import asyncio
import os
import re
import sys
import time
from contextlib import suppress
from io import StringIO

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


async def test_in_a_file_the_steps_are_told_while_they_are_done(tmp_path):
    seen = tmp_path / "seen"
    waiting = f"import os\n    while not os.path.exists({str(seen)!r}): time.sleep(0.01)"
    trainer = TRAINER.replace("while True", "for _ in range(7)").replace("time.sleep(0.01)", waiting)
    read, write = os.pipe()
    with open(read) as shown, open(write, "w") as sink:
        async with ProcessGroup(tmp_path / "logs") as group:
            task = asyncio.create_task(training(tmp_path, trainer).run(group, Console(file=sink, width=20)))
            begin, first = [await asyncio.to_thread(shown.readline) for _ in range(2)]
            seen.touch()
            await task
        sink.close()
        *_, last = shown
    assert begin == "Training for 1000000 steps at most ...\n"
    assert re.fullmatch(r"  step 1/1000000, reward 0.500, tokens/s 0, logprob gap 0.0e\+00, \d+ s\n", first)
    assert last.startswith("  step 7/1000000, ")


async def test_in_a_terminal_a_table_shows_the_last_steps(tmp_path):
    screen = StringIO()
    console = Console(file=screen, width=80, force_terminal=True, _environ={"TERM": "xterm"})
    async with ProcessGroup(tmp_path / "logs") as group:
        seven = TRAINER.replace("while True", "for _ in range(7)")
        await training(tmp_path, seven, more=lambda: {"boxes": "3"}).run(group, console)
    assert "Training for" not in screen.getvalue()
    assert re.search(r"training, \d s", screen.getvalue())
    assert re.search(r"│ 7/1000000 │ +0.500 │ +0 │ +0.0e\+00 │ +3 │", screen.getvalue())
