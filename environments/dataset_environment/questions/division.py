"""Which rows are trained on and which are held out. Equal questions always stay on one side."""

from __future__ import annotations

import random
from collections.abc import Container, Hashable, Sequence


def hold_out(keys: Sequence[Hashable], most: int, seed: int) -> tuple[list[int], list[int]]:
    """Part the rows with these keys: (those to train on, those held out), the latter at most ``most`` questions.

    Neither side is emptied: with fewer than two different questions nothing is held out. The same seed parts alike.
    """
    different = list(dict.fromkeys(keys))
    count = min(most, len(different) - 1)
    if count < 1:
        return list(range(len(keys))), []
    chosen = set(random.Random(seed).sample(different, count))
    kept = [row for row, key in enumerate(keys) if key not in chosen]
    return kept, first_of_each(keys, chosen)


def first_of_each(keys: Sequence[Hashable], wanted: Container[Hashable]) -> list[int]:
    """The first row of each wanted key: a question that stands twice is asked once."""
    seen: dict[Hashable, int] = {}
    for row, key in enumerate(keys):
        if key in wanted:
            seen.setdefault(key, row)
    return list(seen.values())


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    """The numbers below ``count`` in the order of this seed and epoch."""
    order = list(range(count))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order
