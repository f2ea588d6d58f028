"""Look at some scored answers: ``python environments/dataset_environment/dataset_local_server.py --config gsm8k``.

The engines of the configuration (``server_configs``, ``openai``) answer; without any, the policy that ships does.
Trains nothing and serves nobody: a few questions are answered, judged and shown.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console

from environments.dataset_environment.workbench.bench import Choice
from environments.dataset_environment.workbench.display import Display
from environments.dataset_environment.workbench.program import (
    DEFAULT_ENV,
    DEFAULT_SAMPLES,
    guarded,
    positive,
    try_questions,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(prog="dataset_local_server.py", description=__doc__.splitlines()[0])
    named = parser.add_mutually_exclusive_group()
    named.add_argument("--config", default=DEFAULT_ENV, help="a configuration by name (%(default)s) or path")
    named.add_argument("--config-path", help="a configuration by its path")
    parser.add_argument("--samples", type=positive, default=DEFAULT_SAMPLES, help="questions to answer (%(default)s)")
    parser.add_argument("--debug", action="store_true", help="show whole texts and conversations")
    parser.add_argument("--verbose", action="store_true", help="show the log")
    options = parser.parse_args(argv)
    choice = Choice(options.config_path or options.config, agent=None, sampling={})
    display = Display(Console(), options.debug)
    return guarded(lambda: asyncio.run(try_questions(choice, options.samples, display)), options.verbose, options.debug)


if __name__ == "__main__":
    sys.exit(main())
