"""Start a runner as a child process of this one, and end it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from dataclasses import dataclass
from typing import IO

from sandboxes.channel import Channel
from sandboxes.errors import SandboxStartError

_END_S = 15.0
_LAST_WORDS = 4000


@dataclass(frozen=True)
class Program:
    """What to start: ``argv`` may name it otherwise than ``executable``, and it inherits ``descriptors``."""

    argv: tuple[str, ...]
    executable: str
    descriptors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launched:
    """A runner that answers on ``channel``, and the process that stands for it on this machine."""

    channel: Channel
    process: subprocess.Popen[bytes]

    async def end(self) -> None:
        """Wait for the process, which ends by itself once the channel is closed; kill it where it does not."""
        await self.channel.close()
        await end_process(self.process)


async def launch(program: Program, *, timeout_s: float = 30.0) -> Launched:
    """Start a program whose standard input and output are a runner's, in a session of its own with no environment.

    Raises: SandboxStartError, with what it wrote to its standard error.
    """
    with _memory_file() as last_words:
        ours, process = _start(program, last_words)
        try:
            reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
            channel = await Channel.open(reader, writer, timeout_s=timeout_s)
        except BaseException as error:
            ours.close()  # the end of its input ends a runner, and with it what stands outside its box
            await end_process(process)
            if isinstance(error, SandboxStartError):
                raise SandboxStartError(_explain(error, last_words)) from None
            raise
    return Launched(channel, process)


def _memory_file() -> IO[bytes]:
    """For standard error: unlike a pipe it never blocks the writer and needs no reader."""
    return os.fdopen(os.memfd_create("last words"), "w+b")


def _start(program: Program, last_words: IO[bytes]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                program.argv,
                executable=program.executable,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=last_words,
                env={},
                cwd="/",
                pass_fds=program.descriptors,
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise SandboxStartError(f"cannot start {program.executable}: {error}") from error
    return ours, process


def _explain(error: SandboxStartError, last_words: IO[bytes]) -> str:
    last_words.seek(0)
    words = last_words.read(_LAST_WORDS).decode("utf-8", "replace").strip()
    return f"{error}; it said: {words}" if words else str(error)


async def end_process(process: subprocess.Popen[bytes]) -> None:
    """Wait until a child process is gone, and kill it where that takes longer than 15 s."""
    try:
        async with asyncio.timeout(_END_S):
            await _exit_of(process)
    except TimeoutError:
        process.kill()
        await _exit_of(process)


async def _exit_of(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    handle = os.pidfd_open(process.pid)
    loop.add_reader(handle, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    process.wait()
