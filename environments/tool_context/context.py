"""``ToolContext``: a verifier's hands in the box in which the agent worked.

Each method has an async twin with an ``a`` before its name. The plain ones may be used in ``compute_reward``,
``compute_group_rewards``, ``evaluate`` and ``prepare_box`` without ``await``, in threads, and in programs without an
event loop; none of them blocks an event loop (see ``bridge``).

What a verifier gets is not what the agent left prepared for it: before the first call the agent's processes are
killed and its shell session is dropped; commands run in the box's own environment, not in the session's; files come
raw, whole and unnumbered.

Failures of the command or the file are answers; a box that broke raises (``sandboxes.errors``), and so the rollout
counts as invalid and not as a score. A file that cannot be written raises, too: write what must stay hidden under a
name that an agent cannot have blocked.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from environments.tool_context import transfer
from environments.tool_context.bridge import run_from_sync
from environments.tools.base import ToolCallContext, ToolFailure
from environments.tools.registry import find_tool, run_tool, tools
from environments.tools.results import as_json
from environments.tools.workspaces import (
    BoxPlan,
    Workspace,
    WorkspaceError,
    WorkspaceScope,
    current_scope,
    workspace_of,
)
from sandboxes.base import SandboxSpec
from sandboxes.errors import OutputLimitExceeded, SandboxFileError

if TYPE_CHECKING:
    from sandboxes.base import Sandbox

T = TypeVar("T")

OUTPUT_BYTES = 10_000_000
"""How much of a command's output is kept: its head and its tail."""
SEARCH_LIMIT = 10_000
LARGE_BYTES = 1_000_000
"""Longer files are decoded in a thread, so that the event loop goes on."""


