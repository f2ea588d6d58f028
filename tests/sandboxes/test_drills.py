"""What goes wrong around boxes: owners killed, calls cancelled, runners killed, disks full, clocks moved.

After each drill nothing is left once the reaper has swept, every failure has a name, and no call outlasts its deadline.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sandboxes import (
    Sandbox,
    SandboxClosed,
    SandboxError,
    SandboxSpec,
    SandboxStartError,
    docker_daemon,
    local,
    open_sandbox,
    reaper,
    start_sandbox,
)
from sandboxes.images import BUSYBOX
from sandboxes.ownership import OWNER_LABEL, SANDBOX_LABEL, Owner, parse_owned_name
from tests.sandboxes.boxes import BACKENDS, require
from tests.sandboxes.cancelling import cancelled_at

DEADLINE_S = 30.0

BUSY_OWNER = """
import asyncio, sys
from sandboxes import SandboxSpec, open_sandbox

backend, image, mark = sys.argv[1:]

async def rollout():
    while True:
        async with open_sandbox(backend, SandboxSpec(image=image or None)) as box:
            await box.write("file", b"x" * 100_000)
            await box.start(f"setsid sleep {mark} & sleep {mark}")
            await box.exec(f"sleep {mark} & true")
            await box.read("file")

async def main():
    print("ready", flush=True)
    await asyncio.gather(rollout(), rollout())

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return require(request.param)


@pytest.fixture
def spec(backend: str, request: pytest.FixtureRequest) -> SandboxSpec:
    image = request.getfixturevalue("busybox_image") if backend == "docker" else None
    return SandboxSpec(image=image, memory_mb=256, disk_mb=64)


