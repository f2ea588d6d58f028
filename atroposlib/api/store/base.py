"""The contract of a store: what must outlive the server's process.

The queue lives in memory; a store is its journal. Every change is handed over synchronously, in order, and is on its
way from then on; ``flushed`` waits until all that was handed over is safe. A server answers only after ``flushed``, so
what was acknowledged is never lost.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]
"""A JSON object; what is in it is the queue's matter."""


@dataclass(frozen=True)
class StoredGroup:
    """A group as it waits: where it stands in the order of arrival, whose it is, and its JSON."""

    number: int
    sequences: int
    env_id: int | None
    group_id: str | None
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class StoredBatch:
    """A batch that was handed out and not acknowledged: the numbers of its groups, and whether all of it was sent."""

    numbers: Sequence[int]
    sent: bool


@dataclass(frozen=True)
class StoredState:
    """All that a store holds when a server starts."""

    run: Record | None = None
    environments: Sequence[Record] = ()
    groups: Sequence[StoredGroup] = ()
    """Not yet acknowledged by a trainer, in order of arrival."""
    batches: Mapping[int, StoredBatch] = field(default_factory=dict)
    """Those handed out and not acknowledged, by id."""
    group_ids: Sequence[str] = ()
    """Ids of groups that were accepted, the oldest first, delivered ones among them."""


class Store(ABC):
    """A journal of the queue. Methods that change it return at once; see ``flushed``."""

    @abstractmethod
    def load(self) -> StoredState:
        """Read everything back. Called once, before any change. Raises: StoreError."""

    @abstractmethod
    def save_run(self, run: Record) -> None:
        """Replace the record of the run."""

    @abstractmethod
    def save_environment(self, env_id: int, environment: Record) -> None:
        """Replace the record of one environment."""

    @abstractmethod
    def add(self, groups: Sequence[StoredGroup]) -> None:
        """Keep groups and their ids."""

    @abstractmethod
    def save_batch(self, batch_id: int, numbers: Iterable[int]) -> None:
        """Note that these groups are on their way to a trainer."""

    @abstractmethod
    def mark_sent(self, batch_id: int) -> None:
        """Note that all of the batch was sent."""

    @abstractmethod
    def return_batch(self, batch_id: int) -> None:
        """Note that the groups of a batch wait again."""

    @abstractmethod
    def remove_batch(self, batch_id: int) -> None:
        """Forget a batch with its groups, not their ids: it was acknowledged."""

    @abstractmethod
    def remove(self, numbers: Iterable[int]) -> None:
        """Forget groups, not their ids: they were dropped."""

    @abstractmethod
    def forget_group_ids(self, group_ids: Sequence[str]) -> None:
        """Forget ids that are too old to be sent again."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything: a new run begins."""

    @abstractmethod
    async def flushed(self) -> None:
        """Wait until all changes so far would survive the end of the process.

        Raises: StoreError, and from then on always.
        """

    @abstractmethod
    def close(self) -> None:
        """Write what is outstanding and release the store."""
