"""What an environment remembers between runs: a JSON file per checkpoint step."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)


def checkpoint_path(folder: str, name: str | None, step: int) -> Path:
    """``<folder>/env_checkpoints/<name>/step-<step>.json``; ``name``, the server's, leads nowhere else."""
    safe = re.sub(r"[^\w.-]+", "_", name or "env").strip(".") or "env"
    return Path(folder) / "env_checkpoints" / safe / f"step-{step}.json"


def write_checkpoint(path: Path, data: Mapping[str, Any]) -> None:
    """Write ``data``, whole or not at all. Raises: TypeError for a value that could not be read back."""
    text = json.dumps(data, default=_plain)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be kept in an environment's checkpoint; make it plain data")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The data of a checkpoint; empty where there is none. Raises: ConfigError for a file that is no checkpoint."""
    if not path.exists():
        logger.warning("there is no checkpoint of the environment at %s: it starts anew", path)
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the environment's checkpoint {path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"the environment's checkpoint {path} holds no mapping")
    return data


def restore(target: object, data: Mapping[str, Any], protected: Iterable[str]) -> None:
    """Set ``data`` as attributes of ``target``, save those that a checkpoint has no business with.

    Private names, ``protected`` ones, methods and properties are left alone, and named.
    """
    protected = set(protected)
    refused = {key for key in data if key.startswith("_") or key in protected or _is_code(type(target), key)}
    if refused:
        logger.warning("a checkpoint may not set %s: ignored", ", ".join(sorted(refused)))
    for key in data.keys() - refused:
        setattr(target, key, data[key])


def _is_code(cls: type, name: str) -> bool:
    attribute = getattr(cls, name, None)
    return callable(attribute) or isinstance(attribute, property)
