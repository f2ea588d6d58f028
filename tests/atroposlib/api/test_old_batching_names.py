"""``atroposlib.api.utils``: the old functions over groups that are dicts."""

from __future__ import annotations

from typing import Any

from atroposlib.api.utils import (
    find_groups_summing_to_target,
    grab_batch_with_minimum_allocations,
    grab_exact_from_heterogeneous_queue,
)


def group(sequences: int, env_id: int | None = None) -> dict[str, Any]:
    return {"tokens": [[1]] * sequences, "env_id": env_id}


def test_groups_summing_to_a_target_are_the_oldest():
    assert find_groups_summing_to_target([group(3), group(2), group(1), group(2)], 4) == [0, 2]
    assert find_groups_summing_to_target([group(3)], 4) == []
    assert find_groups_summing_to_target([], 4) == []


def test_a_batch_leaves_the_rest_of_the_queue():
    queue = [group(3), group(4), group(1)]
    batch, rest = grab_exact_from_heterogeneous_queue(queue, 4)
    assert (batch, rest) == ([queue[1]], [queue[0], queue[2]])
    assert grab_exact_from_heterogeneous_queue(queue, 9) == (None, queue)


def test_only_connected_environments_have_a_minimum():
    configs = [
        {"registered_id": 0, "connected": True, "min_batch_allocation": None},
        {"registered_id": 1, "connected": True, "min_batch_allocation": 0.5},
    ]
    queue = [group(4, 0), group(4, 0), group(4, 1)]
    batch, rest = grab_batch_with_minimum_allocations(queue, 8, configs)
    assert (batch, rest) == ([queue[0], queue[2]], [queue[1]])
    assert grab_batch_with_minimum_allocations(queue[:2], 8, configs) == (None, queue[:2])
    configs[1]["connected"] = False
    assert grab_batch_with_minimum_allocations(queue, 8, configs)[0] == queue[:2]