@pytest.fixture
async def box(backend: str, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    async with open_sandbox(backend, spec) as box:
        yield box


@pytest.fixture
def mark() -> str:
    """An argument of ``sleep`` that nobody else uses."""
    return f"{random.randrange(10**6, 10**7)}.{random.randrange(10**6)}"


def sleepers(mark: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", mark]]


def left_by(owners: set[int], backend: str) -> list[str]:
    """Containers, control groups and folders that carry the identity of these processes."""
    names = [path.name for path in reaper.find_cgroups()] + os.listdir(tempfile.gettempdir())
    owned = [(name, parse_owned_name(name)) for name in names]
    found = [name for name, parsed in owned if parsed is not None and parsed.owner.pid in owners]
    if backend == "docker":
        client = docker_daemon.connect()
        for summary in client.api.containers(all=True, filters={"label": f"{SANDBOX_LABEL}=1"}):
            if Owner.parse(summary["Labels"][OWNER_LABEL]).pid in owners:
                found += summary["Names"]
        client.close()
    return found


async def until(condition: Callable[[], bool], seconds: float = DEADLINE_S) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


# ---- the owner is killed


@pytest.mark.slow
@pytest.mark.usefixtures("spec")
async def test_an_owner_killed_at_twenty_random_moments_leaves_nothing_once_swept(backend: str, mark: str):
    at_once = 4
    for _ in range(20 // at_once):
        owners = await asyncio.to_thread(kill_at_random_moments, backend, mark, at_once)
        await until_swept(owners, backend)
        await until(lambda: sleepers(mark) == [])


async def until_swept(owners: set[int], backend: str) -> None:
    """Sweeps until nothing is left; a daemon may still make the container that a dead owner asked for."""
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.to_thread(reaper.reap)
        while left_by(owners, backend):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(reaper.reap)


def kill_at_random_moments(backend: str, mark: str, count: int) -> set[int]:
    """Starts owners of boxes that come and go, and kills each at a moment of its own; returns who they were."""
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    command = [sys.executable, "-c", BUSY_OWNER, backend, BUSYBOX if backend == "docker" else "", mark]
    with ExitStack() as stack:
        owners = [
            stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
            )
            for _ in range(count)
        ]
        try:
            for owner in owners:
                assert owner.stdout is not None
                assert owner.stdout.readline() == b"ready\n"
            for owner in owners:
                time.sleep(random.uniform(0, 0.25))  # the drill is about any moment
                owner.kill()
        finally:
            for owner in owners:
                owner.kill()
    return {owner.pid for owner in owners}


FORKED_OWNER = """
import asyncio, os, sys, time
from sandboxes import SandboxSpec, open_sandbox

backend, image, mark = sys.argv[1:]

async def main():
    async with open_sandbox(backend, SandboxSpec(image=image or None)) as box:
        await box.start(f"sleep {mark}")
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        await box.exec("true")
        print("ready", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.usefixtures("spec")
async def test_a_box_ends_with_its_owner_though_a_child_that_this_forked_lives_on(backend: str, mark: str):
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        FORKED_OWNER,
        backend,
        BUSYBOX if backend == "docker" else "",
        mark,
    ]
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            await until(lambda: len(sleepers(mark)) == 1)
            owner.kill()
            owner.wait()
            await until(lambda: sleepers(mark) == [])
        finally:
            os.killpg(owner.pid, signal.SIGKILL)
    await until_swept({owner.pid}, backend)


# ---- calls are cancelled


async def cancel_at_each_await(work: Callable[[], Coroutine[Any, Any, Any]]) -> AsyncIterator[object]:
    """Do the same work again and again, cancelled one await later each time; yields after each, at last the result."""
    for number in range(1, 1000):
        task = asyncio.create_task(cancelled_at(number, work()))
        async with asyncio.timeout(DEADLINE_S):
            result = (await asyncio.gather(task, return_exceptions=True))[0]
        yield result
        if not isinstance(result, BaseException):
            return
        assert isinstance(result, asyncio.CancelledError)


async def test_a_start_cancelled_at_any_await_leaves_nothing(backend: str, spec: SandboxSpec):
    await (await start_sandbox(backend, spec)).close()  # what is done once per process is done
    cancelled = 0
    async for result in cancel_at_each_await(lambda: start_sandbox(backend, spec)):
        if isinstance(result, Sandbox):
            await result.close()
        else:
            cancelled += 1
        assert left_by({os.getpid()}, backend) == []
    assert cancelled >= 2


CALLS: dict[str, Callable[[Sandbox, Path], Coroutine[Any, Any, Any]]] = {
    "exec": lambda box, _: box.exec("cat", stdin=b"x" * 1_000_000),
    "read": lambda box, _: box.read("file"),
    "write": lambda box, _: box.write("other", b"x" * 1_000_000),
    "upload": lambda box, folder: box.upload(folder / "tree", "tree"),
    "download": lambda box, folder: box.download("/workspace", folder / "out"),
    "shell": lambda box, _: box.shell().run("cd /; export A=1"),
    "start": lambda box, _: box.start("true"),
    "kill_all": lambda box, _: box.kill_all(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_cancelled_at_any_await_leaves_a_box_that_answers(box: Sandbox, call: str, tmp_path: Path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"x" * 500_000)
    await box.write("file", b"x" * 500_000)
    async for _ in cancel_at_each_await(lambda: CALLS[call](box, tmp_path)):
        await box.check_alive()
    assert (await box.exec("echo alive", timeout_s=DEADLINE_S)).stdout == b"alive\n"


async def test_a_close_cancelled_at_any_await_closes(backend: str, spec: SandboxSpec):
    for number in (1, 2, 3):
        box = await start_sandbox(backend, spec)
        closing = asyncio.create_task(cancelled_at(number, box.close()))
        await asyncio.gather(closing, return_exceptions=True)
        assert box.closed
        assert left_by({os.getpid()}, backend) == []


# ---- the runner is killed, as an agent may do where it has its rights


async def test_a_runner_that_is_killed_ends_every_call_with_a_name_and_leaves_nothing(
    backend: str, spec: SandboxSpec, mark: str
):
    box = await start_sandbox(backend, spec)
    calls = [asyncio.create_task(box.exec(f"setsid sleep {mark} & sleep {mark}", timeout_s=None)) for _ in range(3)]
    await until(lambda: len(sleepers(mark)) == 6)
    runner_above(sleepers(mark)[0]).kill()
    async with asyncio.timeout(DEADLINE_S):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [SandboxClosed] * 3
    with pytest.raises(SandboxClosed):
        await box.check_alive()
    await box.close()
    await until(lambda: sleepers(mark) == [])
    assert left_by({os.getpid()}, backend) == []


def runner_above(process: psutil.Process) -> psutil.Process:
    """The runner of the box of a process. The nearest ancestor is a fork of it, the supervisor of the command."""
    above = [parent for parent in process.parents() if is_runner(parent)]
    if len(above) < 2:
        pytest.skip("this user does not see which processes are runners")
    return above[1]


def is_runner(process: psutil.Process) -> bool:
    try:
        return "runner" in os.path.basename(process.exe())
    except (psutil.Error, OSError):
        return False


# ---- the disk is full


async def test_a_full_disk_of_the_box_is_an_error_with_its_number(box: Sandbox, tmp_path: Path):
    if box.backend == "local":
        pytest.skip("local boxes write to the disk of this machine")
    (tmp_path / "big").write_bytes(bytes(80 << 20))
    with pytest.raises(SandboxError) as written:
        await box.write("big", bytes(80 << 20))
    assert getattr(written.value, "errno", None) == errno.ENOSPC
    with pytest.raises(SandboxError) as uploaded:
        await box.upload(tmp_path / "big", "big")
    assert getattr(uploaded.value, "errno", None) == errno.ENOSPC
    assert (await box.exec("rm -f big; echo x > small && cat small")).stdout == b"x\n"


async def test_a_machine_without_room_for_the_folder_of_a_box_is_named(monkeypatch: pytest.MonkeyPatch):
    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", no_room)
    with pytest.raises(SandboxStartError, match="No space left"):
        await local.start(SandboxSpec())


# ---- the clock is moved


@pytest.mark.parametrize("seconds", [-(10**8), 10**8])
async def test_a_clock_that_is_moved_ends_nothing_and_frees_nothing(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, seconds: int, mark: str
):
    now = time.time
    call = asyncio.create_task(box.exec(f"sleep {mark}", timeout_s=2.0))
    await until(lambda: len(sleepers(mark)) == 1)
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    assert os.getpid() not in [leftover.owner.pid for leftover in await asyncio.to_thread(reaper.reap)]
    async with asyncio.timeout(DEADLINE_S):
        result = await call
    assert result.timed_out
    assert 1.9 < result.duration_s < DEADLINE_S
    assert (await box.exec("echo alive")).stdout == b"alive\n"


async def test_a_box_whose_lease_is_over_is_swept_though_its_owner_lives(backend: str, spec: SandboxSpec, mark: str):
    async with (
        open_sandbox(backend, replace(spec, lease_s=1)) as lost,
        open_sandbox(backend, replace(spec, lease_s=3600)) as kept,
    ):
        if "per process" in getattr(lost, "limits", ""):
            pytest.skip("no control groups can be made here, by which a sweep finds a box of namespaces")
        await lost.start(f"sleep {mark}")
        await until(lambda: len(sleepers(mark)) == 1)
        while not await asyncio.to_thread(reaper.reap):
            await asyncio.sleep(0.1)
        await until(lambda: sleepers(mark) == [])
        assert (await kept.exec("echo here")).stdout == b"here\n"
