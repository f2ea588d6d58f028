"""What a box may use: by control groups where this process may make them, else by limits of each process.

Files of a box live in memory and are counted with it, so its control group may hold ``memory_mb`` and ``disk_mb``
together.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.base import SandboxSpec
from sandboxes.processor import ProcessorShare

logger = logging.getLogger(__name__)

_MIB = 1 << 20
_OPEN_FILES = 4096
_OWN_PROCESSES = 16
"""The runner and a supervisor for each of a few commands: not the box's own."""
_BUSY_S = 2.0
_CONTROLLERS = ("memory", "pids", "cpu")

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Limits:
    """What holds for a box. ``rlimits`` are pairs of a ``resource.RLIMIT_*`` number and its value."""

    cgroups: tuple[Path, ...]
    rlimits: tuple[tuple[int, int], ...]
    description: str

    def remove(self) -> None:
        """Remove the control groups where the process outside the box did not, as it does at its end. May block."""
        _remove(self.cgroups)


@dataclass(frozen=True)
class Hierarchy:
    """A mounted hierarchy of control groups, and where in it this process is. Version 1 has one per controller."""

    version: int
    mount: Path
    here: Path
    controllers: tuple[str, ...]


def prepare_limits(spec: SandboxSpec, name: str, *, hierarchies: tuple[Hierarchy, ...] | None = None) -> Limits:
    """Make the control groups called ``name``, or say why only limits per process hold."""
    always = ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, _OPEN_FILES))
    try:
        cgroups = _make_cgroups(spec, name, find_hierarchies() if hierarchies is None else hierarchies)
    except OSError as error:
        logger.debug("no control groups for boxes: %s", error)
        each = ((resource.RLIMIT_NPROC, spec.pids), (resource.RLIMIT_DATA, spec.memory_mb * _MIB))
        reason = error.strerror or error
        return Limits((), always + each, f"limits per process (pids, memory, not cpu); control groups: {reason}")
    version = "v2" if len(cgroups) == 1 else "v1"
    return Limits(cgroups, always, f"control groups {version} (memory, pids, cpu)")


def find_hierarchies(mountinfo: str | None = None, membership: str | None = None) -> tuple[Hierarchy, ...]:
    """Those of this machine that control memory, pids or cpu; read from ``/proc/self``."""
    mountinfo = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    membership = Path("/proc/self/cgroup").read_text() if membership is None else membership
    places = dict(line.split(":", 2)[1:] for line in membership.splitlines())
    by_controller = {name: place for names, place in places.items() for name in names.split(",")}
    return tuple(_hierarchies_of(mountinfo, by_controller))


def _hierarchies_of(mountinfo: str, places: Mapping[str, str]) -> Iterator[Hierarchy]:
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, mount = left.split(" ")[3:5]
        if kind == "cgroup2":
            here = _below(Path(mount), root, places.get("", "/"))
            yield Hierarchy(2, Path(mount), here, _controllers_of(Path(mount)))
        elif kind == "cgroup":
            controllers = tuple(name for name in options.split(",") if name in _CONTROLLERS)
            if controllers:
                yield Hierarchy(1, Path(mount), _below(Path(mount), root, places.get(controllers[0], "/")), controllers)


def _below(mount: Path, root: str, place: str) -> Path:
    """The folder of a place, of which the mount may only show a part."""
    if place != root and not place.startswith(root.rstrip("/") + "/"):
        return mount
    return mount / place[len(root.rstrip("/")) :].lstrip("/")


def _controllers_of(group: Path) -> tuple[str, ...]:
    try:
        return tuple((group / "cgroup.controllers").read_text().split())
    except OSError:
        return ()


def _make_cgroups(spec: SandboxSpec, name: str, hierarchies: tuple[Hierarchy, ...]) -> tuple[Path, ...]:
    unified = [hierarchy for hierarchy in hierarchies if hierarchy.version == 2]
    if unified and set(_CONTROLLERS) <= set(unified[0].controllers):
        return (_make_unified(spec, name, unified[0]),)
    old = {controller: each for each in hierarchies if each.version == 1 for controller in each.controllers}
    missing = [controller for controller in _CONTROLLERS if controller not in old]
    if missing:
        raise OSError(f"this machine has no control of {', '.join(missing)}")
    return _make_old(spec, name, old)


def _make_old(spec: SandboxSpec, name: str, hierarchies: Mapping[str, Hierarchy]) -> tuple[Path, ...]:
    memory, processor = str(_memory_bytes(spec)), ProcessorShare.of(spec.cpus)
    settings: dict[str, Settings] = {
        "memory": {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        "pids": {"pids.max": str(spec.pids + _OWN_PROCESSES)},
        "cpu": {
            "cpu.cfs_period_us": str(processor.period_us),
            "cpu.cfs_quota_us": str(processor.quota_us),
            "cpu.shares": str(processor.shares),
        },
    }
    made: list[Path] = []
    with _removed_on_error(made):
        for controller, wanted in settings.items():
            made.append(_make_group(hierarchies[controller].here / name))
            for key, value in wanted.items():
                if (made[-1] / key).exists():  # a kernel may count no swap
                    (made[-1] / key).write_text(value)
    return tuple(dict.fromkeys(made))


def _make_unified(spec: SandboxSpec, name: str, hierarchy: Hierarchy) -> Path:
    """A group in the nearest one that can have groups: with processes of its own none can, except the topmost."""
    problem: OSError | None = None
    for parent in (hierarchy.here, *hierarchy.here.parents):
        try:
            return _make_unified_in(spec, parent / name)
        except OSError as error:
            problem = problem or error
        if parent == hierarchy.mount:
            break
    raise problem or OSError("no folder")


def _make_unified_in(spec: SandboxSpec, group: Path) -> Path:
    processor = ProcessorShare.of(spec.cpus)
    settings = {
        "memory.max": str(_memory_bytes(spec)),
        "memory.swap.max": "0",
        "pids.max": str(spec.pids + _OWN_PROCESSES),
        "cpu.max": f"{processor.quota_us} {processor.period_us}",
        "cpu.weight": str(processor.weight),
    }
    made: list[Path] = []
    if not set(_CONTROLLERS) <= set(_controllers_of(group.parent)):
        raise OSError(f"{group.parent} has no control of {', '.join(_CONTROLLERS)}")
    (group.parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    with _removed_on_error(made):
        made.append(_make_group(group))
        for key, value in settings.items():
            if key != "memory.swap.max" or (group / key).exists():
                (group / key).write_text(value)
    return group


def _make_group(path: Path) -> Path:
    path.mkdir(exist_ok=True)  # cpu and memory may be one hierarchy
    return path


@contextlib.contextmanager
def _removed_on_error(made: list[Path]) -> Iterator[None]:
    try:
        yield
    except OSError:
        _remove(tuple(made))
        raise


def _remove(groups: tuple[Path, ...]) -> None:
    for group in groups:
        deadline = time.monotonic() + _BUSY_S
        while not _is_removed(group) and time.monotonic() < deadline:
            time.sleep(0.001)


def _is_removed(group: Path) -> bool:
    """A group is busy until the last process that was killed in it is gone."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        logger.debug("the control group %s is not removed yet: %s", group, error)
        return False
    return True


def _memory_bytes(spec: SandboxSpec) -> int:
    return (spec.memory_mb + spec.disk_mb) * _MIB
