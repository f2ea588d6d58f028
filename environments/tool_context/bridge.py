"""Synchronous calls over an asynchronous core, without blocking the event loop.

``ctx.terminal("pytest")`` written without ``await`` inside an ``async def compute_reward`` suspends that one task, as
an ``await`` would: the coroutine runs in a greenlet (greenback), whose switch back to the loop is the wait.
Cancellation, ``asyncio.timeout`` and context variables behave as with ``await``.

Where a synchronous call is made, and what it does:

- in a function that was started by ``bridged``, or in a child task of one: suspends the task;
- in a worker thread: blocks that thread, the work runs on the event loop of the box;
- in a program without an event loop: blocks, the work runs on one background loop;
- in any other task: ``BridgeError``, since waiting there would stop every other rollout.

Mind that each such call is a point where other rollouts go on: hold no ``threading.Lock`` over it, and let a bare
``except:`` around it re-raise ``CancelledError``.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

import greenback

from environments.tools.workspaces import close_workspaces_of

T = TypeVar("T")
AnyFunction = Callable[..., Any]

_home: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("bridge_home", default=None)
"""The loop on which a bridged function runs; its threads and child tasks inherit it."""


class BridgeError(RuntimeError):
    """A synchronous call was made where it would block the event loop."""


async def bridged(function: AnyFunction, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` (async or not) so that it, and tasks it makes, may use the synchronous calls."""
    loop = asyncio.get_running_loop()
    _bridge_children(loop)
    token = _home.set(loop)
    try:
        return await greenback.with_portal_run(_call, function, args, kwargs)
    finally:
        _home.reset(token)


def bridged_method(function: AnyFunction) -> AnyFunction:
    """``function`` as a coroutine function that always runs bridged; one that already is stays as it is."""
    if getattr(function, "__bridged__", False):
        return function

    @functools.wraps(function)
    async def run_bridged(*args: Any, **kwargs: Any) -> Any:
        return await bridged(function, *args, **kwargs)

    run_bridged.__bridged__ = True  # type: ignore[attr-defined]
    return run_bridged


def run_from_sync(work: Callable[[], Coroutine[Any, Any, T]], home: asyncio.AbstractEventLoop | None = None) -> T:
    """The result of ``work()``, awaited from synchronous code. ``home``: the loop that its resources live on.

    Raises: BridgeError in a task that is not bridged; what the work raises.
    """
    if _in_loop():
        if not greenback.has_portal():
            raise BridgeError(
                "A synchronous ctx call in a task that is not bridged would block the event loop: await the async "
                "form (`await ctx.aterminal(...)`), or start the function with `await bridged(function, ...)`."
            )
        return greenback.await_(work())
    loop = home or _home.get()
    if loop is None or not loop.is_running():
        loop = _background.loop()
    return asyncio.run_coroutine_threadsafe(work(), loop).result()


async def _call(function: AnyFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _bridge_children(loop: asyncio.AbstractEventLoop) -> None:
    """Let tasks that are made by bridged code be bridged as well; other tasks of the loop stay as they are."""
    inner = loop.get_task_factory()
    if not isinstance(inner, _ChildTasks):
        loop.set_task_factory(_ChildTasks(inner))


class _ChildTasks:
    """A task factory over the loop's own."""

    def __init__(self, inner: AnyFunction | None) -> None:
        self._inner = inner

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Future[Any]:
        work = coro
        bridge = _home.get() is loop and inspect.iscoroutine(coro)
        if bridge:
            work = greenback.with_portal_run(_wait_for, coro)
        task: asyncio.Future[Any]
        task = self._inner(loop, work, **kwargs) if self._inner else asyncio.Task(work, loop=loop, **kwargs)
        if bridge:
            # a task cancelled before its first step never starts the inner coroutine
            task.add_done_callback(lambda _: coro.close())
        return task


async def _wait_for(work: Awaitable[Any]) -> Any:
    return await work


class _BackgroundLoop:
    """The event loop of programs that have none, in a thread that starts at first use and ends with the program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="sync-bridge", daemon=True).start()
                atexit.register(self._close_boxes, self._loop)
            return self._loop

    @staticmethod
    def _close_boxes(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.run_coroutine_threadsafe(close_workspaces_of(loop), loop).result()


_background = _BackgroundLoop()
