"""The workspaces of running tasks: the box in which a task's tools act, found by the task's id.

Promises:

- one task, one box; it opens at its first use and never twice;
- whatever a ``workspace_scope`` saw opened is closed when the scope ends, also when it is cancelled;
- a closed task id refuses: no late call of an abandoned rollout opens a second box.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from environments.tools.todo import TodoList

if TYPE_CHECKING:
    from sandboxes import Sandbox, SandboxSpec
    from sandboxes.base import Shell

logger = logging.getLogger(__name__)

REMEMBERED_CLOSED_IDS = 100_000


class WorkspaceError(RuntimeError):
    """A task has no workspace, or no longer has one."""


class WorkspaceClosed(WorkspaceError):
    """The task is over: its box is gone, and its id is not given out again."""


@dataclass(frozen=True)
class BoxPlan:
    """How the box of a task is made, once it is needed."""

    backend: str
    spec: SandboxSpec
    command_timeout_s: float = 120.0
    """How long a command of the agent may run where the model names no timeout."""
    prepare: Callable[[Sandbox], Awaitable[None]] | None = None
    """Puts into the fresh box what the task starts from, before its first command."""


class Workspace:
    """The box, the shell session and the notes of one task."""

    def __init__(self, task_id: str, plan: BoxPlan) -> None:
        self.task_id = task_id
        self.plan = plan
        self.todos = TodoList()
        self.saved_results = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop that the box lives on."""
        self._box: Sandbox | None = None
        self._shell: Shell | None = None
        self._home: str | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._grading = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def opened(self) -> bool:
        """Whether the box was ever needed."""
        return self._box is not None

    async def box(self) -> Sandbox:
        """The box, opened and prepared at the first call.

        Raises: WorkspaceClosed; what the backend raises where it cannot start one; what ``plan.prepare`` raises.
        """
        async with self._opening:
            self._refuse_closed()
            if self._box is None:
                self._box = await self._open()
                self.loop = asyncio.get_running_loop()
            return self._box

    async def shell(self) -> Shell:
        """The agent's session: its folder and its exported variables last from call to call."""
        box = await self.box()
        if self._grading:
            raise WorkspaceClosed(f"The agent's part of task {self.task_id} is over.")
        if self._shell is None:
            self._shell = box.shell()
        return self._shell

    async def end_agent_part(self) -> None:
        """Kill what the agent left running and drop its session, so that neither is there during grading."""
        self._grading = True
        self._shell = None
        if self._box is not None and not self._closed:
            await self._box.kill_all()

    def absolute(self, path: str) -> str:
        """``path`` as the box sees it: relative paths start at the working folder."""
        return posixpath.normpath(posixpath.join(self.plan.spec.workdir, path))

    async def resolve(self, path: str) -> str:
        """As ``absolute``, with a leading ``~`` replaced by the home of the box's user."""
        if path == "~" or path.startswith("~/"):
            path = await self._home_folder() + path[1:]
        return self.absolute(path)

    async def close(self) -> None:
        """Close the box; it is removed even where the caller is cancelled meanwhile. May be called again."""
        self._closed = True
        _directory.forget(self.task_id)
        await finish(self._close_box())

    async def _open(self) -> Sandbox:
        from sandboxes import start_sandbox

        box = await start_sandbox(self.plan.backend, self.plan.spec)
        try:
            if self.plan.prepare is not None:
                await self.plan.prepare(box)
            self._refuse_closed()
        except BaseException:
            await finish(box.close())
            raise
        return box

    async def _close_box(self) -> None:
        # An open in progress holds the lock; it sees that the workspace is closed and removes its own box.
        async with self._opening:
            box, self._box, self._shell = self._box, None, None
        if box is not None:
            await box.close()

    async def _home_folder(self) -> str:
        if self._home is None:
            box = await self.box()
            result = await box.exec(["sh", "-c", 'printf %s "$HOME"'], timeout_s=30)
            self._home = result.stdout.decode() or "/"
        return self._home

    def _refuse_closed(self) -> None:
        if self._closed:
            raise WorkspaceClosed(f"Task {self.task_id} is closed: its box is gone.")


async def finish(work: Awaitable[None]) -> None:
    """Await ``work`` to its end although the caller is cancelled, then pass the cancellation on."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled() and (failure := task.exception()) is not None:
        logger.error("Closing failed during a cancellation", exc_info=failure)
    raise cancelled


class _Directory:
    """Task id → workspace, for the whole process: a ``ToolContext`` knows nothing but the id."""

    def __init__(self) -> None:
        self._open: dict[str, Workspace] = {}
        self._closed: dict[str, None] = {}

    def find(self, task_id: str) -> Workspace | None:
        """Raises: WorkspaceClosed for a task that is over."""
        if task_id in self._closed:
            raise WorkspaceClosed(f"Task {task_id} is closed: its box is gone.")
        return self._open.get(task_id)

    def add(self, workspace: Workspace) -> None:
        self._open[workspace.task_id] = workspace

    def forget(self, task_id: str) -> None:
        self._open.pop(task_id, None)
        self._closed[task_id] = None
        if len(self._closed) > REMEMBERED_CLOSED_IDS:
            del self._closed[next(iter(self._closed))]


_directory = _Directory()


@dataclass
class WorkspaceScope:
    """Who owns the workspaces that are made while it lasts."""

    plan: BoxPlan
    workspaces: dict[str, Workspace] = field(default_factory=dict)

    def bind(self, task_id: str, plan: BoxPlan) -> Workspace:
        """Plan a box for ``task_id``. Raises: WorkspaceError where the task has one already."""
        if _directory.find(task_id) is not None:
            raise WorkspaceError(f"Task {task_id} has a workspace already; bind an item before its first tool call.")
        workspace = Workspace(task_id, plan)
        self.workspaces[task_id] = workspace
        _directory.add(workspace)
        return workspace

    async def close(self) -> None:
        """Close every workspace; the first error is raised after all were tried."""
        results: list[Any] = await asyncio.gather(
            *(workspace.close() for workspace in self.workspaces.values()), return_exceptions=True
        )
        self.workspaces.clear()
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure


_scope: ContextVar[WorkspaceScope | None] = ContextVar("workspace_scope", default=None)


@contextlib.asynccontextmanager
async def workspace_scope(plan: BoxPlan) -> AsyncIterator[WorkspaceScope]:
    """Tasks first heard of inside get a box made after ``plan``; all of them are closed at the end."""
    scope = WorkspaceScope(plan)
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)
        await finish(scope.close())


def current_scope() -> WorkspaceScope | None:
    """The innermost scope of the calling task."""
    return _scope.get()


def workspace_of(task_id: str) -> Workspace:
    """The workspace of a task, planned after the current scope where the task is new.

    Raises: WorkspaceClosed for a task that is over; WorkspaceError outside every scope.
    """
    workspace = _directory.find(task_id)
    if workspace is not None:
        return workspace
    scope = _scope.get()
    if scope is None:
        raise WorkspaceError(
            f"No sandbox is planned for task {task_id}. Inside an environment there always is one; elsewhere write "
            "`async with workspace_scope(BoxPlan(backend, SandboxSpec())):` around the loop "
            "(environments.tools.workspaces)."
        )
    return scope.bind(task_id, scope.plan)
