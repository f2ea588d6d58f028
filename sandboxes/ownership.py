"""Who owns what a sandbox left on the machine, in words that survive ``kill -9`` of the owner.

Every container, folder, cgroup and process that a backend makes carries the identity of the process that made it,
from the moment it exists. The reaper reads it back and removes what has no living owner, and only that:

- containers carry it as a label (``container_labels``);
- folders and cgroups carry it in their name (``owned_name``), so that there is no moment without it;
- processes that no cgroup or pid namespace holds carry such a name in their environment (``PROCESS_MARK``).

A process id alone is no identity, since the kernel hands it out again: the start time, the boot and the pid namespace
belong to it. What has a lease (``SandboxSpec.lease_s``) carries its end, too, in seconds since the boot of the machine,
which no change of its clock moves.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

SANDBOX_LABEL = "hermes.sandbox"
RUN_LABEL = "hermes.run"
OWNER_LABEL = "hermes.owner"
BOX_LABEL = "hermes.box"
LEASE_LABEL = "hermes.lease"

PROCESS_MARK = "HERMES_SANDBOX"
"""Environment variable holding an ``owned_name``, for processes that nothing else ties to their owner."""

_NUMBER = "[0-9]{1,20}"  # any process of the machine may carry a mark, also one that no int() takes
_NAME = re.compile(f"hermes-({_NUMBER})-({_NUMBER})-([0-9a-f]+)-({_NUMBER})-(?:until({_NUMBER})-)?([\\w.-]+)")
_HAS_PROC = Path("/proc/self/stat").exists()
_START_TICKS_FIELD = 19  # field 22 of /proc/<pid>/stat, counted from the state that follows the name


class OwnerState(Enum):
    """What can be said from here about the process that made something."""

    ALIVE = "alive"
    DEAD = "dead"
    EARLIER_BOOT = "of an earlier boot, or of another machine"
    OTHER_NAMESPACE = "in another pid namespace"
    HIDDEN = "of a user whose processes this one may not see"


@dataclass(frozen=True)
class Owner:
    """A process, told apart from every other one that had or will have its id."""

    pid: int
    start_ticks: int
    """Clock ticks from boot to the start of the process."""
    boot_id: str
    """The first eight hexadecimal digits of the kernel's boot id."""
    pid_namespace: int
    """Inode of the pid namespace in which ``pid`` counts."""

    @classmethod
    def current(cls) -> Owner:
        """The calling process; never cached, so it is right after a fork."""
        pid = os.getpid()
        return cls(pid, process_start_ticks(pid) or 0, _boot_id(), _pid_namespace())

    @classmethod
    def parse(cls, text: str) -> Owner:
        """Read back ``str(owner)``. Raises: ValueError."""
        try:
            pid, ticks, boot_id, namespace = text.split(":")
            return cls(int(pid), int(ticks), boot_id, int(namespace))
        except ValueError:
            raise ValueError(f"{text!r} is not <pid>:<start ticks>:<boot id>:<pid namespace>") from None

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}:{self.boot_id}:{self.pid_namespace}"

    def state(self) -> OwnerState:
        """Whether the process lives, as far as this process can know."""
        if self.boot_id != _boot_id():
            return OwnerState.EARLIER_BOOT
        if self.pid_namespace != _pid_namespace():
            return OwnerState.OTHER_NAMESPACE
        if process_start_ticks(self.pid) == self.start_ticks:
            return OwnerState.ALIVE
        return OwnerState.HIDDEN if _is_hidden(self.pid) else OwnerState.DEAD


@dataclass(frozen=True)
class OwnedName:
    """The parts of an ``owned_name``."""

    owner: Owner
    box_id: str
    lease_end: int | None = None
    """Seconds after boot; None: as long as its owner lives."""


def owned_name(box_id: str, owner: Owner | None = None, *, lease_s: float | None = None) -> str:
    """A name for a folder or cgroup of box ``box_id`` (letters, digits, ``_``, ``.``, ``-``). Raises: ValueError."""
    owner = owner or Owner.current()
    lease = "" if lease_s is None else f"until{_lease_end(lease_s)}-"
    name = f"hermes-{owner.pid}-{owner.start_ticks}-{owner.boot_id}-{owner.pid_namespace}-{lease}{box_id}"
    if not _NAME.fullmatch(name):
        raise ValueError(f"box id {box_id!r} has characters that do not fit a file name")
    return name


def parse_owned_name(name: str) -> OwnedName | None:
    """The owner and the box that ``name`` was made for; None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    pid, ticks, boot_id, namespace, lease_end, box_id = match.groups()
    owner = Owner(int(pid), int(ticks), boot_id, int(namespace))
    return OwnedName(owner, box_id, None if lease_end is None else int(lease_end))


def container_labels(box_id: str, extra: Mapping[str, str], *, lease_s: float | None = None) -> dict[str, str]:
    """Labels of a container; ``extra`` may set the run (``hermes.run``), and cannot replace the owner or the lease."""
    owner = Owner.current()
    run = {RUN_LABEL: f"{owner.pid}-{owner.start_ticks}"}
    lease = "" if lease_s is None else str(_lease_end(lease_s))
    return {**run, **extra, SANDBOX_LABEL: "1", OWNER_LABEL: str(owner), BOX_LABEL: box_id, LEASE_LABEL: lease}


def is_over(owner: Owner, lease_end: int | None) -> bool:
    """Whether a lease has ended; one of another boot or machine cannot be judged from here."""
    return lease_end is not None and owner.boot_id == _boot_id() and _seconds_since_boot() >= lease_end


def process_start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to the start of process ``pid``; None where it is gone (or a zombie)."""
    if not _HAS_PROC:
        return _start_ticks_without_proc(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[_START_TICKS_FIELD])


def _is_hidden(pid: int) -> bool:
    """Whether a process of another user is there that /proc does not show (mounted with ``hidepid``)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not Path(f"/proc/{pid}").exists()
    except (ProcessLookupError, OverflowError):
        return False
    return False


def _start_ticks_without_proc(pid: int) -> int | None:
    """Zero for a living process: without /proc its start time is not to be had cheaply."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


def _lease_end(lease_s: float) -> int:
    return math.ceil(_seconds_since_boot() + lease_s)


def _seconds_since_boot() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:8]
    except FileNotFoundError:
        return "0"


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except FileNotFoundError:
        return 0
