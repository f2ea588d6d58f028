"""What the two programs of this package have in common on the command line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from trainer.errors import TrainerError, UsageError

logger = logging.getLogger(__name__)


def run_program(
    program: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> int:
    """Parse and run; the exit code is 2 for a wrong flag, 130 for Ctrl-C, 1 for whatever else went wrong."""
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        program(options)
    except UsageError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    except TrainerError as error:
        logger.error("%s", error)  # noqa: TRY400 the message says it all
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of the embedded engine."""
    flags = parser.add_argument_group("model and engine")
    add = flags.add_argument
    add("--model", "--model-name", dest="model", default="tiny", help="'tiny' (it ships), a folder, or a hub name")
    add("--host", default="127.0.0.1", help="address to serve on; who reaches it may change the weights")
    add("--served-model-name", nargs="+", help="names to answer to (default: the model as it was typed)")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, mps, ...")
    add("--dtype", default="float32", help="float32, bfloat16 or float16")
    add("--threads", type=int, help="CPU threads of torch (default: torch's own choice)")
    add("--max-model-len", type=int, help="longest sequence (default: what model and cache allow)")
    add("--max-num-seqs", type=int, default=64, help="sequences sampled at once")
    add("--kv-cache-gb", type=float, default=1.0, help="memory for keys and values")
    add("--tool-call-parser", default="hermes", help="how tool calls are found in a model's text")
    add("--seed", type=int, help="seed of sampling and training")


def engine_from(options: argparse.Namespace, policy: Any, logprobs_mode: Any) -> Any:
    """An engine over ``policy`` as the flags say."""
    from trainer.engine.scheduler import Engine, EngineConfig

    config = EngineConfig(
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        kv_cache_bytes=int(options.kv_cache_gb * (1 << 30)),
        logprobs_mode=logprobs_mode,
        seed=options.seed,
    )
    return Engine(policy.model, policy.tokenizer, config)
