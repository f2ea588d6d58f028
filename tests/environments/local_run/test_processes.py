import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from environments.local_run.ports import free_ports
from environments.local_run.processes import ChildFailed, ChildSpec, ProcessGroup, answers
from tests.machine import until

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def test_a_child_is_ready_when_its_url_answers(tmp_path):
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    async with ProcessGroup(tmp_path) as group:
        child = await group.start(ChildSpec("web", argv, ready=answers(f"http://127.0.0.1:{port}/")))
        assert child.running
    assert not alive(child.process.pid)


async def test_a_child_that_ends_before_it_is_ready_is_named_with_the_end_of_its_log(tmp_path):
    argv = [sys.executable, "-c", "raise SystemExit('no such model')"]

    async def never():
        return False

    async with ProcessGroup(tmp_path) as group:
        with pytest.raises(ChildFailed, match=r"(?s)engine ended with exit code 1.*no such model"):
            await group.start(ChildSpec("engine", argv, ready=never))


async def test_a_failing_run_raises_with_its_exit_code(tmp_path):
    async with ProcessGroup(tmp_path) as group:
        with pytest.raises(ChildFailed, match="exit code 7"):
            await group.run(ChildSpec("job", [sys.executable, "-c", "raise SystemExit(7)"]))


async def test_leaving_the_group_ends_children_that_ignore_gentle_signals(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "environments.local_run.processes.GRACE_S",
        ((signal.SIGINT, 0.2), (signal.SIGTERM, 0.2), (signal.SIGKILL, 5.0)),
    )
    stubborn = (
        "import signal, time, pathlib, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    )
    mark = tmp_path / "up"
    async with ProcessGroup(tmp_path) as group:
        child = await group.start(ChildSpec("stubborn", [sys.executable, "-c", stubborn, str(mark)]))
        await until(mark.exists)
    assert child.process.returncode == -signal.SIGKILL


async def test_cancelling_the_owner_ends_the_children(tmp_path):
    pids = []

    async def own():
        async with ProcessGroup(tmp_path) as group:
            pids.append((await group.start(ChildSpec("sleeper", SLEEPER))).process.pid)
            await asyncio.sleep(600)

    task = asyncio.create_task(own())
    await until(lambda: pids)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pids[0])


@pytest.mark.skipif(sys.platform != "linux", reason="only the Linux kernel ends children with a killed parent")
async def test_killing_the_owner_ends_the_children(tmp_path):
    program = (
        "import asyncio, sys, pathlib\n"
        "from environments.local_run.processes import ChildSpec, ProcessGroup\n"
        "async def main():\n"
        "    async with ProcessGroup(pathlib.Path(sys.argv[1])) as group:\n"
        "        argv = [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)']\n"
        "        child = await group.start(ChildSpec('sleeper', argv))\n"
        "        while not child.log.read_text(): await asyncio.sleep(.02)\n"
        "        print(child.process.pid, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        pid = int(owner.stdout.readline())
        assert alive(pid)
        os.kill(owner.pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
