"""A few daemon threads over one queue.

Promise: a function that never returns takes one thread, and neither the event loop nor the end of the program waits
for it (the executors of the standard library join their threads at exit).
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_Work = tuple["Future[Any]", Callable[[], Any]]


class DaemonThreads:
    """At most ``count`` threads, started as they are needed; what is submitted meanwhile waits its turn."""

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self.name = name
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, function: Callable[..., T], *args: Any) -> Future[T]:
        """Run ``function(*args)`` in the context variables of the caller."""
        future: Future[T] = Future()
        context = contextvars.copy_context()
        with self._lock:
            if self._idle <= self._queue.qsize() and len(self._threads) < self.count:
                self._start_thread()
            self._queue.put((future, lambda: context.run(function, *args)))
        return future

    def close(self) -> None:
        """End the threads once they are idle; what was submitted before is still done."""
        with self._lock:
            for _ in self._threads:
                self._queue.put(None)
            self._threads.clear()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"{self.name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        self._idle += 1
        thread.start()

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            with self._lock:
                self._idle -= 1
            _complete(*work)
            del work  # a future keeps its result alive
            with self._lock:
                self._idle += 1


def _complete(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 (it rises where the result is awaited)
        future.set_exception(error)
    else:
        future.set_result(result)
