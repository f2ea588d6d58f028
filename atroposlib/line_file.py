"""Files of lines: whole ones, whatever becomes of the disk or of the process that writes them; and their JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from atroposlib.errors import ConfigError


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


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The value of each line that is not blank, with the number of the line, from 1.

    Raises: ConfigError, which names the file, where it cannot be read, or the line that is not JSON.
    """
    try:
        with path.open("rb") as lines:
            yield from ((number, _value(line, path, number)) for number, line in enumerate(lines, 1) if line.strip())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def _value(line: bytes, path: Path, number: int) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}: line {number} is not JSON ({error})") from None
