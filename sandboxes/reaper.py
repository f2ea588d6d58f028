"""Removes what boxes left behind when their owner died: ``python -m sandboxes.reaper [--dry-run]``.

It removes containers, processes, cgroups and folders (with what is mounted in them) that carry the identity of a
process that no longer lives, or a lease that is over, and nothing else: what else has a living owner stays, and so does
what has one that cannot be judged from here (in another pid namespace, or on another machine that shares the Docker
daemon). Several reapers may run at once. ``reap`` is quick where nothing is left; ``sweeping`` calls it at the start,
at the end and in between.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sandboxes import docker_daemon
from sandboxes.docker_container import remove_container
from sandboxes.errors import SandboxError, SandboxUnavailable
from sandboxes.folders import remove_folder
from sandboxes.ownership import (
    LEASE_LABEL,
    OWNER_LABEL,
    PROCESS_MARK,
    SANDBOX_LABEL,
    OwnedName,
    Owner,
    OwnerState,
    is_over,
    parse_owned_name,
    process_start_ticks,
)

if TYPE_CHECKING:
    from docker import DockerClient

logger = logging.getLogger(__name__)

CGROUPS = Path("/sys/fs/cgroup")

_CGROUP_DEPTH = 4
_DOCKER_TIMEOUT_S = 10
_END_TIMEOUT_S = 5.0
_PAUSE_S = 0.01
_YOUNG_S = 600.0
"""A container that was created but not started is left alone this long where its owner cannot be judged."""


@dataclass(frozen=True)
class Leftover:
    """Something that a dead process left, and what became of it."""

    kind: Literal["container", "process", "cgroup", "folder"]
    name: str
    owner: Owner
    error: str | None = None
    """Why it was not removed."""


@dataclass(frozen=True)
class _Found:
    leftover: Leftover
    remove: Callable[[], None]


def reap(*, dry_run: bool = False) -> list[Leftover]:
    """Remove what has no living owner and return it; with ``dry_run`` only return it. Blocks.

    A removal that fails is reported in the result, with its error, and does not keep the others from theirs.
    """
    leftovers = []
    for found in _find_all():
        leftover = found.leftover if dry_run else _removed(found)
        log = logger.warning if leftover.error else logger.info
        log("Left behind: %s %s (%s)", leftover.kind, leftover.name, leftover.error or "removed")
        leftovers.append(leftover)
    return leftovers


@contextlib.asynccontextmanager
async def sweeping(*, every_s: float = 300.0) -> AsyncIterator[None]:
    """Sweeps at the start of the block, every ``every_s`` seconds in it, and at its end, in a thread.

    A sweep that fails as a whole is logged, and the next one comes nevertheless.
    """
    await _sweep()
    timer = asyncio.create_task(_sweep_for_ever(every_s), name="sandbox reaper")
    try:
        yield
    finally:
        timer.cancel()
        await asyncio.gather(timer, return_exceptions=True)
        await _sweep()


async def _sweep_for_ever(every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await _sweep()


async def _sweep() -> None:
    try:
        await asyncio.to_thread(reap)
    except (OSError, SandboxError) as error:
        logger.warning("What dead processes left could not be looked for: %s", error)


def _find_all() -> Iterator[_Found]:
    """Processes before the cgroups that hold them, and both before the folders that they use."""
    yield from _find_processes()
    yield from _find_cgroups()
    yield from _find_folders()
    try:
        client = docker_daemon.connect(timeout_s=_DOCKER_TIMEOUT_S)
    except SandboxUnavailable as error:
        logger.debug("No containers are looked for: %s", error)
        return
    with contextlib.closing(client):
        yield from _find_containers(client)


def _removed(found: _Found) -> Leftover:
    try:
        found.remove()
    except (OSError, SandboxError) as error:
        leftover = found.leftover
        return Leftover(leftover.kind, leftover.name, leftover.owner, str(error))
    return found.leftover


def _is_left(owned: OwnedName) -> bool:
    """Whether what is bound to this machine and boot has lost its owner, or its lease is over."""
    lost = owned.owner.state() in (OwnerState.DEAD, OwnerState.EARLIER_BOOT)
    return lost or is_over(owned.owner, owned.lease_end)


# ---- containers


def _find_containers(client: DockerClient) -> Iterator[_Found]:
    for summary in client.api.containers(all=True, filters={"label": f"{SANDBOX_LABEL}=1"}):
        name = summary["Names"][0].lstrip("/")
        try:
            owner = Owner.parse(summary["Labels"].get(OWNER_LABEL, ""))
        except ValueError as error:
            logger.warning("Container %s is left alone, its owner cannot be read: %s", name, error)
            continue
        if _is_left_container(summary, owner):
            yield _Found(Leftover("container", name, owner), partial(remove_container, client, name))


def _is_left_container(summary: dict[str, Any], owner: Owner) -> bool:
    state, lease = owner.state(), summary["Labels"].get(LEASE_LABEL, "")
    if lease.isdecimal() and is_over(owner, int(lease)):
        return True
    if state is OwnerState.EARLIER_BOOT:
        # Of this machine, it cannot be running: after a boot nothing restarts it. Of another, it may be in use.
        is_young = time.time() - summary["Created"] < _YOUNG_S
        return not (summary["State"] == "running" or (summary["State"] == "created" and is_young))
    return state is OwnerState.DEAD


# ---- processes


def _find_processes() -> Iterator[_Found]:
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        ticks = process_start_ticks(pid)
        owned = parse_owned_name(_mark_of(folder) or "")
        if ticks is not None and owned is not None and _is_left(owned):
            yield _Found(Leftover("process", folder.name, owned.owner), partial(_end_process, pid, ticks))


def _mark_of(process: Path) -> str | None:
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return None  # it ended, or belongs to another user
    values = dict(variable.partition(b"=")[::2] for variable in variables)
    mark = values.get(PROCESS_MARK.encode())
    return None if mark is None else mark.decode(errors="replace")


def _end_process(pid: int, start_ticks: int) -> None:
    """Kill a process, never another one that took its id. Raises: OSError where it lives on."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if process_start_ticks(pid) == start_ticks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            _await(lambda: process_start_ticks(pid) != start_ticks, f"process {pid} lives on after SIGKILL")
    finally:
        os.close(handle)


