"""Which waiting groups make the next batch: pure functions over sizes.

Promises:

- a batch holds exactly the asked number of sequences, and is found whenever some set of waiting groups makes it;
- it is made of the shortest prefix of the queue that can make it, and of the oldest groups of that prefix;
- groups are never split.

Sets of reachable sums are integers used as bit sets: bit ``s`` says that some of the groups add up to ``s``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

EnvId: TypeAlias = int | None
Shares: TypeAlias = Mapping[EnvId, int]
"""Sequences of each batch that an environment is sure of, by its id."""


class Group(Protocol):
    """What batching needs to know of a group: its sequences, and whose it is."""

    @property
    def sequences(self) -> int: ...
    @property
    def env_id(self) -> EnvId: ...


@dataclass(frozen=True)
class GroupSize:
    """A group that is nothing but its size."""

    sequences: int
    env_id: EnvId = None


def choose_in_order(groups: Iterable[Group], target: int) -> list[int] | None:
    """Return the indices of the longest prefix that fits into ``target`` sequences, once it is known to be the longest.

    None while a further group could still join. Raises: ValueError for a group larger than ``target``.
    """
    taken = 0
    for index, group in enumerate(groups):
        if group.sequences > target:
            raise ValueError(f"a group of {group.sequences} sequences does not fit into a batch of {target}")
        if taken + group.sequences > target:
            return list(range(index))
        taken += group.sequences
        if taken == target:
            return list(range(index + 1))
    return None


def choose_exact(groups: Iterable[Group], target: int, shares: Shares | None = None) -> list[int] | None:
    """Return the indices, in order, of groups with exactly ``target`` sequences in sum; None if there are none.

    Every environment in ``shares`` gets at least its number of sequences.
    """
    shares = shares or {}
    prefix = _shortest_prefix(groups, target, shares)
    return None if prefix is None else _oldest_of(prefix, target, shares)


def choose_with_fractions(groups: Iterable[Group], target: int, fractions: Mapping[EnvId, float]) -> list[int] | None:
    """``choose_exact`` with shares given as fractions of the batch. ``groups`` is iterated more than once.

    Where every environment has its share waiting, and whole groups cannot meet all shares together, each share is
    lowered to whole groups.
    """
    shares = sequence_shares(target, fractions)
    chosen = choose_exact(groups, target, shares)
    if chosen is None and shares and not missing_shares(groups, shares):
        chosen = choose_exact(groups, target, _in_whole_groups(shares, groups))
    return chosen


def missing_shares(groups: Iterable[Group], shares: Shares) -> list[EnvId]:
    """Return the environments that have less than their share among ``groups``."""
    missing = dict(shares)
    for group in groups:
        if group.env_id in missing:
            missing[group.env_id] -= group.sequences
    return [env_id for env_id, sequences in missing.items() if sequences > 0]


def sequence_shares(target: int, fractions: Mapping[EnvId, float]) -> dict[EnvId, int]:
    """Turn fractions of a batch into whole sequences; fractions above 1 in sum are scaled down to it."""
    scale = max(1.0, sum(fractions.values()))
    shares = {env_id: int(target * fraction / scale) for env_id, fraction in fractions.items()}
    return {env_id: share for env_id, share in shares.items() if share > 0}


def _in_whole_groups(shares: Shares, groups: Iterable[Group]) -> dict[EnvId, int]:
    """Lower each share to a multiple of the smallest group that its environment has."""
    smallest: dict[EnvId, int] = {}
    for group in groups:
        if group.env_id in shares:
            smallest[group.env_id] = min(group.sequences, smallest.get(group.env_id, group.sequences))
    return {env_id: share - share % smallest.get(env_id, 1) for env_id, share in shares.items()}


class _Needs:
    """What a batch must add up to: ``target`` in all, and each environment with a share at least that share."""

    def __init__(self, target: int, shares: Shares) -> None:
        self.target = target
        self.owners: tuple[EnvId, ...] = (*shares, None)
        self._mask = (1 << (target + 1)) - 1
        self._allowed = {owner: self._mask & ~((1 << share) - 1) for owner, share in shares.items()}
        self._allowed[None] = self._mask

    def owner(self, group: Group) -> EnvId:
        """The environment whose share the group counts for; None for all that have none."""
        return group.env_id if group.env_id in self._allowed else None

    def shifted(self, sums: int, size: int) -> int:
        """The sums reached by adding ``size`` to each."""
        return (sums << size) & self._mask

    def met_by(self, sums: Mapping[EnvId, int]) -> bool:
        """Whether one sum of each owner, large enough for its share, can be picked so that all make the target."""
        reachable = 1
        for owner in self.owners:
            reachable = self._added(reachable, sums[owner] & self._allowed[owner])
        return bool(reachable >> self.target & 1)

    def _added(self, left: int, right: int) -> int:
        few, many = sorted((left, right), key=int.bit_count)
        result = 0
        while few:
            lowest = few & -few
            result |= many << (lowest.bit_length() - 1)
            few ^= lowest
        return result & self._mask


def _shortest_prefix(groups: Iterable[Group], target: int, shares: Shares) -> list[Group] | None:
    needs = _Needs(target, shares)
    sums: dict[EnvId, int] = dict.fromkeys(needs.owners, 1)
    prefix: list[Group] = []
    total = 0
    for group in groups:
        prefix.append(group)
        total += group.sequences
        owner = needs.owner(group)
        grown = sums[owner] | needs.shifted(sums[owner], group.sequences)
        if grown == sums[owner]:
            continue  # nothing that was out of reach came into it
        sums[owner] = grown
        if total >= target and needs.met_by(sums):
            return prefix
    return None


def _oldest_of(prefix: Sequence[Group], target: int, shares: Shares) -> list[int]:
    """Walk from the oldest group and take each with which the younger ones can still complete the batch."""
    needs = _Needs(target, shares)
    left, left_after = _sums_to_come(prefix, needs)
    taken: dict[EnvId, int] = dict.fromkeys(needs.owners, 0)
    chosen: list[int] = []
    refused: set[tuple[EnvId, int]] = set()  # what does not fit now does not fit later, until something is taken
    for index, group in enumerate(prefix):
        owner = needs.owner(group)
        left[owner] = left_after[index]
        if (owner, group.sequences) in refused:
            continue
        with_it = {**taken, owner: taken[owner] + group.sequences}
        if needs.met_by({each: needs.shifted(left[each], with_it[each]) for each in needs.owners}):
            taken = with_it
            chosen.append(index)
            refused.clear()
        else:
            refused.add((owner, group.sequences))
    return chosen


def _sums_to_come(prefix: Sequence[Group], needs: _Needs) -> tuple[dict[EnvId, int], list[int]]:
    """Return each owner's sums over the whole prefix, and per group those of its owner's younger groups."""
    sums: dict[EnvId, int] = dict.fromkeys(needs.owners, 1)
    after = [1] * len(prefix)
    for index in range(len(prefix) - 1, -1, -1):
        owner = needs.owner(prefix[index])
        after[index] = sums[owner]
        sums[owner] |= needs.shifted(sums[owner], prefix[index].sequences)
    return sums, after
