"""``RunnerSandbox``: every method of a box over a channel to its runner, so that a backend only starts and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import posixpath
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sandboxes.base import ALIVE_S, ExecResult, Pipe, ProcessStatus, Sandbox, SandboxSpec, Shell
from sandboxes.call import Call, Finished
from sandboxes.channel import Channel
from sandboxes.errors import (
    OutputLimitExceeded,
    SandboxClosed,
    SandboxFileError,
    SandboxStartError,
    SandboxTimeout,
)
from sandboxes.frames import Command, Run
from sandboxes.results import exec_result
from sandboxes.shell import RunnerShell
from sandboxes.transfer import TreeReader, TreeWriter

FILE_TIME_LIMIT_S = 600.0
BASE_ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}

_PROCESS_LIMIT = 64
_PROCESS_OUTPUT = 200_000
_ERRNO_LIMIT = 134


@dataclass(frozen=True)
class _Background:
    command: str
    call: Call


class _RunnerPipe(Pipe):
    def __init__(self, call: Call) -> None:
        self._call = call

    def chunks(self) -> AsyncIterator[bytes]:
        return self._call.chunks()

    async def feed(self, data: bytes) -> None:
        await self._call.feed(data)

    async def feed_end(self) -> None:
        await self._call.feed_end()

    async def wait(self) -> ExecResult:
        return replace(exec_result(await self._call.wait()), stdout=b"")


class RunnerSandbox(Sandbox):
    """A box whose runner answers on ``channel``.

    ``user`` is who commands run as where the call does not say; None where the box knows a single user id: then a
    ``user`` of a call changes nothing. ``environment`` is what commands get besides ``spec.env``. ``translate`` is
    applied to every path and command, for a box whose ``/workspace`` is somewhere else.
    """

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        channel: Channel,
        *,
        user: str | None,
        environment: Mapping[str, str] = BASE_ENVIRONMENT,
        translate: Callable[[str], str] = str,
    ) -> None:
        super().__init__(sandbox_id, spec)
        self._channel = channel
        self._user = user
        self._environment = {**environment, **spec.env}
        self._translate = translate
        self._background: dict[str, _Background] = {}
        self._numbers = itertools.count(1)
        self._companions: list[Callable[[], Awaitable[None]]] = []
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None

    def accompany(self, end: Callable[[], Awaitable[None]], environment: Mapping[str, str]) -> None:
        """Let commands know ``environment``, and call ``end`` first when the box is closed."""
        self._companions.append(end)
        self._environment = {**environment, **self._environment}

    @abstractmethod
    async def _stop(self) -> None:
        """End the box and remove all that the backend made for it; called once, after the channel was closed."""

    # ---- life

    @property
    def closed(self) -> bool:
        return self._closing is not None or self._channel.closed

    async def close(self) -> None:
        if self._loop.is_running() and asyncio.get_running_loop() is not self._loop:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), self._loop))
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self.id}")
        await finish(self._closing)

    async def _close(self) -> None:
        try:
            if asyncio.get_running_loop() is self._loop:
                await self._end_companions()
            await self._channel.close()
        finally:
            await self._stop()

    async def _end_companions(self) -> None:
        for end in self._companions:
            await end()

    def _require_open(self) -> None:
        if self._closing is not None:
            raise SandboxClosed(f"the box {self.id} is closed")

    # ---- commands

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
        self._require_open()
        flags = Run.MERGE if merge_stderr else Run.PLAIN
        request = self._command(command, flags, cwd=cwd, env=env, user=user, keep=output_limit)
        request = replace(request, time_limit_s=timeout_s)
        return exec_result(await self._channel.run(request, stdin=stdin))

    @contextlib.asynccontextmanager
    async def pipe(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        error_limit: int = 10_000,
    ) -> AsyncIterator[Pipe]:
        self._require_open()
        request = self._command(command, Run.INPUT, cwd=cwd, env=env, user=user, keep=error_limit)
        async with self._channel.streaming(request) as call:
            yield _RunnerPipe(call)

    async def check_alive(self) -> None:
        self._require_open()
        await self._channel.ping(ALIVE_S)

    def shell(self) -> Shell:
        self._require_open()
        template = self._command("", Run.PLAIN, cwd=None, env=None, user=None, keep=0)
        return RunnerShell(self._channel, template, self._translate)

    def _command(
        self,
        command: str | Sequence[str],
        flags: Run,
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        keep: int,
    ) -> Command:
        is_text = isinstance(command, str)
        arguments = (command,) if isinstance(command, str) else tuple(command)
        if not arguments:
            raise ValueError("a command needs at least one argument")
        return Command(
            arguments=tuple(map(self._translate, arguments)),
            flags=flags | (Run.SHELL if is_text else Run.PLAIN),
            environment={**self._environment, **(env or {})},
            folder=self._folder(cwd),
            user=self._user_of(user),
            head=keep - keep // 2,
            tail=keep // 2,
        )

    def _folder(self, cwd: str | None) -> str:
        return self._translate(posixpath.join(self.spec.workdir, cwd) if cwd else self.spec.workdir)

    def _user_of(self, user: str | None) -> str | None:
        return None if self._user is None else user or self._user

    # ---- background processes

    async def start(self, command: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> str:
        self._require_open()
        self._forget_ended()
        flags = Run.MERGE | Run.INPUT
        request = self._command(command, flags, cwd=cwd, env=env, user=None, keep=_PROCESS_OUTPUT)
        call = await self._channel.begin(request)
        process_id = f"proc_{next(self._numbers)}"
        self._background[process_id] = _Background(command, call)
        return process_id

    async def poll(self, process_id: str) -> ProcessStatus:
        self._require_open()
        background = self._background[process_id]
        result = exec_result(finished := await self._channel.peek(background.call))
        return ProcessStatus(
            process_id=process_id,
            command=background.command,
            exit_code=None if finished.done.running else result.exit_code,
            output=result.stdout,
            omitted_bytes=result.omitted_bytes,
        )

    async def send(self, process_id: str, data: bytes, *, eof: bool = False) -> None:
        self._require_open()
        call = self._background[process_id].call
        await call.feed(data)
        if eof:
            await call.feed_end()

    async def kill(self, process_id: str) -> None:
        self._require_open()
        call = self._background[process_id].call
        await self._channel.end(call)

    async def processes(self) -> list[ProcessStatus]:
        self._require_open()
        return [await self.poll(process_id) for process_id in list(self._background)]

    async def kill_all(self) -> int:
        self._require_open()
        return await self._channel.kill_all()

    def _forget_ended(self) -> None:
        """Keep the list short; what still runs is never forgotten."""
        ended = [process_id for process_id, background in self._background.items() if background.call.over]
        for process_id in ended[: max(0, len(self._background) - _PROCESS_LIMIT + 1)]:
            del self._background[process_id]

    # ---- files

    async def read(self, path: str, *, limit: int = 100_000_000, user: str | None = None) -> bytes:
        operation = self._file_operation("read", path, str(limit), user=user)
        async with self._channel.streaming(operation) as call:
            content = b"".join([chunk async for chunk in call.chunks()])
            self._check(await call.wait(), path)
        return content

    async def write(self, path: str, data: bytes, *, mode: int | None = 0o644, user: str | None = None) -> None:
        octal = "" if mode is None else f"{mode:o}"
        operation = self._file_operation("write", path, octal, user=user)
        self._check(await self._channel.run(operation, stdin=data), path)

    async def upload(self, source: Path, target: str, *, user: str | None = None) -> int:
        self._require_open()
        if await asyncio.to_thread(source.is_dir):
            reader = TreeReader(source)
            await self._feed(self._file_operation("unpack", target, user=user), reader.pieces(), target)
            return reader.files
        if target.endswith("/"):
            target = posixpath.join(target, source.name)
        mode = (await asyncio.to_thread(source.stat)).st_mode & 0o777
        await self._feed(self._file_operation("write", target, f"{mode:o}", user=user), _file_pieces(source), target)
        return 1

    async def _feed(self, operation: Command, pieces: Iterator[bytes], path: str) -> None:
        self._check(await self._channel.run_fed(operation, _in_thread(pieces)), path)

    async def download(self, source: str, target: Path, *, limit: int = 1_000_000_000, user: str | None = None) -> int:
        operation = self._file_operation("pack", source, str(limit), user=user)
        if await asyncio.to_thread(target.is_dir) and not await self._is_folder(source, user):
            target = target / posixpath.basename(source)
        writer = TreeWriter(target, limit=limit)
        try:
            async with self._channel.streaming(operation) as call:
                async for chunk in call.chunks():
                    await asyncio.to_thread(writer.feed, chunk)
                self._check(await call.wait(), source)
            await asyncio.to_thread(writer.finish)
        finally:
            writer.close()
        return writer.files

    async def _is_folder(self, path: str, user: str | None) -> bool:
        finished = await self._channel.run(self._file_operation("read", path, "0", user=user))
        return finished.done.status == errno.EISDIR

    async def _give_folder(self, path: str) -> None:
        """Make a folder that belongs to the box's user; for backends, at the start of a box."""
        operation = replace(self._file_operation("give", path, self._user or ""), user=None)
        self._check(await self._channel.run(operation), path)

    async def check_user(self) -> None:
        """For backends, at the start of a box.

        Raises: SandboxStartError where the box has no user of the name in its spec.
        """
        if self.spec.user is not None and self._user is not None:
            looked = await self._channel.run(self._file_operation("read", "/", "0"))  # no image lacks its root
            if looked.done.status not in (errno.EISDIR, errno.EACCES):
                reason = looked.err.decode("utf-8", "replace").strip()
                raise SandboxStartError(f"the box has no user {self.spec.user!r}: {reason}")

    def _file_operation(self, name: str, path: str, *arguments: str, user: str | None = None) -> Command:
        self._require_open()
        return Command(
            arguments=(name, self._folder(path), *arguments),
            flags=Run.FILE,
            user=self._user_of(user),
            time_limit_s=FILE_TIME_LIMIT_S,
        )

    def _check(self, finished: Finished, path: str) -> None:
        status = finished.done.status
        if status == 0:
            return
        if finished.done.timed_out:
            raise SandboxTimeout(f"{path}: not done within {FILE_TIME_LIMIT_S:g} s")
        if status >= _ERRNO_LIMIT:
            raise SandboxFileError(errno.EIO, "the file operation was killed", path)
        if status == errno.EFBIG:
            raise OutputLimitExceeded(f"{path} in the box {self.id} is larger than the limit of the call")
        named = finished.err.decode("utf-8", "replace").rpartition(": ")[0] or path
        raise SandboxFileError(status, os.strerror(status), named)


async def finish(task: asyncio.Task[Any]) -> None:
    """Wait for a task to its end, also when cancelled meanwhile; the cancellation is raised after it."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


async def _in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(next, pieces, b""):
        yield piece


def _file_pieces(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while piece := file.read(256 << 10):
            yield piece
