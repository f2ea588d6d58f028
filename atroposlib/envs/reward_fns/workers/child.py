"""The program of a worker process: ``python -m atroposlib.envs.reward_fns.workers.child FD MEMORY_BYTES``.

It reads batches from the socket FD and answers one outcome for the setup and one for each call. It ends when the socket
closes; the kernel ends it with its parent (Linux), and what computes on without a parent ends by its limit of CPU time.
"""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from atroposlib.envs.reward_fns.workers.outcomes import Call, Done, Failed, Outcome, reason_of

_PR_SET_PDEATHSIG: Final = 1
_inside = False


@dataclass(frozen=True)
class Batch:
    """``setup[0](*setup[1:])``, then ``function`` for each of ``calls``; functions are pickled by name."""

    setup: tuple[Any, ...]
    function: Callable[..., Any]
    calls: Sequence[Call]


def inside() -> bool:
    """Whether this process is a worker, which may compute for as long as it likes: it is killed if that is too long."""
    return _inside


def main(fd: int, memory_bytes: int) -> None:
    """Serve until the other end of the socket is closed."""
    global _inside
    _inside = True
    _die_with_parent()
    _limit(resource.RLIMIT_DATA, memory_bytes)
    _limit(resource.RLIMIT_CORE, 0)
    logging.getLogger().addHandler(logging.NullHandler())  # what a library logs about a strange answer is no news
    with Connection(fd) as connection:
        while True:
            try:
                blob = connection.recv_bytes()
            except EOFError:
                return
            _serve(connection, blob)


def _serve(connection: Connection, blob: bytes) -> None:
    unpacked = attempt(pickle.loads, blob)  # its modules are imported here
    if isinstance(unpacked, Failed):
        connection.send(unpacked)
        return
    batch: Batch = unpacked.value
    ready = attempt(*batch.setup)
    connection.send(ready)
    if isinstance(ready, Failed):
        return
    for call in batch.calls:
        _limit_cpu_time(call.limit_s)
        connection.send(attempt(batch.function, *call.args))


def attempt(function: Callable[..., Any], *args: Any) -> Outcome:
    """Call it; what it raises becomes the reason of a ``Failed``."""
    began = time.perf_counter()
    try:
        value = function(*args)
    except Exception as error:  # noqa: BLE001 (the boundary of one call: the reason is sent to the caller)
        return Failed(reason_of(error))
    return Done(value, time.perf_counter() - began)


def _limit_cpu_time(seconds: float) -> None:
    """Far more than the caller's own clock allows: it counts only where no caller is left."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cores = os.cpu_count() or 1
    _limit(resource.RLIMIT_CPU, int(spent.ru_utime + spent.ru_stime + (seconds + 5) * cores) + 1)


def _limit(what: int, most: int) -> None:
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    # the class that is pickled must be the one of the imported module, not of __main__
    from atroposlib.envs.reward_fns.workers import child

    child.main(int(sys.argv[1]), int(sys.argv[2]))
