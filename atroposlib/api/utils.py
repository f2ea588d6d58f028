"""Old names of ``batching``, for groups that are dicts with ``tokens`` and ``env_id``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from atroposlib.api import batching

Group: TypeAlias = dict[str, Any]


def find_groups_summing_to_target(buffer: Sequence[Group], target_size: int) -> list[int]:
    """Return the indices of the oldest groups with ``target_size`` sequences in sum; empty if there are none."""
    return batching.choose_exact(_sizes(buffer), target_size) or []


def grab_exact_from_heterogeneous_queue(queue: list[Group], batch_size: int) -> tuple[list[Group] | None, list[Group]]:
    """Return (batch, what is left); the batch is None where no groups make ``batch_size`` sequences."""
    return _split(queue, batching.choose_exact(_sizes(queue), batch_size))


def grab_batch_with_minimum_allocations(
    queue: list[Group], batch_size: int, env_configs: Sequence[dict[str, Any]]
) -> tuple[list[Group] | None, list[Group]]:
    """The same, with a share of the batch for each connected environment that has a ``min_batch_allocation``."""
    fractions: dict[batching.EnvId, float] = {
        env["registered_id"]: env["min_batch_allocation"]
        for env in env_configs
        if env.get("connected") and env.get("min_batch_allocation") is not None
    }
    return _split(queue, batching.choose_with_fractions(_sizes(queue), batch_size, fractions))


def _sizes(groups: Iterable[Group]) -> list[batching.GroupSize]:
    return [batching.GroupSize(len(group["tokens"]), group.get("env_id")) for group in groups]


def _split(queue: list[Group], chosen: list[int] | None) -> tuple[list[Group] | None, list[Group]]:
    if chosen is None:
        return None, queue
    taken = frozenset(chosen)
    return [queue[i] for i in chosen], [group for i, group in enumerate(queue) if i not in taken]
