"""The programs that can make a box, and how each is started.

The project's own runner comes first: it can give a box many ids and an image, and is quicker. bubblewrap (``bwrap``) is
for kernels that let only programs they know make user namespaces.
"""

from __future__ import annotations

import functools
import os
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import SandboxUnavailable
from sandboxes.frames import FrameBuffer, decode_hello
from sandboxes.launch import Program
from sandboxes.namespaces.diagnosis import explain
from sandboxes.namespaces.host_root import host_root
from sandboxes.namespaces.plan import ID_COUNT, Plan, bwrap_arguments, encode
from sandboxes.namespaces.seccomp import seccomp_filter
from sandboxes.runner import runner_path

_TRY_S = 20.0
_FIRST_ID, _ID_RANGES = 2_000_000_000, 2000  # above what accounts and containers are given, below 2**31


class MemoryFiles:
    """Files without a name, for a program that inherits their descriptors."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self._open = ExitStack()

    def __enter__(self) -> MemoryFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, content: bytes) -> int:
        """The descriptor of a new file that holds ``content``."""
        file = self._open.enter_context(os.fdopen(os.memfd_create("sandbox"), "w+b"))
        file.write(content)
        file.seek(0)
        self.descriptors.append(file.fileno())
        return file.fileno()


@dataclass(frozen=True)
class Maker:
    """A program that makes boxes; ``words`` is what the runner is told, as ``runner/src/plan.h`` lists it."""

    name: str
    words: Callable[[Plan, MemoryFiles], list[str]]
    takes_image: bool
    gives_folders: bool
    """Whether the folders of the box's user belong to that user from the start."""

    @contextmanager
    def program(self, plan: Plan) -> Iterator[Program]:
        """What to start for a plan, within the block."""
        with MemoryFiles() as files:
            described = files.add(encode(self.words(plan, files)))
            argv = ("sandbox", "plan", str(described))
            yield Program(argv, str(runner_path(platform.machine())), tuple(files.descriptors))


def _runner_words(plan: Plan, files: MemoryFiles) -> list[str]:
    return plan.words(files.add(seccomp_filter()))


def _bwrap_words(plan: Plan, files: MemoryFiles) -> list[str]:
    arguments = bwrap_arguments(
        plan,
        bwrap=shutil.which("bwrap") or "/usr/bin/bwrap",
        runner=runner_path(platform.machine()),
        seccomp=files.add(seccomp_filter()),
        root=os.geteuid() == 0,
        open_text=lambda text: files.add(text.encode()),
    )
    return [*plan.guard_words(), "exec", *arguments]


RUNNER = Maker("the runner", _runner_words, takes_image=True, gives_folders=True)
BWRAP = Maker("bubblewrap", _bwrap_words, takes_image=False, gives_folders=False)


@functools.cache
def find_maker() -> Maker:
    """The first that makes a box on this machine; tried by making one. Blocks.

    Raises: SandboxUnavailable, which says what each said and what to change.
    """
    if sys.platform != "linux":
        raise SandboxUnavailable(f"bubblewrap boxes need Linux, this is {sys.platform}; use docker")
    failures: dict[str, str] = {}
    for maker in (RUNNER, BWRAP):
        problem = try_maker(maker)
        if problem is None:
            return maker
        failures[maker.name] = problem
    raise SandboxUnavailable(explain(failures))


def try_maker(maker: Maker) -> str | None:
    """Make a box and leave it at once: what was wrong, or None. Blocks.

    Raises: SandboxUnavailable for an architecture for which there is no runner.
    """
    if maker is BWRAP and shutil.which("bwrap") is None:
        return "not installed (apt install bubblewrap)"
    plan = Plan(steps=host_root("/workspace"), owner=os.getpid(), disk_bytes=1 << 20, ids=free_ids())
    with maker.program(plan) as program:
        try:
            done = subprocess.run(
                program.argv,
                executable=program.executable,
                pass_fds=program.descriptors,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TRY_S,
                env={},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    greetings = list(FrameBuffer().feed(done.stdout))
    if greetings and decode_hello(greetings[0].payload).pid == 1:
        return None
    return done.stderr.decode("utf-8", "replace").strip() or f"ended with {done.returncode}"


def free_ids() -> int | None:
    """The first of ``ID_COUNT`` ids that are nobody's; None where this process may not give ids away."""
    if os.geteuid() != 0:
        return None
    first = _FIRST_ID + ID_COUNT * random.randrange(_ID_RANGES)
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, _, count = map(int, line.split())
        if inside <= first and first + ID_COUNT <= inside + count:
            return first
    return None
