"""Groups on disk: one JSON line each, whole as soon as it is finished, at the end in the order of their items."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from atroposlib.envs.workers import uninterrupted
from atroposlib.errors import ConfigError
from atroposlib.line_file import LineFile, json_lines
from atroposlib.tracking import encode_json
from atroposlib.wire import GROUP_KEYS, IGNORED_MASK

logger = logging.getLogger(__name__)

_SHOWN_CHARS = 4000


def free_path(path: Path) -> Path:
    """``path``, or where that exists already, the first free one of ``stem_1``, ``stem_2``, ..."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem}_{number}{path.suffix}")
    return candidate


@contextmanager
def writing(setting: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Raises: ConfigError, which names the setting, where the system refuses to write (the disk is full, …)."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{setting}: cannot write to {path}: {error.strerror or error}") from error


def check_writable(folder: Path, setting: str) -> None:
    """Make ``folder``, and a file in it for a moment. Raises: ConfigError that names the setting."""
    probe = folder / f".writable-{os.getpid()}"
    with writing(setting, folder):
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()


class GroupRecorder:
    """Writes groups to a JSONL file that did not exist before, each as soon as it is finished.

    So a process that is killed leaves every group that it finished, in whole lines. ``close`` puts those that came with
    the number of their item into the order of numbers. The file appears with the first group. What is kept in memory
    are two integers for each numbered group.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.wanted_path = Path(path)
        self.path: Path | None = None
        """The file, once there is one."""
        self.written = 0
        self._file: LineFile | None = None
        self._lock = threading.Lock()
        self._size = 0
        self._numbers = array("q")
        self._starts = array("q")

    def write(self, group: Mapping[str, Any], number: int | None = None) -> None:
        """Write one group now. Safe from any thread. Raises: ConfigError where it cannot be written.

        A group without ``number`` stays behind the one that came before it.
        """
        line = encode_json({**dict.fromkeys(GROUP_KEYS), **group})
        with self._lock:
            with writing("--env.data_path_to_save_groups", self.path or self.wanted_path):
                (self._file or self._open()).append(line)
            if number is not None:
                self._numbers.append(number)
                self._starts.append(self._size)
            self._size += len(line) + 1
            self.written += 1

    def _open(self) -> LineFile:
        self.wanted_path.parent.mkdir(parents=True, exist_ok=True)
        self.path = free_path(self.wanted_path)
        self._file = LineFile(self.path, new=True)
        kept = "" if self.path == self.wanted_path else f"; what earlier runs wrote to {self.wanted_path} is kept"
        logger.info("groups go to %s%s", self.path, kept)
        return self._file

    async def record(self, group: Mapping[str, Any], number: int | None = None) -> None:
        """``write`` off the event loop, to its end also where the caller is cancelled meanwhile."""
        await uninterrupted(asyncio.to_thread(self.write, group, number))

    def close(self) -> None:
        """Put the groups into their order and close the file; may be called twice."""
        with self._lock:
            if self._file is None or self.path is None:
                return
            self._file.close()
            self._file = None
            if not _ascends(self._numbers):
                self._sort(self.path)

    def _sort(self, path: Path) -> None:
        """Replace the file by a sorted one at once, so that there is a whole one at any time."""
        ends = [*self._starts[1:], self._size]
        target = path.with_name(f".{path.name}.sorting")
        try:
            with path.open("rb") as groups, target.open("wb") as file:
                file.write(groups.read(self._starts[0]))
                for index in sorted(range(len(ends)), key=self._numbers.__getitem__):
                    groups.seek(self._starts[index])
                    file.write(groups.read(ends[index] - self._starts[index]))
                file.flush()
                os.fsync(file.fileno())
            target.replace(path)
        except OSError as error:
            target.unlink(missing_ok=True)
            logger.warning("the groups in %s stay in the order in which they were finished: %s", path, error)


def _ascends(numbers: Sequence[int]) -> bool:
    return all(earlier <= later for earlier, later in pairwise(numbers))


def write_html(path: Path) -> Path:
    """Render a JSONL file of groups beside it."""
    from atroposlib.frontend.jsonl2html import generate_html

    target = path.with_suffix(".html")
    generate_html(path, target)
    return target


def readable_rollout(path: Path) -> str:
    """The best rollout of the first group of a file, as a person reads it. Raises: ConfigError."""
    group = _first_group(path)
    scores = group.get("scores") or []
    index = max(range(len(scores)), key=lambda each: scores[each] or 0.0, default=0)
    masks = _entry(group, "masks", index) or []
    trained = sum(mask != IGNORED_MASK for mask in masks)
    title = f"{path}, first group, rollout {index + 1} of {max(1, len(scores))}"
    if scores:
        title += f": score {scores[index]}"
    if masks:
        title += f", {len(masks)} tokens, {trained} of them trained on"
    messages = _entry(group, "messages", index)
    if not isinstance(messages, list) or not messages:
        return f"{title}\n\n(no messages in this file: --env.include_messages true records them)\n"
    return "\n\n".join([title, *(_readable_message(message) for message in messages)]) + "\n"


def _first_group(path: Path) -> dict[str, Any]:
    try:
        number, group = next(json_lines(path), (0, None))
    except ConfigError as error:
        raise ConfigError(f"--show {error}") from error
    if not number:
        raise ConfigError(f"--show {path}: the file holds no groups")
    if not isinstance(group, dict):
        raise ConfigError(f"--show {path}: line {number} is not a group")
    return group


def _entry(group: Mapping[str, Any], key: str, index: int) -> Any:
    values = group.get(key)
    return values[index] if isinstance(values, list) and index < len(values) else None


def _readable_message(message: Any) -> str:
    if not isinstance(message, dict):
        return _cut(str(message))
    lines = [f"[{message.get('role', '?')}]"]
    for key in ("reasoning_content", "content"):
        content = message.get(key)
        if content:
            lines.append(_cut(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)))
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            lines.append(_cut(f"-> {function.get('name')}({function.get('arguments')})"))
    return "\n".join(lines)


def _cut(text: str) -> str:
    if len(text) <= _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]}\n... ({len(text) - _SHOWN_CHARS} more characters)"
