"""``atropos-dpo-gen``: save pairs of a better and a worse sequence of a group, for preference training.

Lines are ``{"prefix", "pos", "neg", "score"}`` or, with --save-messages, ``{"pos", "neg", "score"}``; the score is that
of the better one. The command takes the trainer's place at the server and resets the run there.
"""

from __future__ import annotations

from collections.abc import Sequence

from atroposlib.cli.counts import positive
from atroposlib.cli.dataset_file import Line, Tokenizer, add_arguments, as_line, run_generator, samples_of
from atroposlib.flag_parser import FlagParser
from atroposlib.wire import ScoredDataGroup

_GROUPS_PER_BATCH = 8


def pairs_of_group(
    group: ScoredDataGroup,
    tokenizer: Tokenizer | None,
    most: int,
    allow_negative_scores: bool = False,
    minimum_score_difference: float = 0.0,
) -> list[Line]:
    """Return the lines of at most ``most`` pairs: the best with the worst, the second best with the second worst, …

    A sequence stands in one pair. The better one has a score above 0 unless told otherwise, and more than
    ``minimum_score_difference`` above that of the worse one.
    """
    samples = sorted(samples_of(group, tokenizer), key=lambda each: each.score, reverse=True)
    lines = []
    for better, worse in list(zip(samples, reversed(samples), strict=True))[: min(most, len(samples) // 2)]:
        if better.score - worse.score <= max(0.0, minimum_score_difference):
            break
        if allow_negative_scores or better.score > 0:
            lines.append(as_line(better, pos=better.said, neg=worse.said))
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; exits with 2 where something is wrong."""
    parser = FlagParser(prog="atropos-dpo-gen", description=__doc__.split("\n")[0])
    add_arguments(parser, score_difference=0.5)
    parser.add_argument("--save-n-pairs-per-group", type=positive, default=3, help="most lines of one group")
    arguments = parser.parse_args(argv)
    run_generator(arguments, "dpo-gen", _GROUPS_PER_BATCH, arguments.save_n_pairs_per_group, pairs_of_group)


if __name__ == "__main__":
    main()
