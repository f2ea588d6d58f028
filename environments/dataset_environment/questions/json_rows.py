"""Rows of JSON files, each value as it is written.

Promise: a text stays a text, whether it looks like a number, a date or ``true``, and numbers keep all their digits.
Arrow's own reader guesses, and where a column holds several types it mixes texts up with what they look like; so the
lines are kept as text on disk, and a row is parsed when it is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, overload

_BOM = "\ufeff"
_BLANKS = re.compile(r"\s*")
_AT_ONCE = 10_000
TEXT = "text"

Row = dict[str, Any]


class JsonRows(Sequence[Row]):
    """Rows over a ``datasets.Dataset`` whose column ``text`` holds an object each; what a row lacks is None."""

    def __init__(self, lines: Any, column_names: Sequence[str]) -> None:
        self._lines = lines
        self.column_names = list(column_names)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> JsonRows: ...
    def __getitem__(self, index: int | slice) -> Row | JsonRows:
        if isinstance(index, slice):
            return JsonRows(self._lines.select(range(*index.indices(len(self)))), self.column_names)
        return self._row(self._lines[index][TEXT])

    def select_columns(self, names: Sequence[str]) -> JsonRows:
        """The same rows with these columns only."""
        return JsonRows(self._lines, names)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        """Batches of rows, as the values of each column."""
        for batch in self._lines.iter(batch_size):
            rows = [self._row(line) for line in batch[TEXT]]
            yield {name: [row[name] for row in rows] for name in self.column_names}

    def _row(self, line: str) -> Row:
        row = _parsed(line)
        return {name: row.get(name) for name in self.column_names}


def as_objects(lines: Any, datasets: Any) -> tuple[Any, list[str]]:
    """The lines (a ``Dataset`` of texts) with one object each, and the names of all columns.

    Lines that are objects are taken as they are. Any other file is read whole: objects or lists of them, over as many
    lines as they like, or one object of columns.

    Raises: ValueError where that is no JSON, or holds anything else than rows.
    """
    columns: dict[str, None] = {}
    kept: list[int] = []
    index = -1
    for batch in lines.iter(_AT_ONCE):
        for line in batch[TEXT]:
            index += 1
            if not line.strip(f"{_BOM} \t"):
                continue
            if (row := _object_in(line)) is None:
                return _of_documents("\n".join(lines[TEXT]), datasets)
            columns.update(dict.fromkeys(row))
            kept.append(index)
    return (lines if len(kept) == len(lines) else lines.select(kept)), list(columns)


def _object_in(line: str) -> Row | None:
    try:
        value = _parsed(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _parsed(text: str) -> Any:
    return json.loads(text.removeprefix(_BOM))


def _of_documents(text: str, datasets: Any) -> tuple[Any, list[str]]:
    documents = list(_documents(text.removeprefix(_BOM)))
    if len(documents) == 1 and isinstance(documents[0], dict):
        rows = _of_columns(documents[0])
    else:
        rows = [_row(each) for values in documents for each in (values if isinstance(values, list) else [values])]
    columns = dict.fromkeys(name for row in rows for name in row)
    return datasets.Dataset.from_dict({TEXT: [json.dumps(row, ensure_ascii=False) for row in rows]}), list(columns)


def _row(value: Any) -> Row:
    if isinstance(value, str):
        return {TEXT: value}
    if isinstance(value, dict):
        return value
    raise ValueError(f"a row is an object or a text, not {value!r:.100}")


def _documents(text: str) -> Iterator[Any]:
    """One value after the other. Raises: ValueError, which names the line."""
    decoder, place = json.JSONDecoder(), _end_of_blanks(text, 0)
    while place < len(text):
        value, place = decoder.raw_decode(text, place)
        yield value
        place = _end_of_blanks(text, place)


def _end_of_blanks(text: str, place: int) -> int:
    blanks = _BLANKS.match(text, place)
    return blanks.end() if blanks else place


def _of_columns(document: Row) -> list[Row]:
    """``{"question": [...], "answer": [...]}`` as rows; any other object is one row."""
    values = list(document.values())
    if values and all(isinstance(each, list) and len(each) == len(values[0]) for each in values):
        return [dict(zip(document, row, strict=True)) for row in zip(*values, strict=True)]
    return [document]
