"""A file of lines that are whole, whatever becomes of the disk or of the process that writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final


class LineFile:
    """Lines at the end of a file, each written at once and handed to the system before ``append`` returns.

    A line that a killed process cut is ended first, so that it spoils no other.
    Raises: OSError, as does ``append``; FileExistsError where the file has to be ``new``.
    """

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self.path: Final = path
        self._file = path.open("x+b" if new else "a+b", buffering=0)
        if self._ends_within_a_line():
            self.append(b"")

    def append(self, line: bytes) -> None:
        """Write ``line``, which holds no line break, and end it; what finds no room leaves nothing behind."""
        start = self._file.seek(0, os.SEEK_END)
        rest = memoryview(line + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(start)
            raise

    def close(self) -> None:
        """May be called twice."""
        self._file.close()

    def _ends_within_a_line(self) -> bool:
        size = self._file.seek(0, os.SEEK_END)
        return size > 0 and os.pread(self._file.fileno(), 1, size - 1) != b"\n"
