"""Worker processes that can be killed.

Promises: a call that takes too long, takes too much memory or brings its process down costs that call and no other, and
is told by its index; no worker outlives this process. Workers are fresh interpreters: nothing is forked from a program
that has threads, and the caller's ``__main__`` does not run again.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, Final

from atroposlib.envs.reward_fns.workers.child import Batch
from atroposlib.envs.reward_fns.workers.outcomes import Call, Failed, Outcome
from atroposlib.envs.reward_fns.workers.threads import DaemonThreads

SETUP_LIMIT_S: Final = 180.0
"""For imports and models, on a machine that is busy."""
MEMORY_LIMIT: Final = 4 << 30
"""Bytes of data of one worker."""


Setup = tuple[Any, ...]
NO_SETUP: Final[Setup] = (bool,)


class Worker:
    """One process, and the socket that leads to it."""

    def __init__(self, memory_bytes: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "atroposlib.envs.reward_fns.workers.child", str(fd), str(memory_bytes)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[fd],
                start_new_session=True,  # an interrupt at the terminal is for the program that owns the workers
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, batch: bytes) -> None:
        """Give it a pickled ``Batch``; one that died is found out by the next ``outcome``."""
        try:
            self._connection.send_bytes(batch)
        except OSError:
            self._process.kill()

    def outcome(self, limit_s: float) -> tuple[Outcome, bool]:
        """What became of the next call, and whether the worker is still alive."""
        try:
            if self._connection.poll(limit_s):
                answer: Outcome = self._connection.recv()
                return answer, True
        except (EOFError, OSError):
            return Failed(self._epitaph()), False
        return Failed(f"took longer than {limit_s:g} s"), False

    def kill(self) -> None:
        """End it, and take its exit status; can be repeated, and called from any thread."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill it, and close the socket."""
        self.kill()
        self._connection.close()

    def _epitaph(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"ended its process with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return f"ended its process by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


class WorkerPool:
    """As many workers as there are cores, each started when it is first needed."""

    def __init__(self, workers: int | None = None, memory_bytes: int = MEMORY_LIMIT) -> None:
        self.size = workers or usable_cores()
        self.memory_bytes = memory_bytes
        self._threads = DaemonThreads(self.size, "reward-worker")
        self._local = threading.local()
        self._workers: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = False

    def pids(self) -> list[int]:
        """The processes there are at the moment."""
        with self._lock:
            return [worker.pid for worker in self._workers]

    def run(self, function: Callable[..., Any], calls: Sequence[Call], setup: Setup = NO_SETUP) -> list[Outcome]:
        """Call ``function`` for each of ``calls``, in order, in one worker; ``setup`` first (function, arguments).

        All of it is pickled: functions must be those of a module. Blocks; see ``arun``.
        """
        return self._submit(Batch(setup, function, calls), threading.Event()).result()

    async def arun(self, function: Callable[..., Any], calls: Sequence[Call], setup: Setup = NO_SETUP) -> list[Outcome]:
        """The same for the event loop; when it is cancelled, the call at hand is the last one."""
        abandoned = threading.Event()
        try:
            return await asyncio.wrap_future(self._submit(Batch(setup, function, calls), abandoned))
        except asyncio.CancelledError:
            abandoned.set()
            raise

    def close(self) -> None:
        """Kill every worker. What still runs or waits ends as ``Failed``; can be repeated."""
        self._closed = True
        self._threads.close()
        with self._lock:
            workers = [*self._workers]
        for worker in workers:
            worker.kill()

    def _submit(self, batch: Batch, abandoned: threading.Event) -> Future[list[Outcome]]:
        return self._threads.submit(self._work_off, batch, abandoned)

    def _work_off(self, batch: Batch, abandoned: threading.Event) -> list[Outcome]:
        outcomes: list[Outcome] = []
        while len(outcomes) < len(batch.calls):
            if abandoned.is_set() or self._closed:
                return outcomes + [Failed("was given up")] * (len(batch.calls) - len(outcomes))
            rest = Batch(batch.setup, batch.function, batch.calls[len(outcomes) :])
            outcomes += self._outcomes(rest, abandoned)
        return outcomes

    def _outcomes(self, batch: Batch, abandoned: threading.Event) -> list[Outcome]:
        """One outcome per call, up to the call that took the worker with it."""
        worker = self._worker()
        worker.send(pickle.dumps(batch))
        ready, alive = worker.outcome(SETUP_LIMIT_S)
        if isinstance(ready, Failed):
            if not alive:
                self._bury(worker)
            return [Failed(f"could not be set up: {ready.reason}")] * len(batch.calls)
        outcomes: list[Outcome] = []
        for call in batch.calls:
            outcome, alive = worker.outcome(call.limit_s)
            outcomes.append(outcome)
            if not alive or abandoned.is_set():
                self._bury(worker)
                break
        return outcomes

    def _worker(self) -> Worker:
        worker: Worker | None = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = Worker(self.memory_bytes)
            with self._lock:
                self._workers.add(worker)
        return worker

    def _bury(self, worker: Worker) -> None:
        self._local.worker = None
        with self._lock:
            self._workers.discard(worker)
        worker.close()


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


_shared: dict[int, WorkerPool] = {}
_sharing = threading.Lock()


def shared_pool() -> WorkerPool:
    """The pool of this process; it is closed at exit. A forked child gets one of its own."""
    with _sharing:
        if os.getpid() not in _shared:
            _shared[os.getpid()] = pool = WorkerPool()
            atexit.register(pool.close)
        return _shared[os.getpid()]
