"""Picks the next batch among the waiting groups, and says why there is none."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from atroposlib.api import batching
from atroposlib.api.environments import EnvironmentRegistry
from atroposlib.api.waiting_groups import WaitingGroups
from atroposlib.wire import Registration

logger = logging.getLogger(__name__)


class BatchMaker:
    """``stalled`` tells, after each ``choose``, why no batch could be made although enough sequences wait."""

    def __init__(self) -> None:
        self.stalled: str | None = None

    def choose(
        self, registration: Registration, waiting: WaitingGroups, environments: EnvironmentRegistry
    ) -> list[int] | None:
        """Return the places of the groups that make the next batch, the oldest first; None while there is none."""
        target = registration.batch_size
        if registration.batching == "fifo":
            return batching.choose_in_order(waiting, target)
        chosen, reason = None, None
        if waiting.total.sequences >= target:
            fractions = environments.batch_fractions()
            chosen = batching.choose_with_fractions(waiting, target, fractions)
            reason = None if chosen is not None else _why_none(waiting, target, fractions)
        if reason is not None and self.stalled is None:
            logger.warning("no batch can be made: %s", reason)
        self.stalled = reason
        return chosen


def _why_none(waiting: WaitingGroups, target: int, fractions: Mapping[batching.EnvId, float]) -> str:
    missing = batching.missing_shares(waiting, batching.sequence_shares(target, fractions))
    if missing:
        return f"min_batch_allocation: waiting for groups of the environments {missing}"
    sizes = f"{waiting.total.sequences} sequences wait in groups of {waiting.sizes}"
    return f"{sizes}, of which no sum is the batch_size {target}"
