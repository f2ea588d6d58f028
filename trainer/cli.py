"""What the two programs of this package have in common on the command line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from atroposlib.errors import ConfigError
from trainer.config import ServingConfig
from trainer.engine.address import bind
from trainer.errors import Interrupted, TrainerError, UsageError
from trainer.loading import INTERRUPTED
from trainer.policy import DTYPES, TINY, check_model, checked_dtype

logger = logging.getLogger(__name__)


def run_program(
    program: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> int:
    """Parse and run; the exit code is 2 for a wrong flag or file, 130 for Ctrl-C, 1 for whatever else went wrong."""
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        program(options)
    except (UsageError, ConfigError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    except Interrupted as end:
        logger.info("%s", end)
        return end.exit_code
    except TrainerError as error:
        logger.error("%s", error)  # noqa: TRY400 the message says it all
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def check_before_loading(options: argparse.Namespace, *, serves: bool = True) -> None:
    """Raise what can be known before torch is imported and a model is read, which takes seconds.

    ``serves``: whether the embedded engine will listen. Raises: UsageError.
    """
    missing = [package for package in ("torch", "safetensors") if find_spec(package) is None]
    if missing:
        raise UsageError(
            f"missing packages: {', '.join(missing)}. Install PyTorch in the build that suits the machine (pip install "
            "torch), then the rest by pip install 'atroposlib[train]' (in a checkout: pip install -e '.[train]')."
        )
    checked_dtype(options.dtype)
    if options.threads is not None and options.threads < 1:
        raise UsageError(f"--threads must be at least 1, got {options.threads}.")
    if options.model != TINY:
        check_model(options.model)
    if serves:
        bind(options.host, options.port).close()


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Which model, and on what it runs."""
    add = parser.add_argument_group("model").add_argument
    add("--model", "--model-name", dest="model", default=TINY, help=f"'{TINY}' (it ships), a folder, or a hub name")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, mps, ...")
    add("--dtype", default="float32", help="what to compute in: " + ", ".join(DTYPES))
    add("--threads", type=int, help="CPU threads of torch (default: torch's own choice)")
    add("--seed", type=int, help="seed of sampling and training")


def add_serving_flags(parser: argparse.ArgumentParser) -> None:
    """How the embedded engine is served."""
    add = parser.add_argument_group("embedded engine").add_argument
    add("--host", default="127.0.0.1", help="address to serve on; who reaches it may change the weights")
    add("--port", "--vllm-port", dest="port", type=int, default=9001)
    add("--served-model-name", nargs="+", help="names to answer to (default: the model as it was typed)")
    add("--max-model-len", type=int, help="longest sequence (default: what model and cache allow)")
    add("--max-num-seqs", type=int, default=64, help="sequences sampled at once")
    add("--kv-cache-gb", type=float, default=1.0, help="memory for keys and values")
    add("--tool-call-parser", default="hermes", help="how tool calls are found in a model's text; 'none': they are not")
    add(
        "--logprobs-mode",
        choices=("raw_logprobs", "processed_logprobs"),
        default="raw_logprobs",
        help="report logprobs before (raw, as stock vLLM does) or after temperature and filters",
    )


def serving_config(options: argparse.Namespace, aliases: Sequence[str] = ()) -> ServingConfig:
    """What ``add_serving_flags`` read. ``aliases``: further names of the shipped policy where none was chosen.

    Raises: UsageError.
    """
    own_names = [options.model, *aliases] if options.model == TINY else [options.model]
    return ServingConfig(
        host=options.host,
        port=options.port,
        names=tuple(options.served_model_name or own_names),
        tool_call_parser=None if options.tool_call_parser == "none" else options.tool_call_parser,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        kv_cache_gb=options.kv_cache_gb,
        logprobs_mode=options.logprobs_mode,
        seed=options.seed,
    )
