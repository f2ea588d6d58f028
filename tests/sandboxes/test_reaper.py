"""The reaper: everything of a dead owner goes, nothing else does."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sandboxes import reaper
from sandboxes.docker_container import remove_container
from sandboxes.folders import make_folder, mounts_below
from sandboxes.ownership import (
    PROCESS_MARK,
    RUN_LABEL,
    Owner,
    OwnerState,
    container_labels,
    is_over,
    owned_name,
    parse_owned_name,
    process_start_ticks,
)
from tests.sandboxes.boxes import require

pytestmark = pytest.mark.alone  # what a dead owner left is removed by any sweep, also one of another test

OWNER_OF_TWO_BOXES = """
import asyncio, sys
from sandboxes import SandboxSpec, start_sandbox

async def main():
    backend, image, run, seconds = sys.argv[1:]
    spec = SandboxSpec(image=image or None, labels={"hermes.run": run})
    boxes = await asyncio.gather(start_sandbox(backend, spec), start_sandbox(backend, spec))
    for box in boxes:
        await box.start(f"setsid sleep {seconds} & sleep {seconds}")
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def dead_owner() -> Owner:
    """Someone who lived just now, in this boot and namespace."""
    current = Owner.current()
    with subprocess.Popen(["sleep", "60"]) as process:
        ticks = process_start_ticks(process.pid)
        process.kill()
    assert ticks is not None
    return Owner(process.pid, ticks, current.boot_id, current.pid_namespace)


@pytest.fixture
def box_id() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


# ---- identity


def test_a_name_carries_the_end_of_a_lease(box_id):
    named = parse_owned_name(owned_name(box_id, lease_s=100))
    assert (named.owner, named.box_id) == (Owner.current(), box_id)
    assert not is_over(named.owner, named.lease_end)
    assert is_over(named.owner, named.lease_end - 200)
    assert not is_over(replace(named.owner, boot_id="0"), named.lease_end - 200)
    assert parse_owned_name(owned_name(box_id)).lease_end is None


def test_an_owner_survives_being_written_down(box_id):
    owner = Owner.current()
    assert Owner.parse(str(owner)) == owner
    name = parse_owned_name(owned_name(box_id))
    assert name is not None
    assert (name.owner, name.box_id) == (owner, box_id)


def test_a_process_that_took_the_id_of_a_dead_owner_is_not_the_owner():
    current = Owner.current()
    other = Owner(current.pid, current.start_ticks - 1, current.boot_id, current.pid_namespace)
    assert (current.state(), other.state()) == (OwnerState.ALIVE, OwnerState.DEAD)


def test_a_zombie_owns_nothing_any_more():
    current = Owner.current()
    with subprocess.Popen(["sleep", "60"]) as process:
        owner = Owner(process.pid, process_start_ticks(process.pid) or 0, current.boot_id, current.pid_namespace)
        assert owner.state() is OwnerState.ALIVE
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner.state() is OwnerState.DEAD


