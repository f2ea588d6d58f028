"""The ids of groups that were accepted lately, so that a post which is repeated queues nothing twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from atroposlib.api.incoming import IncomingGroup


class GroupIds:
    """The last ``limit`` ids."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def unknown_of(self, groups: Iterable[IncomingGroup]) -> list[IncomingGroup]:
        """Return the groups that were not accepted before, each id once; those without an id are always new."""
        new: list[IncomingGroup] = []
        ids: set[str] = set()
        for group in groups:
            if group.group_id is None:
                new.append(group)
            elif group.group_id not in self._ids and group.group_id not in ids:
                ids.add(group.group_id)
                new.append(group)
        return new

    def remember(self, ids: Iterable[str | None]) -> Sequence[str]:
        """Add ids; returns those that became too old and are forgotten."""
        self._ids.update((each, None) for each in ids if each is not None)
        surplus = max(0, len(self._ids) - self._limit)
        return [self._ids.popitem(last=False)[0] for _ in range(surplus)]

    def clear(self) -> None:
        """Forget them all."""
        self._ids.clear()
