"""What an evaluation leaves behind: ``metrics.json``, ``samples.jsonl`` and a table.

``metrics.json`` is replaced whole, never half written. What an earlier evaluation left moves to ``runs/<time>/`` first.
Files come before the table, and a metric of an odd type costs neither.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson

from atroposlib.tracking import encode_json, json_value

logger = logging.getLogger(__name__)

METRICS_FILE: Final = "metrics.json"
SAMPLES_FILE: Final = "samples.jsonl"


@dataclass(frozen=True)
class Evaluation:
    """One finished evaluation. Times are unix seconds."""

    task: str
    metrics: Mapping[str, object]
    samples: Sequence[Mapping[str, object]] = ()
    model_name: str | None = None
    started: float | None = None
    ended: float | None = None
    generation_parameters: Mapping[str, object] = field(default_factory=dict)
    made_with: Mapping[str, object] = field(default_factory=dict)
    """What would be needed to repeat it: seed, versions, items."""

    def document(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        seconds = self.ended - self.started if self.started is not None and self.ended is not None else 0.0
        metrics = json_value(dict(self.metrics))
        return {
            "config_general": {
                "model_name": self.model_name,
                "total_evaluation_time_seconds": str(seconds),
                "generation_parameters": json_value(dict(self.generation_parameters)),
                "made_with": {"time": datetime.now(UTC).isoformat(timespec="seconds"), **json_value(self.made_with)},
            },
            "results": {f"atropos|{self.task}|0": metrics, "all": metrics},
        }

    def write(self, folder: Path) -> None:
        """Write both files into ``folder``; an earlier evaluation's go to ``runs/<time>/`` before.

        Raises: OSError, which leaves everything as it was.
        """
        samples: dict[str, Iterable[bytes]] = {SAMPLES_FILE: map(encode_json, self.samples)} if self.samples else {}
        files = {**samples, METRICS_FILE: [_indented(self.document())]}
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder, prefix=".results-") as aside:
            for name, lines in files.items():
                _write_to_disk(Path(aside, name), lines)
            keep_earlier(folder)
            for name in files:
                os.replace(Path(aside, name), folder / name)

    def table(self) -> str:
        """The metrics as a Markdown table."""
        rows = [("Task", "Metric", "Value")]
        rows += [
            (self.task if i == 0 else "", str(name), _shown(v)) for i, (name, v) in enumerate(self.metrics.items())
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
        ]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(lines)


def keep_earlier(folder: Path) -> Path | None:
    """Copy or move earlier results to ``runs/<time of metrics.json>/``; ``None`` where there are none.

    ``metrics.json`` stays in place until it is replaced, so that there is a whole one at every moment.
    """
    metrics, samples = folder / METRICS_FILE, folder / SAMPLES_FILE
    if not metrics.exists():
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(metrics.stat().st_mtime))
    target, number = folder / "runs" / stamp, 0
    while target.exists():
        number += 1
        target = folder / "runs" / f"{stamp}-{number}"
    target.mkdir(parents=True)
    try:
        shutil.copy2(metrics, target / METRICS_FILE)
    except OSError:
        shutil.rmtree(target)
        raise
    if samples.exists():
        os.replace(samples, target / SAMPLES_FILE)
    return target


def _write_to_disk(path: Path, lines: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        for line in lines:
            file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _indented(document: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(document, option=orjson.OPT_INDENT_2)
    except TypeError:  # an integer of more than 64 bits
        return encode_json(document)


def _shown(value: object) -> str:
    plain = json_value(value)
    text = f"{plain:.4f}" if isinstance(plain, float) else str(plain)
    text = text.replace("\n", " ").replace("|", "\\|")
    return text if len(text) <= 80 else f"{text[:77]}..."
