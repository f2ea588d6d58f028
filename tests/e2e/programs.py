"""The programs of this project, started as a user starts them: by their words, in a folder of the user's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from environments.new import environment_source
from tests.environments.agent_engine import save_tokenizer

REPOSITORY = Path(__file__).parents[2]
ENVIRONMENT = "environments/my_env.py"
LONGEST_S = 100.0
_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d (DEBUG|INFO|WARNING) |(INFO|WARNING):? |\d{4}-\d\d-\d\d ")


def make_folder(folder: Path) -> Path:
    """A user's folder: the environment that ``python -m environments.new`` writes, and a model's tokenizer."""
    (folder / "environments").mkdir(parents=True)
    (folder / ENVIRONMENT).write_text(environment_source("my_env"))
    save_tokenizer(folder / "tokenizer")
    return folder


def surroundings(**more: str) -> dict[str, str]:
    """Environment variables of a program; nothing is fetched from outside."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", **more}


def environment(*words: str) -> list[str]:
    """The command that runs the environment in ``make_folder``."""
    return [sys.executable, ENVIRONMENT, *words]


def module(*words: str) -> list[str]:
    """``python -m``."""
    return [sys.executable, "-m", *words]


def with_full_disk(command: list[str], file_bytes: int = 2048) -> list[str]:
    """The command, to which a disk seems full as soon as a file has grown to ``file_bytes``."""
    limit = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2); "
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-c", limit, str(file_bytes), *command]


def run(
    command: list[str], folder: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, which must come soon."""
    return subprocess.run(
        command,
        cwd=folder,
        env=surroundings(**(variables or {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )


def message(said: str) -> list[str]:
    """The lines on stderr that are no log."""
    return [line for line in said.splitlines() if line.strip() and not _LOG_LINE.match(line)]
