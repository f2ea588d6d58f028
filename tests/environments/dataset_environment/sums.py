"""A small data set for tests: sums, in the shape of GSM8K."""

import json
from pathlib import Path


def sums(count=40):
    """Rows of GSM8K's shape, no two of one question."""
    pairs = [(a, b) for a in range(1, 30) for b in range(1, 10)][:count]
    return [{"question": f"What is {a} plus {b}?", "answer": f"{a}+{b}={a + b}\n#### {a + b}"} for a, b in pairs]


def write_jsonl(path: Path, rows) -> Path:
    """Write rows as JSON lines, making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_gsm8k(folder: Path, train=40, test=8) -> Path:
    """A folder like the hub's gsm8k: the configuration ``main`` with the splits train and test."""
    rows = sums(train + test)
    write_jsonl(folder / "main" / "train.jsonl", rows[:train])
    write_jsonl(folder / "main" / "test.jsonl", rows[train:])
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n"
        "  - split: train\n    path: main/train.jsonl\n  - split: test\n    path: main/test.jsonl\n---\n# sums\n"
    )
    return folder
