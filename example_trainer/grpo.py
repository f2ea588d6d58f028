"""``python -m example_trainer.grpo``: ``trainer.grpo`` under the path that Atropos gave its trainer.

Without flags it registers at http://localhost:8000 and serves the policy that ships on http://127.0.0.1:9001, under
its own name and under that of the model which Atropos' examples ask for, so that they run as they are typed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.config import TrainerConfig
from trainer.grpo import main as train_by_flags

EXAMPLE_MODEL = "Qwen/Qwen2.5-1.5B-Instruct"

__all__ = ["EXAMPLE_MODEL", "TrainerConfig", "main", "train"]


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code."""
    return train_by_flags(argv, prog="python -m example_trainer.grpo", aliases=(EXAMPLE_MODEL,))


def train(config: TrainerConfig) -> None:
    """Train as ``config`` says. Raises: trainer.errors.TrainerError."""
    from trainer.run import train as run

    run(config)


if __name__ == "__main__":
    sys.exit(main())
