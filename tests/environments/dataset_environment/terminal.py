"""A program at a terminal of its own: what it writes is read as it comes, and keys are typed to it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from types import TracebackType


class Terminal:
    """Runs a command on a pseudo-terminal; ``text`` is all that it wrote."""

    def __init__(self, argv: list[str], cwd: str, env: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        command = ["setsid", "--ctty", "--wait", *argv]  # keys such as Ctrl-C reach who owns the terminal
        surroundings = env | {"TERM": "xterm-256color", "COLUMNS": "120"}
        self.process = subprocess.Popen(command, cwd=cwd, env=surroundings, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.text = ""
        self._seen = 0

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        """Read until ``text`` was written, after what was waited for before."""
        deadline = time.monotonic() + seconds
        while (found := self.text.find(text, self._seen)) < 0:
            assert time.monotonic() < deadline, f"{text!r} did not come; the end is:\n{self.text[-3000:]}"
            if not self._read():
                found = self.text.find(text, self._seen)
                assert found >= 0, f"the program ended without {text!r}:\n{self.text[-3000:]}"
                break
        self._seen = found + len(text)

    def type(self, text: str) -> None:
        """Type some lines."""
        os.write(self._master, text.encode())

    def end(self, seconds: float = 60.0, typing: str = "") -> int:
        """Read to the end, ``typing`` now and, where that had no effect, again; the exit code.

        One Ctrl-C that comes just before readline waits for keys is looked at with the next key only.
        """
        started = time.monotonic()
        times = 0
        while self._read():
            passed = time.monotonic() - started
            assert passed < seconds, f"the program did not end; it said:\n{self.text[-3000:]}"
            if typing and passed >= 8.0 * times and self.process.poll() is None:
                self.type(typing)
                times += 1
        return self.process.wait(seconds)

    def _read(self) -> bool:
        """Read what is there; False once there is no more to come."""
        ready, _, _ = select.select([self._master], [], [], 0.2)
        if not ready:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # how a terminal tells that its program has ended
            return False
        self.text += data.decode(errors="replace")
        return bool(data)
