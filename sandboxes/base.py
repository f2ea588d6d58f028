"""The contract of a sandbox: one closed box in which the tools of one rollout run.

Promises every backend keeps:

- a command that fails, is killed or times out is a value (``ExecResult``); a failure of the box is an error
  (``sandboxes.errors``), and the two are never mixed up;
- a timeout kills the command's processes inside the box;
- a closed box refuses every call with ``SandboxClosed``; ``close`` may be called again, is safe against
  cancellation, and leaves no process, mount, folder or container behind.
"""

from __future__ import annotations

import math
import posixpath
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, get_args

from sandboxes.errors import SandboxTimeout, SandboxUnavailable

WORKDIR = "/workspace"
ALIVE_S = 5.0
Network = Literal["none", "bridge"]
_LEAST = {"cpus": 0.001, "memory_mb": 1, "pids": 1, "disk_mb": 1}
_MOST = {"cpus": 1e6, "memory_mb": 1 << 32, "pids": 4_000_000, "disk_mb": 1 << 32}
"""About what the kernel takes; beyond it a backend could bound nothing."""


@dataclass(frozen=True)
class SandboxSpec:
    """What a box is made of. Sizes in MiB, ``cpus`` in cores; ``None`` means the backend's default."""

    image: str | None = None
    """An image of the backend (Docker: a tag). ``None``: the default image of the backend."""
    build: Path | None = None
    """A folder with a Dockerfile, of which the image is made, once for each content. In place of ``image``."""
    root: Path | None = None
    """An unpacked root file system, for backends without images."""
    workdir: str = WORKDIR
    user: str | None = None
    cpus: float = 1.0
    memory_mb: int = 1024
    pids: int = 256
    disk_mb: int = 512
    network: Network | tuple[str, ...] = "none"
    """A tuple names the only hosts that the box may reach; a backend that cannot hold it to them refuses."""
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    lease_s: float | None = None
    """Seconds from its start after which a sweep removes the box though its owner lives; ``None``: never. Boxes of
    namespaces without control groups cannot be found by a sweep, and end with their owner only."""

    def __post_init__(self) -> None:
        """Raises: ValueError, naming the field, for what no box can have."""
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not least <= value <= _MOST[name]:
                raise ValueError(f"SandboxSpec.{name} must be from {least} to {_MOST[name]:g}, not {value!r}")
        if self.lease_s is not None and not 0 < self.lease_s < math.inf:
            raise ValueError(f"SandboxSpec.lease_s must be above 0 and finite, or None, not {self.lease_s!r}")
        if (
            not self.workdir.startswith("/")
            or "\0" in self.workdir
            or posixpath.normpath(self.workdir).strip("/") == ""
        ):
            raise ValueError(f"SandboxSpec.workdir must be the absolute path of a folder below /, not {self.workdir!r}")
        if isinstance(self.network, str) and self.network not in get_args(Network):
            raise ValueError(
                f"SandboxSpec.network is 'none', 'bridge' or a tuple of hosts such as ('pypi.org',), "
                f"not {self.network!r}"
            )


