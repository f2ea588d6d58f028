"""Trees of files as a stream of records (``runner/src/files.h``): the host's side of upload and download.

Synchronous; callers run it in a thread, piece by piece. What a box sends is not trusted: nothing is written outside the
target, whatever the names and links in the stream say.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandboxes.errors import OutputLimitExceeded, SandboxFileError

logger = logging.getLogger(__name__)

_RECORD = struct.Struct("<cIQI")
_BLOCK = 256 << 10
_PATH_LIMIT = 4096
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Record:
    """One entry of a tree: ``f``, ``d``, ``l`` or the end ``e``; ``path`` is relative, empty for the root itself."""

    kind: bytes
    mode: int
    size: int
    path: str

    def encode(self) -> bytes:
        """The header; ``size`` bytes follow it."""
        path = os.fsencode(self.path)
        return _RECORD.pack(self.kind, self.mode & 0o777, self.size, len(path)) + path


# ---- host to box


class TreeReader:
    """Reads a tree of the host. Links that lead out of it, sockets, pipes and devices are left out, with a warning."""

    def __init__(self, source: Path) -> None:
        self.files = 0
        self._source = source

    def pieces(self) -> Iterator[bytes]:
        """The stream, in pieces of about 256 KiB. Raises: OSError."""
        gathered = bytearray()
        for part in self._parts(self._source, ""):
            gathered += part
            if len(gathered) >= _BLOCK:
                yield bytes(gathered)
                gathered.clear()
        yield bytes(gathered) + Record(b"e", 0, 0, "").encode()

    def _parts(self, folder: Path, relative: str) -> Iterator[bytes]:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                yield from self._entry(entry, f"{relative}/{entry.name}" if relative else entry.name)

    def _entry(self, entry: os.DirEntry[str], path: str) -> Iterator[bytes]:
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield Record(b"d", mode, 0, path).encode()
            yield from self._parts(Path(entry.path), path)
        elif stat.S_ISREG(mode):
            self.files += 1
            yield from read_file_record(Path(entry.path), path)
        elif stat.S_ISLNK(mode) and stays_inside(path, os.readlink(entry.path)):
            self.files += 1
            target = os.fsencode(os.readlink(entry.path))
            yield Record(b"l", 0o777, len(target), path).encode() + target
        else:
            logger.warning("%s is not copied into the box: a special file, or a link that leads out of the tree", path)


def read_file_record(file_path: Path, path: str) -> Iterator[bytes]:
    """A file as a record; one that shrinks meanwhile is filled up with zeros, since its size was promised."""
    with file_path.open("rb") as file:
        status = os.fstat(file.fileno())
        yield Record(b"f", status.st_mode, status.st_size, path).encode()
        left = status.st_size
        while left:
            data = file.read(min(left, _BLOCK)) or bytes(min(left, _BLOCK))
            yield data
            left -= len(data)


def stays_inside(path: str, target: str) -> bool:
    """Whether the link at ``path`` of a tree to ``target`` leads to a place in the same tree, by its text."""
    if target.startswith("/"):
        return False
    resolved = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return resolved != ".." and not resolved.startswith("../")


# ---- box to host


class TreeWriter:
    """Writes a stream of records to ``target``: a new file, or a folder and what is below it."""

    def __init__(self, target: Path, *, limit: int) -> None:
        self.files = 0
        self._target = target
        self._limit = limit
        self._bytes = bytearray()
        self._record: Record | None = None
        self._left = 0
        self._file: int | None = None
        self._link = bytearray()
        self._links: list[tuple[str, str]] = []
        self._ended = False

    def feed(self, data: bytes) -> None:
        """The next bytes of the stream.

        Raises: SandboxFileError for a stream that is not well formed, OutputLimitExceeded, OSError.
        """
        self._bytes += data
        while self._step():
            continue

    def finish(self) -> None:
        """The stream ended: make the links. Raises: SandboxFileError where its end is missing."""
        if not self._ended:
            raise _malformed("the stream ended early")
        for path, target in self._links:
            self._make_link(path, target)
        root = os.path.realpath(self._target)
        for path, _ in self._links:
            # Only now, since a link may lead through another one.
            if os.path.commonpath([root, os.path.realpath(self._target / path)]) != root:
                (self._target / path).unlink()
                self.files -= 1
                logger.warning("the link %s is not copied out of the box: it leads out of the tree", path)

    def close(self) -> None:
        """Close what is open. May be called again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _step(self) -> bool:
        if self._record is not None:
            return self._take_content(self._record)
        record = self._next_record()
        if record is None:
            return False
        if record.kind == b"e":
            self._ended = True
            return False
        self._begin(record)
        return True

    def _next_record(self) -> Record | None:
        if self._ended or len(self._bytes) < _RECORD.size:
            return None
        kind, mode, size, path_length = _RECORD.unpack_from(self._bytes)
        if path_length > _PATH_LIMIT:
            raise _malformed("a path is too long")
        end = _RECORD.size + path_length
        if len(self._bytes) < end:
            return None
        path = os.fsdecode(bytes(self._bytes[_RECORD.size : end]))
        del self._bytes[:end]
        _check_path(path)
        return Record(kind, mode & 0o777, size, path)

    def _begin(self, record: Record) -> None:
        self._limit -= record.size
        if self._limit < 0:
            raise OutputLimitExceeded("what is to be copied out of the box is larger than the limit of the call")
        self._left = record.size
        if record.kind == b"d":
            self._make_folder(record)
        elif record.kind == b"f":
            self._file = self._create(record)
            self._record = record
        elif record.kind == b"l" and record.size < _PATH_LIMIT and record.path:
            self._record = record
        else:
            raise _malformed(f"an entry of kind {record.kind!r}")

    def _take_content(self, record: Record) -> bool:
        data = bytes(self._bytes[: self._left])
        del self._bytes[: self._left]
        self._left -= len(data)
        if self._file is not None:
            _write_all(self._file, data)
        else:
            self._link += data
        if self._left:
            return False
        self._end_content(record)
        return True

    def _end_content(self, record: Record) -> None:
        if self._file is not None:
            os.fchmod(self._file, record.mode)
        else:
            self._links.append((record.path, os.fsdecode(bytes(self._link))))
            self._link.clear()
        self.close()
        self._record = None
        self.files += 1

    def _make_folder(self, record: Record) -> None:
        if not record.path:
            self._target.mkdir(parents=True, exist_ok=True)
            return
        parent, name = self._open_parent(record.path)
        try:
            if not _is_folder(name, parent):
                os.mkdir(name, dir_fd=parent)
            folder = os.open(name, _FOLDER_FLAGS, dir_fd=parent)
            os.fchmod(folder, record.mode | 0o700)
            os.close(folder)
        finally:
            os.close(parent)

    def _create(self, record: Record) -> int:
        if not record.path:
            self._target.parent.mkdir(parents=True, exist_ok=True)
        parent, name = self._open_parent(record.path)
        try:
            _remove(name, parent)
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
        finally:
            os.close(parent)

    def _make_link(self, path: str, target: str) -> None:
        parent, name = self._open_parent(path)
        try:
            _remove(name, parent)
            os.symlink(target, name, dir_fd=parent)
        finally:
            os.close(parent)

    def _open_parent(self, path: str) -> tuple[int, str]:
        """The folder of ``path``, entered part by part without following a link, and its last part."""
        if not path:
            return os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), self._target.name
        *parts, name = PurePosixPath(path).parts
        folder = os.open(self._target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in parts:
            try:
                below = os.open(part, _FOLDER_FLAGS, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
        return folder, name


def _check_path(path: str) -> None:
    if path and (path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in path.split("/"))):
        raise _malformed(f"the path {path!r}")


def _malformed(what: str) -> SandboxFileError:
    return SandboxFileError(errno.EPROTO, f"what the box sent is not a tree of files: {what}")


def _is_folder(name: str, parent: int) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _remove(name: str, parent: int) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
