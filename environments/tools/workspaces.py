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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from environments.tools.todo import TodoList
from sandboxes.errors import SandboxError, SandboxStartError

if TYPE_CHECKING:
    from sandboxes.base import Sandbox, SandboxSpec, Shell

logger = logging.getLogger(__name__)

REMEMBERED_CLOSED_IDS = 100_000
NO_SCOPE = (
    "No sandbox is planned for task {}. Inside an environment there always is one; elsewhere write "
    "`async with workspace_scope(BoxPlan(backend, SandboxSpec())):` around the loop, or "
    "`with ToolContext.open(backend) as ctx:`."
)


class WorkspaceError(RuntimeError):
    """A task has no workspace, or no longer has one."""


class WorkspaceClosed(WorkspaceError):
    """The task is over: its box is gone, and its id is not given out again."""


class WorkspaceNotPrepared(WorkspaceError):
    """``plan.prepare`` failed: the box does not hold what the task starts from. The cause is its own error."""


@dataclass(frozen=True)
class BoxPlan:
    """How the box of a task is made, once it is needed."""

    backend: str
    spec: SandboxSpec
    command_timeout_s: float = 120.0
    """How long a command of the agent may run where the model names no timeout."""
    prepare: Callable[[Workspace], Awaitable[None]] | None = None
    """Puts into the fresh box what the task starts from, before its first command."""
    grading_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the commands that a verifier runs."""
    take: Callable[[SandboxSpec, str], Awaitable[Sandbox]] | None = None
    """Gives the task that is named a box which nobody used before. None: one is started by the backend."""


class Workspace:
    """The box, the shell session and the notes of one task. Without a plan it has no box."""

    def __init__(self, task_id: str, plan: BoxPlan | None, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.task_id = task_id
        self._plan = plan
        self.loop = loop
        """The event loop that the box lives on; None: the one that opens it."""
        self.todos = TodoList()
        self.saved_results = 0
        self._box: Sandbox | None = None
        self._shell: Shell | None = None
        self._home: str | None = None
        self._lock = asyncio.Lock()
        self._closed = False
        self._agent_acted = False

    @property
    def plan(self) -> BoxPlan:
        """Raises: WorkspaceError where the task has no box."""
        if self._plan is None:
            raise WorkspaceError(NO_SCOPE.format(self.task_id))
        return self._plan

    @property
    def has_box(self) -> bool:
        """Whether the box was needed so far."""
        return self._box is not None

    async def box(self) -> Sandbox:
        """The box, opened and prepared at the first call.

        Raises: WorkspaceClosed; WorkspaceNotPrepared; SandboxError where the backend cannot start one.
        """
        if self._is_preparing and self._box is not None:
            return self._box
        async with self._lock:
            self._refuse_closed()
            if self._box is None:
                await self._open()
            assert self._box is not None
            return self._box

    async def shell(self) -> Shell:
        """The session: its folder and its exported variables last from call to call."""
        box = await self.box()
        if self._shell is None:
            self._shell = box.shell()
        return self._shell

    def agent_acts(self) -> None:
        """Note that the agent, not a verifier, is about to use the box."""
        self._agent_acted = True

    async def end_agent_part(self) -> None:
        """Kill what the agent left running and drop its session; nothing where it did not act since the last time."""
        if not self._agent_acted or self._is_preparing:
            return
        async with self._lock:
            self._refuse_closed()
            self._shell, self._agent_acted = None, False
            if self._box is not None:
                await self._box.kill_all()

    @property
    def _is_preparing(self) -> bool:
        """Whether ``plan.prepare`` is running here: it may use the box that nobody else may use yet."""
        return _preparing.get() is self

    def absolute(self, path: str) -> str:
        """``path`` as the box sees it: relative paths start at the working folder."""
        return posixpath.normpath(posixpath.join(self.plan.spec.workdir, path))

    async def resolve(self, path: str) -> str:
        """The absolute path of what an agent names: ``~`` is its home, relative paths start where its session is."""
        if path == "~" or path.startswith("~/"):
            path = await self._home_folder() + path[1:]
        return self.absolute(posixpath.join(await self.folder(), path))

    async def folder(self) -> str:
        """The folder that the session is in; the working folder where there is no session."""
        if self._shell is None:
            return self.plan.spec.workdir
        result = await self._shell.run("command pwd", timeout_s=30)
        return result.output.strip() if result.exit_code == 0 else self.plan.spec.workdir

    async def close(self) -> None:
        """Close the box; it is removed even where the caller is cancelled meanwhile. May be called again."""
        self._closed = True
        _directory.forget(self.task_id)
        await finish(self._close_box())

    async def _open(self) -> None:
        self._box = await self._started()
        self.loop = asyncio.get_running_loop()
        token = _preparing.set(self)
        try:
            await self._prepare()
            self._refuse_closed()
        except BaseException:
            box, self._box = self._box, None
            await finish(box.close())
            raise
        finally:
            _preparing.reset(token)

    async def _started(self) -> Sandbox:
        from sandboxes import start_sandbox

        try:
            if self.plan.take is not None:
                return await self.plan.take(self.plan.spec, self.task_id)
            return await start_sandbox(self.plan.backend, self.plan.spec)
        except SandboxError:
            raise
        except Exception as error:  # no model is to blame for a fault of a backend, whatever it raises
            raise SandboxStartError(f"{self.plan.backend} started no box: {type(error).__name__}: {error}") from error

    async def _prepare(self) -> None:
        if self.plan.prepare is None:
            return
        try:
            await self.plan.prepare(self)
        except Exception as error:
            raise WorkspaceNotPrepared(f"Preparing the box failed: {type(error).__name__}: {error}") from error

    async def _close_box(self) -> None:
        # An opening in progress holds the lock; it sees that the workspace is closed and removes its own box.
        async with self._lock:
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


_preparing: ContextVar[Workspace | None] = ContextVar("preparing_workspace", default=None)


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

    def of_loop(self, loop: asyncio.AbstractEventLoop) -> list[Workspace]:
        return [workspace for workspace in self._open.values() if workspace.loop is loop]

    def boxes(self) -> int:
        return sum(workspace.has_box for workspace in self._open.values())

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
    loop: asyncio.AbstractEventLoop | None = None
    workspaces: dict[str, Workspace] = field(default_factory=dict)

    def bind(self, task_id: str, plan: BoxPlan) -> Workspace:
        """Plan a box for ``task_id``. Raises: WorkspaceError where the task has one already."""
        if _directory.find(task_id) is not None:
            raise WorkspaceError(f"Task {task_id} has a workspace already; bind an item before its first tool call.")
        workspace = Workspace(task_id, plan, self.loop)
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
    scope = WorkspaceScope(plan, asyncio.get_running_loop())
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        _scope.reset(token)
        await finish(scope.close())


def open_boxes() -> int:
    """How many boxes this process holds open now."""
    return _directory.boxes()


def current_scope() -> WorkspaceScope | None:
    """The innermost scope of the calling task."""
    return _scope.get()


def workspace_of(task_id: str, scope: WorkspaceScope | None = None) -> Workspace:
    """The workspace of a task, planned after ``scope`` (or the current one) where the task is new.

    Raises: WorkspaceClosed for a task that is over; WorkspaceError outside every scope.
    """
    workspace = _directory.find(task_id)
    if workspace is not None:
        return workspace
    scope = scope or _scope.get()
    if scope is None:
        raise WorkspaceError(NO_SCOPE.format(task_id))
    return scope.bind(task_id, scope.plan)


async def close_workspaces_of(loop: asyncio.AbstractEventLoop) -> None:
    """Close every workspace whose box lives on ``loop``, which is about to end."""
    for workspace in _directory.of_loop(loop):
        await workspace.close()
