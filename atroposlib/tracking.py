"""Metrics of a run: to Weights & Biases or to a JSONL file.

Whatever an environment puts into its metrics is kept: numbers as numbers, other values in the nearest form that JSON
has. A value of an odd type never ends a run. A name that is already taken is written under a longer one.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import math
import os
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from enum import Enum
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

from atroposlib.errors import ConfigError
from atroposlib.line_file import LineFile

logger = logging.getLogger(__name__)

TrackerKind = Literal["wandb", "jsonl", "none"]

_MAX_DEPTH = 40
_MAX_REPR_CHARS = 10_000


@dataclasses.dataclass(frozen=True)
class Table:
    """A small table of a run, such as a few rollouts with their scores."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def json_value(value: object, depth: int = 0) -> Any:
    """Return the nearest value that strict JSON can hold.

    NaN and infinities become the strings "nan", "inf" and "-inf", which ``float()`` reads back. Arrays, tensors and
    scalars become lists and numbers, models and dataclasses dicts, everything else its ``repr``.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return json_value(value.value, depth + 1)
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth >= _MAX_DEPTH:
        return _describe(value)
    return _compound_value(value, depth)


def encode_json(value: object) -> bytes:
    """Strict JSON, quickly where the value is plain data already, else by way of ``json_value``.

    A NaN among plain data becomes null, as the fast path has no other word for it.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS, default=json_value)
    except TypeError:  # lone surrogates, or integers of more than 64 bits
        return json.dumps(json_value(value), ensure_ascii=False).encode()


