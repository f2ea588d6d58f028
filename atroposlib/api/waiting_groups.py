"""The groups that wait for a batch, in order of arrival, with counters that never need a scan."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from atroposlib.api.store import StoredGroup


@dataclass(frozen=True)
class QueueLimits:
    """How much may wait; ``group_ids`` is how many ids of accepted groups are remembered."""

    groups: int = 100_000
    bytes: int = 2 * 1024**3
    group_ids: int = 100_000

    def allow(self, groups: int, size: int) -> bool:
        """Whether so many groups, of so many bytes in all, may wait."""
        return groups <= self.groups and size <= self.bytes

    def shared_by(self, parties: int) -> QueueLimits:
        """The equal part of one of several."""
        parties = max(1, parties)
        return QueueLimits(self.groups // parties, self.bytes // parties, self.group_ids)


@dataclass
class Usage:
    """How much waits, of one environment or in all."""

    groups: int = 0
    sequences: int = 0
    bytes: int = 0

    def add(self, group: StoredGroup, sign: int = 1) -> None:
        """Count one group in (``sign`` 1) or out (-1)."""
        self.groups += sign
        self.sequences += sign * group.sequences
        self.bytes += sign * len(group.body)


class WaitingGroups:
    """Groups by number; numbers rise with arrival."""

    def __init__(self) -> None:
        # A linked order: a plain dict would walk over all that was taken from its front, at every look at the oldest.
        self._groups: OrderedDict[int, StoredGroup] = OrderedDict()
        self._sizes: Counter[int] = Counter()
        self.total = Usage()
        self.by_env: dict[int | None, Usage] = {}

    def __iter__(self) -> Iterator[StoredGroup]:
        """The oldest first."""
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def sizes(self) -> list[int]:
        """The different numbers of sequences that groups have, rising."""
        return sorted(self._sizes)

    @property
    def largest(self) -> int:
        """The most sequences that a group has, 1 where none waits."""
        return max(self._sizes, default=1)

    def of_env(self, env_id: int | None) -> Usage:
        """How much one environment has waiting."""
        return self.by_env.get(env_id, Usage())

    def append(self, group: StoredGroup) -> None:
        """Add a group that is younger than all others."""
        self._groups[group.number] = group
        self._count(group, 1)

    def put_back(self, groups: Iterable[StoredGroup]) -> None:
        """Add groups that were taken, each in its old place."""
        for group in groups:
            self.append(group)
        self._groups = OrderedDict(sorted(self._groups.items()))

    def take(self, positions: Collection[int]) -> list[StoredGroup]:
        """Remove and return the groups at these places, counted from the oldest."""
        last = max(positions, default=-1)
        wanted = frozenset(positions)
        taken = [g for place, g in zip(range(last + 1), self, strict=False) if place in wanted]
        self._remove(taken)
        return taken

    def take_larger_than(self, sequences: int) -> list[StoredGroup]:
        """Remove and return the groups that have more than so many sequences."""
        taken = [group for group in self if group.sequences > sequences]
        self._remove(taken)
        return taken

    def _remove(self, groups: Iterable[StoredGroup]) -> None:
        for group in groups:
            del self._groups[group.number]
            self._count(group, -1)

    def _count(self, group: StoredGroup, sign: int) -> None:
        self.total.add(group, sign)
        self.by_env.setdefault(group.env_id, Usage()).add(group, sign)
        self._sizes[group.sequences] += sign
        if not self._sizes[group.sequences]:
            del self._sizes[group.sequences]
