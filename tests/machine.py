"""What tests see of the machine that they run on, and how they wait for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable

import psutil


def command_lines(holding: str) -> list[str]:
    """The command lines of this machine, words between blanks, that hold a text; but for that of this process."""
    own = os.getpid()
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if holding in words and process.pid != own:
            found.append(words)
    return found


def wait_until(
    condition: Callable[[], object], seconds: float = 60.0, program: subprocess.Popen[bytes] | None = None
) -> None:
    """Poll until ``condition()`` is true; a ``program`` that ends meanwhile ends the wait too."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert program is None or program.poll() is None, "the program ended too early"
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.02)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Like ``wait_until``, while the event loop goes on."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
