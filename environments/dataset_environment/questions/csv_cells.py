"""Cells of CSV files, each as it is written.

Promise: ``NA``, ``None`` and ``007`` are what they are; only an empty cell is None. A column holds numbers where
every one of its cells is written as a number is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBERS = ("int64", "float64")


def as_text(builder_config: Any, datasets: Any) -> dict[str, Any]:
    """The options by which ``datasets`` reads the files of a configuration of its CSV builder as texts."""
    import pandas  # type: ignore[import-untyped]

    first = next(iter(builder_config.data_files.values()))[0]
    options = {name: value for name, value in builder_config.pd_read_csv_kwargs.items() if name != "chunksize"}
    columns = pandas.read_csv(first, **{**options, "nrows": 0}).columns
    features = datasets.Features({str(name): datasets.Value("string") for name in columns})
    return {"features": features, "keep_default_na": False, "na_values": [""]}


def with_numbers(rows: Any, datasets: Any) -> Any:
    """The rows (a ``Dataset`` of texts), with numbers in the columns that hold nothing else."""
    features = {name: _type_of(rows.data.column(name)) for name in rows.column_names}
    if set(features.values()) <= {"string"}:
        return rows
    return rows.cast(_features(features, datasets))


def _features(types: Mapping[str, str], datasets: Any) -> Any:
    return datasets.Features({name: datasets.Value(each) for name, each in types.items()})


def _type_of(cells: Any) -> str:
    import pyarrow  # type: ignore[import-untyped]

    if cells.null_count == len(cells):
        return "string"
    for number in _NUMBERS:
        try:
            if cells.cast(number).cast(cells.type).equals(cells):
                return number
        except pyarrow.ArrowInvalid:
            continue
    return "string"
