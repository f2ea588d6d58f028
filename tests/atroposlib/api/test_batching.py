"""Exact batches: always found where there is one, made of the oldest groups, nothing lost and nothing twice."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atroposlib.api.batching import (
    GroupSize,
    choose_exact,
    choose_in_order,
    choose_with_fractions,
    missing_shares,
    sequence_shares,
)

GROUPS = st.lists(st.builds(GroupSize, st.integers(1, 9), st.sampled_from([0, 1, 2, None])), max_size=10)
TARGETS = st.integers(1, 24)
SHARES = st.dictionaries(st.sampled_from([0, 1]), st.integers(1, 8), max_size=2)


def meets(groups: list[GroupSize], chosen: tuple[int, ...] | list[int], target: int, shares: dict[int, int]) -> bool:
    picked = [groups[i] for i in chosen]
    return sum(g.sequences for g in picked) == target and all(
        sum(g.sequences for g in picked if g.env_id == env_id) >= share for env_id, share in shares.items()
    )


def every_batch(groups: list[GroupSize], target: int, shares: dict[int, int]) -> list[tuple[int, ...]]:
    """All solutions, by trying all of them."""
    places = range(len(groups))
    return [
        chosen
        for count in range(1, len(groups) + 1)
        for chosen in combinations(places, count)
        if meets(groups, chosen, target, shares)
    ]


@given(GROUPS, TARGETS, SHARES)
@settings(max_examples=300, deadline=None)
def test_a_batch_is_found_exactly_where_some_groups_make_one(groups, target, shares):
    chosen = choose_exact(groups, target, shares)
    solutions = every_batch(groups, target, shares)
    assert (chosen is None) == (not solutions)
    assert chosen is None or tuple(chosen) in solutions


@given(GROUPS, TARGETS, SHARES)
@settings(max_examples=300, deadline=None)
def test_a_batch_is_the_oldest_of_those_that_are_complete_first(groups, target, shares):
    solutions = every_batch(groups, target, shares)
    chosen = choose_exact(groups, target, shares)
    if solutions:
        complete_first = min(solution[-1] for solution in solutions)
        assert tuple(chosen) == min(solution for solution in solutions if solution[-1] == complete_first)


@given(st.lists(st.builds(GroupSize, st.integers(1, 8), st.sampled_from([0, 1])), max_size=60), st.integers(8, 16))
@settings(deadline=None)
def test_draining_a_queue_loses_and_repeats_nothing(groups, target):
    waiting = list(enumerate(groups))
    delivered: list[int] = []
    while (chosen := choose_exact([group for _, group in waiting], target)) is not None:
        assert sum(waiting[i][1].sequences for i in chosen) == target
        delivered += [waiting[i][0] for i in chosen]
        waiting = [entry for i, entry in enumerate(waiting) if i not in chosen]
    assert sorted(delivered + [number for number, _ in waiting]) == list(range(len(groups)))


@given(st.integers(1, 16).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), max_size=30))))
def test_batches_in_order_are_the_longest_prefixes_that_fit(case):
    target, sizes = case
    queue = [GroupSize(size) for size in sizes]
    while (chosen := choose_in_order(queue, target)) is not None:
        taken = sum(queue[i].sequences for i in chosen)
        assert chosen == list(range(len(chosen)))
        assert taken == target or taken + queue[len(chosen)].sequences > target
        queue = queue[len(chosen) :]
    assert sum(group.sequences for group in queue) < target


def test_a_group_larger_than_the_batch_is_an_error_in_order():
    with pytest.raises(ValueError, match="does not fit"):
        choose_in_order([GroupSize(9)], 8)


def test_sizes_that_are_no_power_of_two_do_not_block_the_queue():
    assert choose_exact([GroupSize(3), GroupSize(4)], 4) == [1]
    assert choose_exact([GroupSize(8)] * 40, 12) is None
    assert choose_exact([GroupSize(8)] * 40 + [GroupSize(4)], 12) == [0, 40]


def test_an_environment_gets_its_share_from_however_far_behind():
    groups = [GroupSize(4, 0)] * 50 + [GroupSize(4, 1)]
    assert choose_exact(groups, 8, {1: 3}) == [0, 50]


def test_a_share_that_nothing_waits_for_makes_no_batch():
    assert choose_with_fractions([GroupSize(4, 0)] * 5, 8, {1: 0.5}) is None
    assert missing_shares([GroupSize(4, 0)] * 5, {0: 4, 1: 4}) == [1]


def test_shares_that_whole_groups_cannot_meet_together_are_lowered():
    ten_environments = [GroupSize(8, env_id) for env_id in range(10)]
    fractions = dict.fromkeys(range(10), 0.1)
    assert choose_exact(ten_environments, 64, sequence_shares(64, fractions)) is None
    assert choose_with_fractions(ten_environments, 64, fractions) == list(range(8))


def test_fractions_above_one_are_scaled_down():
    assert sequence_shares(12, {0: 0.75, 1: 0.75}) == {0: 6, 1: 6}
    assert sequence_shares(12, {0: 0.5, 1: 0.01}) == {0: 6}
