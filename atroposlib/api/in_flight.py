"""Batches that were handed to a trainer and not acknowledged yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from atroposlib.api.store import StoredGroup


class Delivery(Enum):
    """How far the answer that carries a batch is."""

    SENDING = auto()
    SENT = auto()
    """All of it went out to a trainer that was still there."""
    UNKNOWN = auto()
    """The server was restarted meanwhile."""


@dataclass(frozen=True)
class Batch:
    """Groups on their way to a trainer, in order of arrival."""

    batch_id: int
    groups: Sequence[StoredGroup]


class InFlight:
    """Batches by id, each with how far its answer is."""

    def __init__(self) -> None:
        self._batches: dict[int, Batch] = {}
        self._deliveries: dict[int, Delivery] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, batch_id: int) -> bool:
        return batch_id in self._batches

    def add(self, batch: Batch, delivery: Delivery = Delivery.SENDING) -> None:
        """Keep a batch until it is acknowledged or returned."""
        self._batches[batch.batch_id] = batch
        self._deliveries[batch.batch_id] = delivery

    def mark_sent(self, batch_id: int) -> None:
        """Note that the answer was sent in full."""
        self._deliveries[batch_id] = Delivery.SENT

    def pop(self, batch_id: int) -> Batch:
        """Give a batch up; raises KeyError where it is not in flight."""
        del self._deliveries[batch_id]
        return self._batches.pop(batch_id)

    def ids(self) -> list[int]:
        """All that are in flight, the oldest first."""
        return sorted(self._batches)

    def settled_by(self, acknowledged: int | None) -> tuple[list[int], list[int]]:
        """Sort the batches in flight by what a request for the next one says of them: (received, not received).

        With an id, that batch was received and no other. Without, those sent in full were received, and those of
        before a restart were not; what is still being sent stays in flight.
        """
        received: list[int] = []
        lost: list[int] = []
        for batch_id, delivery in self._deliveries.items():
            if acknowledged is not None:
                (received if batch_id == acknowledged else lost).append(batch_id)
            elif delivery is Delivery.SENT:
                received.append(batch_id)
            elif delivery is Delivery.UNKNOWN:
                lost.append(batch_id)
        return received, lost
