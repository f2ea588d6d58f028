"""Work that several threads need and one does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Once(Generic[K]):
    """Whoever asks for what is being done waits for it and shares its end; afterwards it may be done again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[K, Future[None]] = {}

    def run(self, key: K, work: Callable[[], None]) -> None:
        """Do ``work``, unless it is under way. Blocks. Raises: what the work raises."""
        with self._lock:
            under_way = self._running.get(key)
            mine = self._running.setdefault(key, Future())
        if under_way is not None:
            return under_way.result()
        try:
            work()
            mine.set_result(None)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._running[key]
