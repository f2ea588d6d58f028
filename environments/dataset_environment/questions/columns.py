"""Fields of a row: found by name, or by a dotted path into nested ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from atroposlib.errors import ConfigError


def look_up(row: Mapping[str, Any], path: str) -> Any:
    """The value at ``path``: ``answer``, ``meta.answer``, ``choices.0.text``. A column may have dots in its name.

    Raises: LookupError, which names what is missing.
    """
    if path in row:
        return row[path]
    column = column_of(path, row)
    if column is None:
        raise LookupError(f"no column {path.split('.')[0]!r}")
    value: Any = row[column]
    for key in path[len(column) + 1 :].split("."):
        value = _step(value, key, path)
    return value


def value_at(row: Mapping[str, Any], path: str | None) -> Any:
    """The value at ``path``; None where this row has none, or no path is given."""
    if path is None:
        return None
    try:
        return look_up(row, path)
    except LookupError:
        return None


def column_of(path: str, columns: Iterable[str]) -> str | None:
    """The column that a path begins in: the longest one that fits."""
    fitting = [column for column in columns if path == column or path.startswith(f"{column}.")]
    return max(fitting, key=len, default=None)


def check_field(setting: str, path: str, columns: Sequence[str], first_row: Mapping[str, Any], where: str) -> None:
    """Raises: ConfigError where the data set has no such field; it lists what there is."""
    column = column_of(path, columns)
    if column is None:
        near = get_close_matches(path.split(".")[0], columns, n=2, cutoff=0.5)
        hint = f" (is {' or '.join(near)} meant?)" if near else ""
        raise ConfigError(f"{setting}: {where} has no field {path!r}{hint}. Its columns are: {', '.join(columns)}")
    if column == path:
        return
    try:
        look_up(first_row, path)
    except LookupError as error:
        raise ConfigError(f"{setting}: {where} has no field {path!r}: {error} (seen in its first row)") from error


def _step(value: Any, key: str, path: str) -> Any:
    if isinstance(value, Mapping):
        if key in value:
            return value[key]
        raise LookupError(f"{path}: there is no {key!r} among {', '.join(map(str, value))}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        if key.lstrip("-").isdigit() and -len(value) <= int(key) < len(value):
            return value[int(key)]
        raise LookupError(f"{path}: {key!r} is no place in a list of {len(value)}")
    raise LookupError(f"{path}: {key!r} leads into a {type(value).__name__}")
