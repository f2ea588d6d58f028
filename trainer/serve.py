"""``python -m trainer.serve``: the embedded engine by itself, for environments that collect or evaluate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trainer.cli import add_engine_flags, engine_from, run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.serve", description=__doc__)
    add_engine_flags(parser)
    parser.add_argument("--port", type=int, default=9001)
    parser.add_argument(
        "--logprobs-mode",
        choices=("raw_logprobs", "processed_logprobs"),
        default="raw_logprobs",
        help="report logprobs before (raw, as stock vLLM does) or after temperature and filters",
    )
    return run_program(_serve, parser, argv)


def _serve(options: argparse.Namespace) -> None:
    import torch

    from trainer.engine.hosting import EngineHost
    from trainer.policy import load_policy

    if options.threads:
        torch.set_num_threads(options.threads)
    policy = load_policy(options.model, device=options.device, dtype=options.dtype)
    host = EngineHost(
        engine_from(options, policy, options.logprobs_mode),
        options.served_model_name or [options.model],
        host=options.host,
        port=options.port,
        tool_call_parser=options.tool_call_parser,
    )
    host.serve()


if __name__ == "__main__":
    sys.exit(main())
