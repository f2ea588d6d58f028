"""A Docker daemon of a test's own, which can be killed and started again without touching that of the machine.

It lives in network, mount and pid namespaces of its own, with a private ``/run``, a containerd and folders of its own,
no bridge and no packet filter. When the process that holds the namespaces ends, the kernel ends everything in them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

TOOLS = ("unshare", "nsenter", "mount", "dockerd", "containerd")
START_S = 60.0
STOP_S = 30.0
OWN_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
HOLD = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever is adopted here is reaped
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("held", flush=True)
while True:
    signal.pause()
"""


class PrivateDaemon:
    """Started with ``start``, ended with ``end``; the same images and containers are there after each start."""

    def __init__(self, folder: Path, holder: int) -> None:
        self._folder = folder
        self._holder = holder
        self._daemon: subprocess.Popen[bytes] | None = None
        self.host = f"unix://{folder}/docker.sock"

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        (self._folder / "settings.json").write_text("{}")
        flags = {
            "--config-file": "settings.json",
            "--host": self.host,
            "--data-root": "data",
            "--exec-root": "exec",
            "--pidfile": "pid",
            "--storage-driver": "vfs",
            "--bridge": "none",
            "--iptables": "false",
            "--ip6tables": "false",
        }
        of_folder = ("--config-file", "--data-root", "--exec-root", "--pidfile")
        words = [f"{name}={self._folder / value if name in of_folder else value}" for name, value in flags.items()]
        with (self._folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen([*self._inside(), "dockerd", *words], stdout=log, stderr=log)
        self._until(self._answers, START_S, "did not answer")

    def end(self, number: signal.Signals) -> None:
        """Send the daemon a signal that ends it, and wait for its end."""
        assert self._daemon is not None
        for process in psutil.Process(self._daemon.pid).children():
            process.send_signal(number)
        self._daemon.wait(STOP_S)

    def close(self) -> None:
        """End the daemon if it runs."""
        if self._daemon is not None and self._daemon.poll() is None:
            self.end(signal.SIGTERM)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-3000:]

    def _inside(self) -> tuple[str, ...]:
        return ("nsenter", f"--target={self._holder}", "--net", "--mount", "--pid")

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5.0)
            try:
                connection.connect(self.host.removeprefix("unix://"))
                connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b" 200 " in connection.recv(64)
            except OSError:
                return False

    def _until(self, condition: Callable[[], bool], seconds: float, problem: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self._daemon is not None
            if self._daemon.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the private daemon {problem}; its log ends: {self.log}")
            time.sleep(0.05)


@contextmanager
def private_daemon() -> Iterator[PrivateDaemon]:
    """A running daemon of one's own. Skips the test where there cannot be one."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"a daemon of the test's own needs {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("a daemon of the test's own needs root")
    folder = Path(tempfile.mkdtemp(prefix="daemon-", dir="/tmp"))  # the path of a socket is short
    try:
        with _namespaces() as holder:
            daemon = PrivateDaemon(folder, holder)
            try:
                daemon.start()
                yield daemon
            finally:
                daemon.close()
    finally:
        shutil.rmtree(folder)


@contextmanager
def _namespaces() -> Iterator[int]:
    """The process that holds fresh namespaces, with a ``/run`` that is theirs alone."""
    hold = f'mount -t tmpfs tmpfs /run && exec {sys.executable} -c "$0"'
    with subprocess.Popen(
        [*OWN_NAMESPACES, "sh", "-c", hold, HOLD], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        try:
            if program.stdout.readline() != b"held\n":
                pytest.skip(f"namespaces of one's own cannot be made here: {program.stderr.read().decode().strip()}")
            (holder,) = psutil.Process(program.pid).children()
            yield holder.pid
        finally:
            program.kill()  # and with it, by --kill-child, all that runs in the namespaces
