"""``python -m example_trainer.run``: engine and trainer in one command, under the path that Atropos gave it.

The engine runs inside the trainer and shares its memory, so this is ``example_trainer.grpo`` under another name.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from example_trainer.grpo import EXAMPLE_MODEL
from trainer.grpo import main as train_by_flags


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit code."""
    return train_by_flags(argv, prog="python -m example_trainer.run", aliases=(EXAMPLE_MODEL,))


if __name__ == "__main__":
    sys.exit(main())
