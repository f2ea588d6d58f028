"""``atropos-sft-gen``: save the best sequences of each group for fine-tuning.

Lines are ``{"prefix", "completion", "score"}`` or, with --save-messages, ``{"messages", "score"}``. The command takes
the trainer's place at the server and resets the run there.
"""

from __future__ import annotations

from collections.abc import Sequence

from atroposlib.cli.counts import positive
from atroposlib.cli.dataset_file import Line, Tokenizer, add_arguments, as_line, run_generator, samples_of
from atroposlib.flag_parser import FlagParser
from atroposlib.wire import ScoredDataGroup


def best_of_group(
    group: ScoredDataGroup,
    tokenizer: Tokenizer | None,
    most: int,
    allow_negative_scores: bool = False,
    minimum_score_difference: float = 0.0,
) -> list[Line]:
    """Return the lines of the best sequences of a group, at most ``most``, the best first.

    Only scores above 0 count unless told otherwise, and only those further above the group's lowest than
    ``minimum_score_difference`` (if it is above 0).
    """
    samples = samples_of(group, tokenizer)
    lowest = min(sample.score for sample in samples)
    kept = [
        sample
        for sample in sorted(samples, key=lambda each: each.score, reverse=True)
        if (allow_negative_scores or sample.score > 0)
        and (minimum_score_difference <= 0 or sample.score - lowest > minimum_score_difference)
    ]
    key = "messages" if tokenizer is None else "completion"
    return [as_line(sample, **{key: sample.said}) for sample in kept[:most]]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exits with 2 where something is wrong."""
    parser = FlagParser(prog="atropos-sft-gen", description=__doc__.split("\n")[0])
    add_arguments(parser, score_difference=0.0)
    parser.add_argument("--save-top-n-per-group", type=positive, default=3, help="most lines of one group")
    parser.add_argument("--tasks-per-step", type=positive, default=64, help="groups of a batch")
    arguments = parser.parse_args(argv)
    run_generator(arguments, "sft-gen", arguments.tasks_per_step, arguments.save_top_n_per_group, best_of_group)


if __name__ == "__main__":
    main()
