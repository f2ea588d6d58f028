"""What a program that has ended left on the machine, found without asking those who should have removed it.

Other people use the machine: everything is looked for by the program's own identity, and by a temporary folder and a
variable of its environment that are its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from sandboxes import docker_daemon
from sandboxes.errors import SandboxUnavailable
from sandboxes.ownership import OWNER_LABEL, process_start_ticks

MARK = "DRILL_OF_A_TEST"
"""Variable that a program and its children inherit; boxes do not."""


CACHES = ("torchinductor_",)
"""What libraries keep in the temporary folder for the next time."""


class Owner:
    """A running program that may open boxes. ``temporary``: the folder that is its ``TMPDIR``."""

    def __init__(self, pid: int, temporary: Path, mark: str) -> None:
        self._pid = pid
        self._names: set[str] = set()
        self._labels: set[str] = set()
        self._temporary = temporary
        self._mark = f"{MARK}={mark}"
        self.note_children()
        assert self._names, "the program has ended already"

    def note_children(self) -> None:
        """From now on what its present children leave counts as its own, too."""
        try:
            program = psutil.Process(self._pid)
            pids = [self._pid, *(child.pid for child in program.children(recursive=True))]
        except psutil.Error:
            return
        for pid in pids:
            ticks = process_start_ticks(pid)
            if ticks is not None:
                self._names.add(f"hermes-{pid}-{ticks}-")
                self._labels.add(f"{pid}:{ticks}:")

    def left(self) -> list[str]:
        """Everything that is still there."""
        return [
            *(f"file {path}" for path in self._temporary.iterdir() if not path.name.startswith(CACHES)),
            *(f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if self._owns(line)),
            *(f"cgroup {path}" for path in self._cgroups()),
            *(f"process {words}" for words in self._processes()),
            *(f"container {name}" for name in self._containers()),
        ]

    def boxes(self) -> int:
        """Boxes that are open now: control groups, folders or containers."""
        groups = {path.name for path in self._cgroups()}
        folders = {path.name for path in self._temporary.glob("hermes-*")}
        return len(groups | folders) + len(list(self._containers()))

    def _owns(self, text: str) -> bool:
        return str(self._temporary) in text or any(name in text for name in self._names)

    def _cgroups(self) -> Iterator[Path]:
        for folder, children, _ in os.walk("/sys/fs/cgroup"):  # passes over what vanishes meanwhile
            yield from (Path(folder, child) for child in children if self._owns(child))

    def _processes(self) -> Iterator[str]:
        for process in psutil.process_iter():
            try:
                variables = process.environ()
                group = Path(f"/proc/{process.pid}/cgroup").read_text()
                words = " ".join(process.cmdline())
            except (psutil.Error, OSError):
                continue
            marked = self._mark in [f"{name}={value}" for name, value in variables.items()]
            if marked or self._owns(group) or any(map(self._owns, variables.values())):
                yield f"{process.pid} {words}"

    def _containers(self) -> Iterator[str]:
        try:
            client = docker_daemon.connect(timeout_s=10)
        except SandboxUnavailable:
            return
        try:
            for container in client.api.containers(all=True, filters={"label": OWNER_LABEL}):
                if container["Labels"][OWNER_LABEL].startswith(tuple(self._labels)):
                    yield container["Names"][0]
        finally:
            client.close()
