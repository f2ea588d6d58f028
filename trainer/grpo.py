"""``python -m trainer.grpo``: train a policy on what environments send to the trajectory server.

Without ``--engine-url`` the engine that environments sample from runs in this process, on ``--vllm-port``. Flags are
spelled as Atropos spelled them; what of Atropos is not here ends the program with exit code 2, by name.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from atroposlib.flag_parser import FlagParser
from trainer.cli import (
    add_model_flags,
    add_serving_flags,
    check_before_loading,
    run_program,
    serving_config,
)
from trainer.config import TrainerConfig
from trainer.errors import UsageError
from trainer.loading import loading

logger = logging.getLogger(__name__)

_NOT_HERE = {
    "--lora-r": "LoRA",
    "--lora-alpha": "LoRA",
    "--lora-dropout": "LoRA",
    "--lora-target-modules": "LoRA",
    "--lora-layer-indices": "LoRA",
    "--train-layer-indices": "training of single layers",
    "--single-copy": "weights shared with vLLM's memory",
    "--vllm-config-path": "weights shared with vLLM's memory",
    "--trainer-rank": "training by several processes",
    "--world-size": "training by several processes",
    "--init-method": "training by several processes",
    "--num-inference-nodes": "training by several processes",
    "--vllm-gpu": "starting vLLM (start it yourself and give its address with --engine-url)",
    "--vllm-gpu-memory-utilization": "starting vLLM (start it yourself and give its address with --engine-url)",
    "--adafactor-scale-parameter": "that variant of Adafactor",
    "--adafactor-relative-step": "that variant of Adafactor",
}


def main(
    argv: Sequence[str] | None = None, *, prog: str = "python -m trainer.grpo", aliases: Sequence[str] = ()
) -> int:
    """Train; returns the exit code. ``aliases``: further names under which the shipped policy is served."""
    return run_program(partial(_run, aliases=aliases), make_parser(prog), argv)


def make_parser(prog: str) -> argparse.ArgumentParser:
    """All flags of the trainer."""
    parser = FlagParser(
        prog=prog, description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    add_model_flags(parser)
    add_serving_flags(parser)
    _add_service_flags(parser)
    _add_learning_flags(parser)
    _add_run_flags(parser)
    for flag in _NOT_HERE:
        parser.add_argument(flag, nargs="*", action=_NotHere, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def config_from(options: argparse.Namespace, aliases: Sequence[str] = ()) -> TrainerConfig:
    """The checked settings. Raises: UsageError."""
    if options.weight_bridge_mode != "none":
        raise UsageError(
            f"--weight-bridge-mode {options.weight_bridge_mode} is not here. Weights go to the embedded engine in "
            "memory, or with --engine-url to an external one through a folder; leave the flag out."
        )
    if options.optimizer == "adamw_8bit":
        raise UsageError("--optimizer adamw_8bit needs bitsandbytes, which is not used here; take adamw or adafactor.")
    derived: dict[str, Any] = {
        "serving": serving_config(options, aliases),
        "external_name": options.served_model_name[0] if options.served_model_name else None,
    }
    if options.benchmark:
        logger.warning("--benchmark and --debug-loading have no effect: the metrics always hold the timings.")
    names = {field.name for field in fields(TrainerConfig)} - derived.keys()
    return TrainerConfig(**{name: getattr(options, name) for name in names}, **derived)


def _run(options: argparse.Namespace, aliases: Sequence[str]) -> None:
    config = config_from(options, aliases)
    check_before_loading(options, serves=config.engine_url is None)
    with loading():
        from trainer.run import train

    train(config)


def _add_service_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("services").add_argument
    add("--atropos-url", default="http://localhost:8000", help="the trajectory server")
    add("--atropos-token-env", help="name of the variable that holds the trajectory server's token")
    add("--patience-s", type=float, default=600.0, help="how long the trajectory server may stay away")
    add("--engine-url", help="train with an external engine (vLLM with VLLM_SERVER_DEV_MODE=1, or trainer.serve)")
    add(
        "--weight-sync", choices=("wait", "keep", "abort"), default="wait", help="what running completions do meanwhile"
    )
    add("--publish-interval", "--vllm-restart-interval", type=int, default=1, help="steps between two publications")
    add("--weight-bridge-mode", default="none", help="only 'none' is here")


def _add_learning_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("learning").add_argument
    add("--lr", type=float, default=1e-5)
    add("--warmup-steps", type=int, default=0)
    add("--optimizer", default="adamw", help="adamw or adafactor")
    add("--training-steps", type=int, default=10)
    add("--batch-size", type=int, default=2, help="sequences per forward pass")
    add("--gradient-accumulation-steps", type=int, default=32, help="forward passes per optimizer step")
    add("--seq-len", type=int, default=2048, help="longest sequence; longer ones are left out and counted. 0: no limit")
    add("--epochs-per-batch", type=int, default=1, help="optimizer steps on each batch")
    add("--clip-eps", type=float, default=0.2)
    add("--clip-eps-high", type=float, help="upper bound of the clip, where it is another one (DAPO: 0.28)")
    add("--kl-coef", type=float, default=0.0, help="weight of the KL to ref_logprobs, where groups carry them")
    add("--distill-coef", type=float, default=1.0, help="weight of the KL to a teacher, where groups carry one")
    add("--temperature", type=float, default=1.0, help="of groups that tell none (matters with processed_logprobs)")
    add("--max-logprob-gap", type=float, help="alarm above this (default: 1e-3 in float32, 0.2 in bfloat16)")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("run").add_argument
    add("--save-path", type=Path, default=Path("trained_model_checkpoints"), help="checkpoints and metrics.jsonl")
    add("--checkpoint-interval", type=int, default=3, help="steps between two checkpoints")
    add("--keep-checkpoints", type=int, default=3)
    add("--resume", nargs="?", const="latest", help="go on from the latest checkpoint, or from this folder")
    add("--use-wandb", action="store_true")
    add("--wandb-project")
    add("--wandb-group")
    add("--benchmark", "--debug-loading", action="store_true", help="no effect: the metrics always hold the timings")


class _NotHere(argparse.Action):
    """Ends the program where a flag of Atropos is used that has no meaning here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        flag = self.option_strings[0]
        parser.error(f"{flag}: {_NOT_HERE[flag]} is not here; leave the flag out")


if __name__ == "__main__":
    sys.exit(main())
