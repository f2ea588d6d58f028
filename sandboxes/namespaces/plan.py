"""The plan of a box, for the runner (``runner/src/plan.h``) and for bubblewrap."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

USER_ID = 1000
"""The id of the box's user, inside."""
ID_COUNT = 65536
"""How many ids a box has that does not have just one."""

Word = Literal["bind", "link", "folder", "file", "mode", "own", "system"]


@dataclass(frozen=True)
class Step:
    """One step towards the root of a box: a word and its operands, as ``plan.h`` lists them."""

    word: Word
    operands: tuple[str, ...] = ()


def bind(path: str, target: str | None = None) -> Step:
    """A file or folder of the host, read-only, at the same path or at ``target``."""
    return Step("bind", (os.path.realpath(path), target or path))


def link(target: str, path: str) -> Step:
    """A symbolic link at ``path``."""
    return Step("link", (target, path))


def folder(path: str, mode: int = 0o755) -> Step:
    """A folder."""
    return Step("folder", (f"{mode:o}", path))


def file(path: str, text: str) -> Step:
    """A small text file."""
    return Step("file", (text, path))


def program(path: str, text: str) -> tuple[Step, Step]:
    """A script."""
    return file(path, text), Step("mode", ("755", path))


def user_folder(path: str) -> tuple[Step, Step]:
    """A folder that belongs to the box's user."""
    return folder(path), Step("own", (path,))


SYSTEM = Step("system")
"""``/proc`` and ``/dev``."""


@dataclass(frozen=True)
class Plan:
    """All that makes a box. ``ids`` is the first of ``ID_COUNT`` ids outside, None for the one id of the starter."""

    steps: tuple[Step, ...]
    owner: int
    disk_bytes: int
    hostname: str = "sandbox"
    ids: int | None = None
    image: Path | None = None
    cgroups: tuple[Path, ...] = ()
    rlimits: tuple[tuple[int, int], ...] = field(default=())

    def guard_words(self) -> list[str]:
        """What the process outside needs to know."""
        words = ["owner", str(self.owner)]
        for cgroup in self.cgroups:
            words += ["cgroup", str(cgroup)]
        for number, value in self.rlimits:
            words += ["rlimit", str(number), str(value)]
        return words

    def words(self, seccomp: int) -> list[str]:
        """The whole plan for the runner; ``seccomp`` is the descriptor of the filter."""
        words = [*self.guard_words(), "disk", str(self.disk_bytes), "name", self.hostname, "seccomp", str(seccomp)]
        if self.ids is not None:
            words += ["ids", str(self.ids), str(ID_COUNT)]
        if self.image is not None:
            words += ["image", str(self.image)]
        for step in self.steps:
            words += [step.word, *step.operands]
        return words


def encode(words: Iterable[str]) -> bytes:
    """The words as the runner reads them."""
    return b"".join(os.fsencode(word) + b"\0" for word in words)


ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
_BWRAP_ALWAYS = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv", "--cap-drop", "ALL"),
)
_RUNNER_PATH = "/.runner"
_OF_THE_KERNEL = ("kallsyms", "kcore", "keys", "key-users", "kmsg", "kpagecount", "kpageflags", "timer_list")
"""What of /proc the host's root, or any user, could learn of the host."""


def bwrap_arguments(
    plan: Plan, *, bwrap: str, runner: Path, seccomp: int, root: bool, open_text: Callable[[str], int]
) -> list[str]:
    """The command line of bubblewrap for a plan; ``open_text`` gives a descriptor from which a text can be read."""
    arguments = [bwrap, *_BWRAP_ALWAYS, "--hostname", plan.hostname]
    if root:
        arguments += [word for name in ROOT_CAPABILITIES for word in ("--cap-add", f"CAP_{name}")]
    else:
        arguments += ["--unshare-user", "--uid", str(USER_ID), "--gid", str(USER_ID)]
    arguments += ["--size", str(plan.disk_bytes), "--tmpfs", "/"]
    for parent in dict.fromkeys(parent for step in plan.steps for parent in _parents(step)):
        arguments += ["--dir", parent]  # of its own accord bwrap would close them to the box's user
    for step in plan.steps:
        arguments += _bwrap_step(step, open_text)
    arguments += ["--ro-bind", str(runner), _RUNNER_PATH, "--chdir", "/", "--seccomp", str(seccomp)]
    return [*arguments, "--", _RUNNER_PATH]


def _parents(step: Step) -> list[str]:
    """The folders above what a step makes, from the top."""
    path = PurePosixPath(step.operands[-1]) if step.operands else PurePosixPath("/")
    return [str(parent) for parent in reversed(path.parents) if parent != PurePosixPath("/")]


def _bwrap_step(step: Step, open_text: Callable[[str], int]) -> list[str]:
    match step.word, step.operands:
        case "bind", (source, target):
            return ["--ro-bind", source, target]
        case "link", (target, path):
            return ["--symlink", target, path]
        case "folder", (mode, path):
            return ["--dir", path, "--chmod", mode.zfill(4), path]
        case "mode", (mode, path):
            return ["--chmod", mode.zfill(4), path]
        case "file", (text, path):
            return ["--file", str(open_text(text)), path, "--chmod", "0644", path]  # of its own accord all may write
        case "own", _:
            return []  # the runner does it, where there is more than one user
    # Host root keeps the power over sysctl files that its id gives it: so they are read-only (bubblewrap leaves
    # them).
    proc = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    for name in ("sysrq-trigger", "irq", "bus", "fs"):
        proc += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    for name in _OF_THE_KERNEL:
        if os.path.exists(f"/proc/{name}"):
            proc += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return [*proc, "--dev", "/dev", "--size", str(64 << 20), "--tmpfs", "/dev/shm", "--chmod", "1777", "/dev/shm"]
