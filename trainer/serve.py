"""``python -m trainer.serve``: the embedded engine by itself, for environments that collect or evaluate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from atroposlib.flag_parser import FlagParser
from trainer.cli import (
    add_model_flags,
    add_serving_flags,
    check_before_loading,
    run_program,
    serving_config,
)
from trainer.loading import loading


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; returns the exit code."""
    parser = FlagParser(
        prog="python -m trainer.serve",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add_model_flags(parser)
    add_serving_flags(parser)
    return run_program(_serve, parser, argv)


def _serve(options: argparse.Namespace) -> None:
    config = serving_config(options)
    check_before_loading(options)
    with loading():
        import torch

        from trainer.engine.hosting import host_engine
        from trainer.policy import load_policy

        if options.threads:
            torch.set_num_threads(options.threads)
        policy = load_policy(options.model, device=options.device, dtype=options.dtype)
    host_engine(policy.model, policy.tokenizer, policy.folder, config).serve()


if __name__ == "__main__":
    sys.exit(main())