class ToolContext:
    """The box of the task ``task_id``; it opens at the first call where no tool opened it before."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._scope = current_scope()
        self._found: Workspace | None = None

    @classmethod
    def open(cls, backend: str = "auto", spec: SandboxSpec | None = None) -> Self:
        """A context over a fresh box of its own, for use outside environments; close it by ``cleanup`` or ``with``."""
        context = cls(str(uuid.uuid4()))
        context._scope = WorkspaceScope(BoxPlan(backend, spec or SandboxSpec()))
        return context

    # -- commands ------------------------------------------------------------------------------------------------

    async def aterminal(self, command: str, timeout: float = 180, *, user: str | None = None) -> dict[str, Any]:
        """Run shell text in a clean environment: ``{"output", "exit_code", "error"}``, always all three.

        Both streams come merged. ``exit_code`` is 124 after ``timeout`` seconds, and then ``error`` says so.
        ``user`` ``"root"`` keeps the command out of the agent's reach where the backend has more than one user.
        """
        box = await self._box()
        result = await box.exec(
            command,
            env=self._workspace.plan.grading_env,
            user=user,
            timeout_s=timeout,
            output_limit=OUTPUT_BYTES,
            merge_stderr=True,
        )
        error = f"timed out after {timeout:g} s" if result.timed_out else None
        return {"output": result.output, "exit_code": result.exit_code, "error": error}

    def terminal(self, command: str, timeout: float = 180, *, user: str | None = None) -> dict[str, Any]:
        """See ``aterminal``."""
        return self._wait(lambda: self.aterminal(command, timeout, user=user))

    # -- files ---------------------------------------------------------------------------------------------------

    async def aread_file(self, path: str) -> dict[str, Any]:
        """A text file: ``{"content", "total_lines", "file_size", "truncated"}``, always all four.

        ``content`` is the whole text, without line numbers. A file that cannot be read has an empty ``content``, and
        ``error`` beside it says why: not having made it is the agent's failure, not the verifier's.
        """
        box = await self._box()
        try:
            data = await box.read(await self._workspace.resolve(path))
        except (SandboxFileError, OutputLimitExceeded) as failure:
            return _file_content(b"") | {"error": str(failure)}
        return await asyncio.to_thread(_file_content, data) if len(data) > LARGE_BYTES else _file_content(data)

    def read_file(self, path: str) -> dict[str, Any]:
        """See ``aread_file``."""
        return self._wait(lambda: self.aread_file(path))

    async def awrite_file(self, path: str, content: str | bytes) -> dict[str, Any]:
        """Write a file, making its folders: ``{"bytes_written"}``. Raises: SandboxFileError."""
        box = await self._box()
        data = content.encode() if isinstance(content, str) else content
        await box.write(await self._workspace.resolve(path), data)
        return {"bytes_written": len(data)}

    def write_file(self, path: str, content: str | bytes) -> dict[str, Any]:
        """See ``awrite_file``."""
        return self._wait(lambda: self.awrite_file(path, content))

    async def aupload_file(self, local_path: str | Path, remote_path: str) -> dict[str, Any]:
        """Copy a file into the box. Raises: FileNotFoundError, SandboxFileError."""
        return await transfer.upload_file(await self._box(), Path(local_path), await self._path(remote_path))

    def upload_file(self, local_path: str | Path, remote_path: str) -> dict[str, Any]:
        """See ``aupload_file``."""
        return self._wait(lambda: self.aupload_file(local_path, remote_path))

    async def aupload_dir(self, local_dir: str | Path, remote_dir: str) -> list[dict[str, Any]]:
        """Copy a tree into the box; one report per file. Raises: NotADirectoryError, SandboxFileError."""
        return await transfer.upload_dir(await self._box(), Path(local_dir), await self._path(remote_dir))

    def upload_dir(self, local_dir: str | Path, remote_dir: str) -> list[dict[str, Any]]:
        """See ``aupload_dir``."""
        return self._wait(lambda: self.aupload_dir(local_dir, remote_dir))

    async def adownload_file(self, remote_path: str, local_path: str | Path) -> dict[str, Any]:
        """Copy a file out: ``{"success": True, "bytes"}`` or ``{"success": False, "error"}``."""
        return await transfer.download_file(await self._box(), await self._path(remote_path), Path(local_path))

    def download_file(self, remote_path: str, local_path: str | Path) -> dict[str, Any]:
        """See ``adownload_file``."""
        return self._wait(lambda: self.adownload_file(remote_path, local_path))

    async def adownload_dir(self, remote_dir: str, local_dir: str | Path) -> list[dict[str, Any]]:
        """Copy a tree out; one report per file. Nothing is written outside ``local_dir``."""
        return await transfer.download_dir(await self._box(), await self._path(remote_dir), Path(local_dir))

    def download_dir(self, remote_dir: str, local_dir: str | Path) -> list[dict[str, Any]]:
        """See ``adownload_dir``."""
        return self._wait(lambda: self.adownload_dir(remote_dir, local_dir))

    # -- tools ---------------------------------------------------------------------------------------------------

    async def asearch(self, query: str, path: str = ".") -> dict[str, Any]:
        """Lines that match a regular expression: ``{"total_count", "matches": [{"path", "line", "content"}]}``."""
        await self._box()
        arguments = {"pattern": query, "path": path, "limit": SEARCH_LIMIT}
        try:
            found = await run_tool(find_tool("search_files"), ToolCallContext(self._workspace), arguments)
        except ToolFailure as failure:
            return {"total_count": 0, "matches": [], "error": str(failure)}
        assert isinstance(found, Mapping)
        return dict(found)

    def search(self, query: str, path: str = ".") -> dict[str, Any]:
        """See ``asearch``."""
        return self._wait(lambda: self.asearch(query, path))

    async def acall_tool(self, tool_name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Any registered tool, as the agent would call it: the JSON text of its result or of ``{"error"}``."""
        try:
            tool = find_tool(tool_name)
            if tool.needs_box:
                await self._box()
            return as_json(await run_tool(tool, ToolCallContext(self._workspace), arguments))
        except ToolFailure as failure:
            return as_json({"error": str(failure)})

    def call_tool(self, tool_name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """See ``acall_tool``."""
        return self._wait(lambda: self.acall_tool(tool_name, arguments))

    async def aweb_search(self, query: str, limit: int = 5) -> dict[str, Any]:
        """The registered tool ``web_search``. Raises: ToolFailure where there is none, or it failed."""
        return await self._call_web("web_search", {"query": query, "limit": limit})

    def web_search(self, query: str, limit: int = 5) -> dict[str, Any]:
        """See ``aweb_search``."""
        return self._wait(lambda: self.aweb_search(query, limit))

    async def aweb_extract(self, urls: Sequence[str]) -> dict[str, Any]:
        """The registered tool ``web_extract``. Raises: ToolFailure where there is none, or it failed."""
        return await self._call_web("web_extract", {"urls": list(urls)})

    def web_extract(self, urls: Sequence[str]) -> dict[str, Any]:
        """See ``aweb_extract``."""
        return self._wait(lambda: self.aweb_extract(urls))

    # -- life ----------------------------------------------------------------------------------------------------

    async def acleanup(self) -> None:
        """Close the box. The task id refuses from now on; calling this again does nothing."""
        try:
            workspace = self._workspace
        except WorkspaceError:
            return
        await workspace.close()

    def cleanup(self) -> None:
        """See ``acleanup``."""
        self._wait(self.acleanup)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.acleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cleanup()

    @property
    def _workspace(self) -> Workspace:
        if self._found is None:
            self._found = workspace_of(self.task_id, self._scope)
        return self._found

    async def _box(self) -> Sandbox:
        box = await self._workspace.box()
        await self._workspace.end_agent_part()
        return box

    async def _path(self, path: str) -> str:
        return await self._workspace.resolve(path)

    async def _call_web(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name not in tools():
            raise ToolFailure(f"No tool {name!r} is registered; make one with environments.tools.register_tool.")
        found = await run_tool(find_tool(name), ToolCallContext(self._workspace), arguments)
        return dict(found) if isinstance(found, Mapping) else {"success": True, "data": found}

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            home = self._workspace.loop
        except WorkspaceError:
            home = None
        return run_from_sync(work, home)


def _file_content(data: bytes) -> dict[str, Any]:
    text = data.decode("utf-8", errors="replace")
    lines = len(text.splitlines())
    return {"content": text, "total_lines": lines, "file_size": len(data), "truncated": False}