@dataclass(frozen=True)
class ExecResult:
    """What a command did. ``exit_code`` is 128 + the signal where one ended it, and 124 after a timeout."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    """Empty where the call merged the streams."""
    duration_s: float
    timed_out: bool = False
    omitted_bytes: int = 0
    """How many bytes of the middle of the output were cut (the head and the tail are kept)."""

    @property
    def output(self) -> str:
        """Both streams as text, undecodable bytes replaced."""
        return (self.stdout + self.stderr).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class ProcessStatus:
    """A background process of a box. ``exit_code`` is None while it runs."""

    process_id: str
    command: str
    exit_code: int | None
    output: bytes
    omitted_bytes: int = 0


class Shell(ABC):
    """A session in a box: the working folder and exported variables last from one command to the next.

    A command that hangs is killed at its timeout and does not take the session with it.
    """

    @abstractmethod
    async def run(self, command: str, *, timeout_s: float = 180.0, output_limit: int = 50_000) -> ExecResult:
        """Run shell text; both streams come merged, in order, in ``stdout``.

        Raises: SandboxClosed, SandboxTimeout.
        """


class Pipe(ABC):
    """A command under way that is spoken with over its standard streams. Made by ``Sandbox.pipe``."""

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]:
        """Its standard output as it comes, to its end; the command waits where it is not taken.

        Raises: SandboxClosed.
        """

    @abstractmethod
    async def feed(self, data: bytes) -> None:
        """Write to its standard input, waiting while it does not read; after its end nothing is sent.

        Raises: SandboxClosed.
        """

    @abstractmethod
    async def feed_end(self) -> None:
        """End its standard input. Raises: SandboxClosed."""

    @abstractmethod
    async def wait(self) -> ExecResult:
        """Wait for its end; ``stdout`` is empty, since ``chunks`` gives it. Raises: SandboxClosed."""


class Sandbox(ABC):
    """One box. Made by ``sandboxes.open_sandbox``; every method raises ``SandboxClosed`` after ``close``."""

    backend: ClassVar[str]

    def __init__(self, sandbox_id: str, spec: SandboxSpec) -> None:
        self.id = sandbox_id
        self.spec = spec

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether ``close`` was called or the box died."""

    @abstractmethod
    async def exec(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = 180.0,
        output_limit: int = 1_000_000,
        merge_stderr: bool = False,
    ) -> ExecResult:
        """Run an argv, or shell text (by ``bash`` where the box has it, else ``sh``), in its own process group.

        ``env`` is added to the box's own small environment; nothing of a shell session leaks in. ``user`` None
        is the box's user.

        Raises: SandboxClosed, SandboxTimeout (the box did not answer well after ``timeout_s``).
        """

    def pipe(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        error_limit: int = 10_000,
    ) -> AbstractAsyncContextManager[Pipe]:
        """Speak with a command while it runs; it has no time limit, and is killed where the block is left.

        ``error_limit``: bytes of its standard error that are kept. The other arguments are those of ``exec``. A backend
        may do without this; its boxes have no relay (``sandboxes.relay``) then.

        Raises: SandboxUnavailable where the backend does without it; on entering SandboxClosed.
        """
        raise SandboxUnavailable(
            f"boxes of the backend {self.backend!r} cannot be spoken with while a command runs (no Sandbox.pipe); "
            "use docker or bubblewrap"
        )

    async def check_alive(self) -> None:
        """Return where the box answers within ``ALIVE_S`` seconds.

        Raises: SandboxClosed, SandboxTimeout.
        """
        result = await self.exec("true", timeout_s=ALIVE_S)
        if result.timed_out:
            raise SandboxTimeout(f"the box {self.id} did not answer within {ALIVE_S:g} s")

    @abstractmethod
    def shell(self) -> Shell:
        """A new session; cheap, started at its first command. Raises: SandboxClosed."""

    @abstractmethod
    async def read(self, path: str, *, limit: int = 100_000_000, user: str | None = None) -> bytes:
        """The bytes of a regular file, read with the rights of ``user`` (the box's user).

        Raises: SandboxFileError (``errno`` set), OutputLimitExceeded, SandboxClosed.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int | None = 0o644, user: str | None = None) -> None:
        """Write a file, making its folders, with the rights of ``user`` (the box's user).

        ``mode`` None keeps that of a file that is there (0644 for a new one).

        Raises: SandboxFileError, SandboxClosed.
        """

    @abstractmethod
    async def upload(self, source: Path, target: str, *, user: str | None = None) -> int:
        """Copy a file or a tree in: modes, empty folders, symlinks that stay inside the tree. Returns its files.

        Other links and special files are left out, with a warning. A tree is laid over what is there.

        Raises: SandboxFileError, FileNotFoundError, SandboxClosed.
        """

    @abstractmethod
    async def download(self, source: str, target: Path, *, limit: int = 1_000_000_000, user: str | None = None) -> int:
        """Copy a file or a tree out; nothing is ever written outside ``target``. Returns its files.

        Raises: SandboxFileError, OutputLimitExceeded, SandboxClosed.
        """

    @abstractmethod
    async def start(self, command: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Start shell text in the background and return its process id (``proc_…``). Raises: SandboxClosed."""

    @abstractmethod
    async def poll(self, process_id: str) -> ProcessStatus:
        """How a background process stands. Raises: KeyError where this box has none of this id; SandboxClosed."""

    @abstractmethod
    async def send(self, process_id: str, data: bytes, *, eof: bool = False) -> None:
        """Write to the standard input of a background process, or end it; one that has ended takes nothing.

        Waits while the process does not read, for as long as that lasts: whoever may not wait sets a limit of its own.

        Raises: KeyError where this box has none of this id; SandboxClosed.
        """

    @abstractmethod
    async def kill(self, process_id: str) -> None:
        """Kill a background process with all that it started; one that has ended is left as it is.

        Raises: KeyError where this box has none of this id; SandboxClosed.
        """

    @abstractmethod
    async def processes(self) -> list[ProcessStatus]:
        """The background processes of this box, in order of start. Raises: SandboxClosed."""

    @abstractmethod
    async def kill_all(self) -> int:
        """Kill every process of the box but its own; returns how many there were. Done before grading.

        Raises: SandboxClosed, SandboxTimeout.
        """

    @abstractmethod
    async def close(self) -> None:
        """Remove the box and all that it made.

        Raises: SandboxError where something of it remains; the message says what. A sweep of ``sandboxes.reaper``
        removes it once this process has ended.
        """