def _compound_value(value: object, depth: int) -> Any:
    if isinstance(value, Mapping):
        return _json_object(value, depth)
    if isinstance(value, (list, tuple)):
        return [json_value(member, depth + 1) for member in value]
    if isinstance(value, AbstractSet):
        return sorted((json_value(member, depth + 1) for member in value), key=str)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, Path):
        return _clean(str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _json_object({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, depth)
    return _foreign_value(value, depth)


def _foreign_value(value: object, depth: int) -> Any:
    """Models, arrays, tensors and scalars of other libraries, known by their methods; else a description."""
    if isinstance(value, type):
        return _describe(value)
    for method in ("model_dump", "tolist", "item"):
        convert = getattr(value, method, None)
        if not callable(convert):
            continue
        try:
            converted = convert()
        except Exception:
            logger.debug("%s of a %s failed", method, type(value).__name__, exc_info=True)
            continue
        if type(converted) is not type(value):
            return json_value(converted, depth + 1)
    return _describe(value)


def _json_object(mapping: Mapping[Any, object], depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, member in mapping.items():
        name = _clean(key) if isinstance(key, str) else str(json_value(key, depth + 1))
        while name in result:
            name += "'"
        result[name] = json_value(member, depth + 1)
    return result


def _clean(text: str) -> str:
    """Spell lone surrogates, which UTF-8 has no bytes for, as ``\\udc80``."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return str(text)


def _describe(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  (a broken __repr__ of somebody's object must not end a run)
        return f"<{type(value).__name__}, its repr raised {type(error).__name__}>"
    if len(text) > _MAX_REPR_CHARS:
        text = f"{text[:_MAX_REPR_CHARS]}... (cut from {len(text)} characters)"
    return _clean(text)


class Tracker(ABC):
    """Where the metrics of one run go."""

    @abstractmethod
    def log(self, metrics: Mapping[str, object], step: int) -> None:
        """Record ``metrics`` as measured at ``step``."""

    def finish(self) -> None:  # noqa: B027  (most trackers hold nothing open)
        """Write what is still held and close; may be called twice."""


class NullTracker(Tracker):
    """Keeps nothing."""

    def log(self, metrics: Mapping[str, object], step: int) -> None:
        del metrics, step


class JsonlTracker(Tracker):
    """Appends one line ``{"step": ..., "time": unix seconds, **metrics}`` to ``<directory>/metrics.jsonl`` per call.

    Each line is whole and flushed before ``log`` returns. What the run was made with stands in ``run.json``.

    Raises: ConfigError where the folder cannot be written to, as does ``log``.
    """

    def __init__(self, directory: str | os.PathLike[str], about: Mapping[str, object] | None = None) -> None:
        self.path = Path(directory) / "metrics.jsonl"
        text = json.dumps(json_value(about), indent=2, ensure_ascii=False) + "\n" if about else None
        with self._writing():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                (self.path.parent / "run.json").write_text(text, encoding="utf-8")
            self._file = LineFile(self.path)

    def log(self, metrics: Mapping[str, object], step: int) -> None:
        line: dict[str, object] = {"step": step, "time": time.time()}
        for name, value in metrics.items():
            key = str(name)
            while key in line:
                key = f"metrics/{key}"
            line[key] = value
        with self._writing():
            self._file.append(json.dumps(json_value(line), ensure_ascii=False).encode())

    def finish(self) -> None:
        self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"metrics cannot be written to {self.path.parent}: {error.strerror or error}; free the disk, or choose "
                "another folder (--env.metrics_dir, or --save-path of the trainer)"
            ) from error


class WandbTracker(Tracker):
    """Sends metrics to a run of Weights & Biases.

    Steps never go back, since wandb drops what is logged for an earlier step than its last: such metrics are sent
    with the last step, and ``step`` among them says the true one.
    """

    def __init__(self, run: Any, table: Any, prefix: str = "") -> None:
        """``run`` is what ``wandb.init`` returned, ``table`` is ``wandb.Table``, ``prefix`` goes before every name."""
        self._run = run
        self._table = table
        self._prefix = prefix
        self._last_step = 0
        self._finished = False

    def log(self, metrics: Mapping[str, object], step: int) -> None:
        values = {f"{self._prefix}{name}": self._value(value) for name, value in metrics.items()}
        if step < self._last_step:
            values.setdefault(f"{self._prefix}step", step)
        self._last_step = max(step, self._last_step)
        self._run.log(values, step=self._last_step)

    def _value(self, value: object) -> object:
        if isinstance(value, Table):
            rows = [[cell if isinstance(cell, (int, float)) else str(cell) for cell in row] for row in value.rows]
            return self._table(columns=list(value.columns), data=rows)
        if isinstance(value, float) or type(value).__module__.partition(".")[0] == "wandb":
            return value
        return json_value(value)

    def finish(self) -> None:
        self._run.finish()
        if self._run.offline and not self._finished:
            folder = Path(self._run.dir).parent
            logger.info("metrics are in %s. To send them to wandb: wandb sync %s", folder, shlex.quote(str(folder)))
        self._finished = True


def make_tracker(
    kind: TrackerKind,
    directory: str | os.PathLike[str],
    project: str | None = None,
    group: str | None = None,
    name: str | None = None,
    config: Mapping[str, object] | None = None,
    prefix: str = "",
) -> Tracker:
    """Open the tracker of one run.

    ``directory`` is where the JSONL tracker writes ``metrics.jsonl`` and where wandb keeps its own files. Without a
    key wandb works offline; where wandb is not installed the metrics go to JSONL. One log line says which.
    ``config`` is recorded as given: mask secrets before. The command line, the git state and the machine are not
    recorded. ``prefix`` goes before every name at wandb, where several environments share the charts of one group.
    """
    if kind == "none":
        return NullTracker()
    if kind == "wandb":
        if find_spec("wandb") is not None:
            return WandbTracker(*_open_wandb(Path(directory), project, group, name, config), prefix)
        logger.warning("wandb is not installed (pip install 'atroposlib[wandb]'): metrics go to %s", directory)
    elif kind != "jsonl":
        raise ValueError(f"no tracker is called {kind!r}; there are: wandb, jsonl, none")
    about = {"project": project, "group": group, "name": name, "config": config}
    return JsonlTracker(directory, {key: value for key, value in about.items() if value is not None})


def _open_wandb(
    directory: Path, project: str | None, group: str | None, name: str | None, config: Mapping[str, object] | None
) -> tuple[Any, Any]:
    import wandb

    directory.mkdir(parents=True, exist_ok=True)
    offline = "WANDB_MODE" not in os.environ and not _has_wandb_key()
    if offline:
        logger.warning("no wandb key (wandb login, or WANDB_API_KEY): wandb works offline, in %s", directory)
    run = wandb.init(
        dir=str(directory),
        project=project,
        group=group,
        name=name,
        config=json_value(config),
        mode="offline" if offline else None,
        # wandb's own description of the process holds its command line, where API keys may stand
        settings=wandb.Settings(silent=True, x_disable_meta=True),
    )
    return run, wandb.Table


def _has_wandb_key() -> bool:
    """Whether ``wandb.init`` will find a key without asking on the terminal; no request is made."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    path = os.environ.get("NETRC", os.path.expanduser("~/.netrc"))
    try:
        return netrc(path).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False
