"""Groups on disk: one JSON line each, whole and flushed as soon as it is due, in the order of their items."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orjson

from atroposlib.errors import ConfigError
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


def check_writable(folder: Path, setting: str) -> None:
    """Make ``folder``, and a file in it for a moment. Raises: ConfigError that names the setting."""
    probe = folder / f".writable-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot write to {folder}: {error.strerror or error}") from error


class GroupRecorder:
    """Appends groups to a JSONL file that did not exist before.

    Groups that come with the number of their item are written in the order of numbers, each as soon as all earlier
    items are finished; ``close`` writes what still waits. The file appears with the first group.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.wanted_path = Path(path)
        self.path: Path | None = None
        """The file, once there is one."""
        self.written = 0
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._next_number = 0
        self._waiting: dict[int, list[Mapping[str, Any]]] = {}
        self._finished: set[int] = set()

    def write(self, group: Mapping[str, Any]) -> None:
        """Write one group now. Safe from any thread."""
        line = encode_json({**dict.fromkeys(GROUP_KEYS), **group}) + b"\n"
        with self._lock:
            if self._file is None:
                self.wanted_path.parent.mkdir(parents=True, exist_ok=True)
                self.path = free_path(self.wanted_path)
                self._file = self.path.open("xb")
            self._file.write(line)
            self._file.flush()
            self.written += 1

    async def record(self, group: Mapping[str, Any], number: int | None = None) -> None:
        """Write one group, off the event loop; with the ``number`` of its item, when it is its turn."""
        if number is None:
            await asyncio.to_thread(self.write, group)
        else:
            self._waiting.setdefault(number, []).append(group)

    async def finish(self, number: int) -> None:
        """Nothing more comes from this item: write what has become due."""
        self._finished.add(number)
        due: list[Mapping[str, Any]] = []
        while self._next_number in self._finished:
            self._finished.discard(self._next_number)
            due += self._waiting.pop(self._next_number, [])
            self._next_number += 1
        if due:
            await asyncio.to_thread(self._write_all, due)

    def _write_all(self, groups: list[Mapping[str, Any]]) -> None:
        for group in groups:
            self.write(group)

    def close(self) -> None:
        """Write what waits for earlier items and close the file; may be called twice."""
        for number in sorted(self._waiting):
            self._write_all(self._waiting[number])
        self._waiting.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


def write_html(path: Path) -> Path:
    """Render a JSONL file of groups beside it."""
    from atroposlib.frontend.jsonl2html import generate_html

    target = path.with_suffix(".html")
    generate_html(path, target)
    return target


def read_groups(path: Path) -> Iterator[dict[str, Any]]:
    """The groups of a JSONL file. Raises: ConfigError."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _group(line, path, number)
    except OSError as error:
        raise ConfigError(f"--show {path}: {error.strerror or error}") from error


def _group(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        group = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--show {path}: line {number} is not JSON ({error})") from None
    if not isinstance(group, dict):
        raise ConfigError(f"--show {path}: line {number} is not a group")
    return group


def readable_rollout(path: Path) -> str:
    """The best rollout of the first group of a file, as a person reads it. Raises: ConfigError."""
    group = next(read_groups(path), None)
    if group is None:
        raise ConfigError(f"--show {path}: the file holds no groups")
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