def test_an_owner_that_proc_hides_from_this_user_is_not_dead():
    another = (
        "import os, sys; from sandboxes.ownership import Owner\n"
        "os.setgroups([]); os.setgid(60001); os.setuid(60001); print(Owner.parse(sys.argv[1]).state().name)"
    )
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]
    if subprocess.run([*hidden, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    command = [*hidden, sys.executable, "-c", another, str(Owner.current())]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "HIDDEN\n"


@pytest.mark.parametrize("text", ["", "1:2:3", "1:2:ab:4:5", "x:2:ab:4"])
def test_what_is_no_owner_is_refused(text):
    with pytest.raises(ValueError, match="is not <pid>"):
        Owner.parse(text)


@pytest.mark.parametrize(
    "name",
    [
        "hermes",
        "hermes-1-2-xyz-4-box",
        "hermes-1-2-ab-4",
        "other-1-2-ab-4-box",
        "hermes-local-x",
        f"hermes-{'9' * 5000}-2-ab-4-box",
    ],
)
def test_other_names_have_no_owner(name):
    assert parse_owned_name(name) is None


# ---- folders, processes, cgroups


def test_the_folder_of_a_dead_owner_goes_and_those_of_others_stay(dead_owner, own_temporary_folder, box_id):
    current = Owner.current()
    other_namespace = Owner(current.pid, current.start_ticks, current.boot_id, current.pid_namespace + 1)
    dead = own_temporary_folder / owned_name(box_id, dead_owner)
    (dead / "deep/deeper").mkdir(parents=True)
    (dead / "deep/file").write_text("x")
    kept = [make_folder(box_id), own_temporary_folder / owned_name(box_id, other_namespace)]
    kept += [own_temporary_folder / "hermes-notes"]
    kept[1].mkdir()
    kept[2].mkdir()
    reaper.reap()
    assert not dead.exists()
    assert all(folder.is_dir() for folder in kept)


def test_the_folder_of_an_earlier_boot_goes(own_temporary_folder, box_id):
    current = Owner.current()
    folder = own_temporary_folder / owned_name(box_id, Owner(current.pid, current.start_ticks, "0badb007", 1))
    folder.mkdir()
    reaper.reap()
    assert not folder.exists()


def test_a_link_with_the_name_of_a_folder_is_not_followed(dead_owner, own_temporary_folder, box_id):
    precious = own_temporary_folder / "precious"
    precious.mkdir()
    (own_temporary_folder / owned_name(box_id, dead_owner)).symlink_to(precious)
    reaper.reap()
    assert precious.is_dir()


@pytest.mark.namespaces
def test_what_is_mounted_in_a_folder_is_unmounted_and_not_emptied(dead_owner, own_temporary_folder, box_id):
    precious = own_temporary_folder / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    folder = own_temporary_folder / owned_name(box_id, dead_owner)
    (folder / "root").mkdir(parents=True)
    if subprocess.run(["mount", "--bind", precious, folder / "root"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    try:
        assert mounts_below(folder) == [folder / "root"]
        reaper.reap()
        assert not folder.exists()
        assert (precious / "file").read_text() == "kept"
    finally:
        subprocess.run(["umount", "--lazy", folder / "root"], check=False, capture_output=True)


def test_a_marked_process_of_a_dead_owner_is_killed_and_one_of_the_living_is_not(dead_owner, box_id):
    dead_mark, living_mark = owned_name(box_id, dead_owner), owned_name(box_id)
    with (
        subprocess.Popen(["sleep", "600"], env={PROCESS_MARK: dead_mark, "PATH": os.environ["PATH"]}) as left,
        subprocess.Popen(["sleep", "600"], env={PROCESS_MARK: living_mark, "PATH": os.environ["PATH"]}) as owned,
    ):
        try:
            reaper.reap()
            assert left.wait(10) == -signal.SIGKILL
            assert owned.poll() is None
        finally:
            left.kill()
            owned.kill()


def test_a_mark_that_an_agent_made_up_does_not_keep_the_others_from_being_found(dead_owner, box_id):
    made_up = {PROCESS_MARK: f"hermes-{'9' * 5000}-1-ab-1-x"}
    with (
        subprocess.Popen(["/bin/sleep", "600"], env=made_up) as agent,
        subprocess.Popen(["/bin/sleep", "600"], env={PROCESS_MARK: owned_name(box_id, dead_owner)}) as left,
    ):
        try:
            reaper.reap()
            assert left.wait(10) == -signal.SIGKILL
            assert agent.poll() is None
        finally:
            left.kill()
            agent.kill()


@pytest.fixture
def cgroup(dead_owner, box_id) -> Iterator[Path]:
    """A cgroup of a dead owner, where this user may make one."""
    parents = [reaper.CGROUPS / "pids", reaper.CGROUPS]
    parent = next(path for path in parents if path.is_dir())
    folder = parent / owned_name(box_id, dead_owner)
    try:
        folder.mkdir()
        (folder / "cgroup.procs").read_text()
    except OSError as error:
        pytest.skip(f"this user may not make a cgroup: {error}")
    yield folder
    if folder.exists():
        folder.rmdir()


@pytest.mark.namespaces
def test_a_cgroup_of_a_dead_owner_goes_with_all_that_runs_in_it(cgroup):
    with subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600 & wait"]) as process:
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        reaper.reap()
        assert process.wait(10) == -signal.SIGKILL
    assert not cgroup.exists()


# ---- owners that are killed


@contextmanager
def killed_owner(backend: str, image: str, run_id: str) -> Iterator[tuple[int, str]]:
    """A process with two boxes, killed at the end. Gives its id, and the argument that marks what runs in its boxes."""
    seconds = str(random.randrange(10_000, 1_000_000))
    command = [sys.executable, "-c", OWNER_OF_TWO_BOXES, backend, image, run_id, seconds]
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            _wait_until(lambda: len(sleepers(seconds)) == 4)
            reaper.reap()
            assert len(sleepers(seconds)) == 4, "the reaper took what has a living owner"
            yield owner.pid, seconds
        finally:
            owner.kill()


def sleepers(seconds: str) -> list[psutil.Process]:
    """The marked processes, wherever on this machine they run."""
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", seconds]]


@pytest.mark.parametrize("backend", [pytest.param("bubblewrap", marks=pytest.mark.namespaces), "local"])
def test_boxes_of_a_process_that_was_killed_leave_nothing(backend, box_id, own_temporary_folder):
    require(backend)
    with killed_owner(backend, "", box_id) as (_, seconds):
        pass
    _wait_until(lambda: sleepers(seconds) == [])
    reaper.reap()
    assert list(own_temporary_folder.iterdir()) == []
    owners = [named.owner for path in reaper.find_cgroups() if (named := parse_owned_name(path.name))]
    assert [owner for owner in owners if owner.state() is OwnerState.DEAD] == []


def test_commands_whose_runner_was_killed_with_its_owner_are_found_by_their_mark(box_id, own_temporary_folder):
    require("local")
    with killed_owner("local", "", box_id) as (owner, seconds):
        commands = sleepers(seconds)
        for process in psutil.Process(owner).children(recursive=True):
            if process not in commands:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
    reaper.reap()
    _wait_until(lambda: sleepers(seconds) == [])
    assert list(own_temporary_folder.iterdir()) == []


# ---- containers


@pytest.mark.docker
def test_containers_of_a_process_that_was_killed_end_at_once_and_are_reaped(busybox_image, docker_client, box_id):
    with killed_owner("docker", busybox_image, box_id) as (_, seconds):
        pass
    _wait_until(lambda: states_of(docker_client, box_id) in (["exited", "exited"], []))
    assert sleepers(seconds) == []
    reaper.reap()
    assert states_of(docker_client, box_id) == []


@pytest.mark.docker
def test_a_running_container_of_another_boot_is_left_to_the_machine_that_uses_it(busybox_image, docker_client, box_id):
    current = Owner.current()
    elsewhere = Owner(current.pid, current.start_ticks, "0badb007", current.pid_namespace)
    labels = {**container_labels(box_id, {RUN_LABEL: box_id}), "hermes.owner": str(elsewhere)}
    name = f"hermes-{box_id}"
    alone = docker_client.api.create_host_config(network_mode="none")
    docker_client.api.create_container(
        busybox_image, command=["sleep", "600"], name=name, labels=labels, host_config=alone
    )
    try:
        reaper.reap()
        assert states_of(docker_client, box_id) == ["created"]
        docker_client.api.start(name)
        reaper.reap()
        assert states_of(docker_client, box_id) == ["running"]
        docker_client.api.kill(name)
        _wait_until(lambda: states_of(docker_client, box_id) != ["running"])
        reaper.reap()
        assert states_of(docker_client, box_id) == []
    finally:
        remove_container(docker_client, name)


def states_of(client, run_id: str) -> list[str]:
    return [c["State"] for c in client.api.containers(all=True, filters={"label": f"{RUN_LABEL}={run_id}"})]


def _wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


# ---- on a timer


async def test_sweeps_come_at_the_start_in_between_and_at_the_end(dead_owner, own_temporary_folder, box_id):
    def leave(name: str) -> Path:
        folder = own_temporary_folder / owned_name(f"{box_id}-{name}", dead_owner)
        folder.mkdir()
        return folder

    before = leave("before")
    async with reaper.sweeping(every_s=0.05):
        assert not before.exists()
        meanwhile = leave("meanwhile")
        async with asyncio.timeout(20):
            while meanwhile.exists():
                await asyncio.sleep(0.01)
    async with reaper.sweeping(every_s=600):
        last = leave("last")
    assert not last.exists()


async def test_a_sweep_that_fails_is_said_and_not_the_last(monkeypatch, caplog):
    calls = 0

    def fails_once() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("no /proc today")

    monkeypatch.setattr(reaper, "reap", fails_once)
    async with reaper.sweeping():
        pass
    assert calls == 2
    assert "no /proc today" in caplog.text


# ---- the command


def test_a_dry_run_names_what_is_left_and_leaves_it(dead_owner, own_temporary_folder, box_id, capsys):
    folder = own_temporary_folder / owned_name(box_id, dead_owner)
    folder.mkdir()
    assert reaper.main(["--dry-run"]) == 0
    assert f"folder    {folder}  (owner: process {dead_owner.pid})  would be removed" in capsys.readouterr().out
    assert folder.is_dir()
    assert reaper.main([]) == 0
    assert not folder.exists()


async def test_it_is_quick_enough_for_the_start_of_an_environment():
    started = time.monotonic()
    await asyncio.to_thread(reaper.reap)
    assert time.monotonic() - started < 5.0
