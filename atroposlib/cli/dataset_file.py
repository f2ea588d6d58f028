"""A data set made out of the groups of a trajectory server: what ``atropos-sft-gen`` and ``atropos-dpo-gen`` share.

The output file is checked, and the tokenizer loaded, before anything on the server is touched. Lines are on disk batch
by batch, so an interrupted run keeps what it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from atroposlib.cli.counts import positive
from atroposlib.cli.group_source import GroupSource, Run, token_from
from atroposlib.envs.tokenizers import load_tokenizer
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.wire import IGNORED_MASK, ScoredDataGroup

logger = logging.getLogger(__name__)

Line = dict[str, Any]
DEFAULT_TOKENIZER = "NousResearch/DeepHermes-3-Llama-3-8B-Preview"


class Tokenizer(Protocol):
    """What is needed of a tokenizer."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids."""


@dataclass(frozen=True)
class Sample:
    """One sequence of a group: its messages, or the text up to where it differs from the others, and the rest."""

    score: float
    messages: Any = None
    prefix: str | None = None
    completion: str | None = None

    @property
    def said(self) -> Any:
        """The messages, or the text that is the sequence's own."""
        return self.messages if self.prefix is None else self.completion


def add_arguments(parser: argparse.ArgumentParser, score_difference: float) -> None:
    """The flags of both commands."""
    parser.add_argument("filepath", type=Path, help="JSONL file to write")
    parser.add_argument("--api-url", default="http://localhost:8000", help="the trajectory server")
    parser.add_argument("--api-token-env", metavar="NAME", help="environment variable that holds the server's token")
    parser.add_argument("--group-size", type=positive, default=2, help="sequences of a group")
    parser.add_argument("--max-token-len", type=positive, default=2048, help="longest sequence")
    parser.add_argument("--tokenizer", default=DEFAULT_TOKENIZER, help="decodes the tokens")
    parser.add_argument(
        "--save-messages", action="store_true", help="save messages instead of text; needs no tokenizer"
    )
    parser.add_argument("--num-seqs-to-save", type=positive, default=100, help="lines to save")
    parser.add_argument("--allow-negative-scores", action="store_true", help="save scores of 0 and below, too")
    parser.add_argument(
        "--minimum-score-diff-max-min",
        type=float,
        default=score_difference,
        help="scores must be further apart than this (default: %(default)s)",
    )
    parser.add_argument("--append-to-previous", action="store_true", help="go on in a file that is there")


def samples_of(group: ScoredDataGroup, tokenizer: Tokenizer | None) -> list[Sample]:
    """The sequences of a group; with a tokenizer as text, else as messages.

    Raises: ConfigError where there are no messages.
    """
    scores = group["scores"]
    if tokenizer is None:
        messages = group.get("messages")
        if not messages:
            raise ConfigError("the groups hold no messages: leave --save-messages out, or set --env.include_messages")
        return [Sample(score, messages=each) for score, each in zip(scores, messages, strict=True)]
    length = _prompt_length(group)
    prefix = tokenizer.decode(group["tokens"][0][:length])
    return [
        Sample(score, prefix=prefix, completion=tokenizer.decode(tokens[length:]))
        for score, tokens in zip(scores, group["tokens"], strict=True)
    ]


def run_generator(
    arguments: argparse.Namespace,
    name: str,
    groups_per_batch: int,
    lines_per_group: int,
    choose: Callable[[ScoredDataGroup, Tokenizer | None, int, bool, float], Iterable[Line]],
) -> None:
    """Fill the file; exits with 2 where something is wrong, and keeps what was written.

    ``choose`` makes the lines of a group: how many at most, whether scores below 0 count, and how far scores must be
    apart are its further arguments.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        with open_output(arguments.filepath, arguments.append_to_previous) as file:
            tokenizer = None if arguments.save_messages else load_tokenizer(arguments.tokenizer, "--tokenizer")
            steps = -(-arguments.num_seqs_to_save // (groups_per_batch * max(1, lines_per_group)))
            # Filters may leave little of a batch: environments must not end before the file is full.
            run = Run(name, arguments.group_size, groups_per_batch, arguments.max_token_len, num_steps=100 * steps)
            source = GroupSource(arguments.api_url, token_from(arguments.api_token_env))
            bounds = (lines_per_group, arguments.allow_negative_scores, arguments.minimum_score_diff_max_min)
            asyncio.run(_fill(file, source, run, arguments, lambda group: choose(group, tokenizer, *bounds)))
    except AtroposError as error:
        _remove_if_new_and_empty(arguments)
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        _remove_if_new_and_empty(arguments)
        sys.exit(130)


def open_output(path: Path, append: bool) -> TextIO:
    """Open the file to write. Raises: ConfigError where it is there already and not to be appended to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a" if append else "x", encoding="utf-8")
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already: choose another name, or --append-to-previous") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _remove_if_new_and_empty(arguments: argparse.Namespace) -> None:
    path: Path = arguments.filepath
    if not arguments.append_to_previous and path.is_file() and path.stat().st_size == 0:
        path.unlink()


async def _fill(
    file: TextIO,
    source: GroupSource,
    run: Run,
    arguments: argparse.Namespace,
    lines_of: Callable[[ScoredDataGroup], Iterable[Line]],
) -> None:
    wanted: int = arguments.num_seqs_to_save
    saved = 0
    async with source:
        await source.reset()
        await source.register(run)
        async for batch in source.batches():
            lines = [line for group in batch for line in lines_of(group)][: wanted - saved]
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            file.flush()
            saved += len(lines)
            logger.info("%d of %d lines saved%s", saved, wanted, "" if lines else _why_none(batch, arguments))
            if saved >= wanted:
                return


def _why_none(batch: Sequence[ScoredDataGroup], arguments: argparse.Namespace) -> str:
    """What kept every group of a batch out of the file."""
    best = max(max(group["scores"]) for group in batch)
    distance = max(max(group["scores"]) - min(group["scores"]) for group in batch)
    negative = "" if arguments.allow_negative_scores else "; 0 and below only count with --allow-negative-scores"
    return (
        f": none of these {len(batch)} groups will do. Their best score is {best:.3g}{negative}; their scores are at "
        f"most {distance:.3g} apart (--minimum-score-diff-max-min is {arguments.minimum_score_diff_max_min:g})"
    )


def _prompt_length(group: ScoredDataGroup) -> int:
    """How many tokens all sequences begin with, none of them trained on."""
    rows, masks = group["tokens"], group["masks"]
    untrained = min(_first_trained(mask) for mask in masks)
    return next((i for i in range(untrained) if len({row[i] for row in rows}) > 1), untrained)


def _first_trained(mask: Sequence[int]) -> int:
    return next((i for i, value in enumerate(mask) if value != IGNORED_MASK), len(mask))


def as_line(sample: Sample, **more: Any) -> Line:
    """The line of a sequence: ``prefix`` (for text), what it says under a given key, and the score."""
    prefix: Mapping[str, Any] = {} if sample.prefix is None else {"prefix": sample.prefix}
    return {**prefix, **more, "score": sample.score}