# ---- cgroups and folders


def find_cgroups() -> list[Path]:
    """Cgroups of this machine that may be of a box, the innermost first, as only an empty one can be removed."""
    return sorted(_cgroups(CGROUPS, _CGROUP_DEPTH), key=lambda path: len(path.parts), reverse=True)


def _find_cgroups() -> Iterator[_Found]:
    for folder in find_cgroups():
        owned = parse_owned_name(folder.name)
        if owned is not None and _is_left(owned):
            yield _Found(Leftover("cgroup", str(folder), owned.owner), partial(_remove_cgroup, folder))


def _cgroups(folder: Path, depth: int) -> Iterator[Path]:
    try:
        children = [Path(entry) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return  # it vanished, or belongs to another user
    for child in children:
        yield child
        if depth > 1:
            yield from _cgroups(child, depth - 1)


def _remove_cgroup(folder: Path) -> None:
    """Kill what runs in it, and remove it. Raises: OSError where it remains."""

    def is_gone() -> bool:
        try:
            for line in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(line), signal.SIGKILL)
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False  # busy until the last process is reaped
        return True

    _await(is_gone, f"cgroup {folder} still holds processes, or is not ours to remove")


def _find_folders() -> Iterator[_Found]:
    for folder in Path(tempfile.gettempdir()).glob("hermes-*"):
        owned = parse_owned_name(folder.name)
        if owned is not None and _is_left(owned) and _is_own_folder(folder):
            yield _Found(Leftover("folder", str(folder), owned.owner), partial(remove_folder, folder))


def _is_own_folder(folder: Path) -> bool:
    """Whether this user made it: in a folder that all may write to, a name proves nothing."""
    try:
        facts = folder.lstat()
    except FileNotFoundError:
        return False
    return folder.is_dir() and not folder.is_symlink() and facts.st_uid == os.geteuid()


def _await(condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + _END_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise OSError(problem)
        time.sleep(_PAUSE_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code: 1 where something could not be removed."""
    parser = argparse.ArgumentParser(
        prog="python -m sandboxes.reaper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    options = parser.parse_args(arguments)
    leftovers = reap(dry_run=options.dry_run)
    for leftover in leftovers:
        outcome = leftover.error or ("would be removed" if options.dry_run else "removed")
        sys.stdout.write(f"{leftover.kind:9} {leftover.name}  (owner: process {leftover.owner.pid})  {outcome}\n")
    if not leftovers:
        sys.stdout.write("nothing is left without an owner\n")
    return 1 if any(leftover.error for leftover in leftovers) else 0


if __name__ == "__main__":
    sys.exit(main())
