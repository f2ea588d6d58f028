"""Ctrl-C while a program still loads what it needs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130


@contextmanager
def loading() -> Iterator[None]:
    """Let Ctrl-C end the process at once, with exit code 130: there is nothing yet that would be lost.

    Libraries that are being imported take a ``KeyboardInterrupt`` for a fault of theirs, and say so at length.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
