"""Advantages of process supervision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atroposlib.utils.advantages import (
    allclose_to_first,
    compute_discounted_returns,
    compute_grpo_process_supervision_advantages,
    compute_stats,
)

REWARDS = st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), min_size=1, max_size=5)


@given(REWARDS)
def test_the_variance_is_never_negative(rewards):
    stats = compute_stats(rewards)
    flat = np.concatenate([np.array(each) for each in rewards])
    assert stats["var"] >= 0
    assert stats["mean"] == pytest.approx(flat.mean(), abs=1e-6)
    assert stats["var"] == pytest.approx(flat.var(), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("rewards", [[[0.1] * 6], ((0.1,) * 6,), [np.full(6, 0.1)], np.full((2, 3), 0.1)])
def test_equal_rewards_teach_nothing(rewards):
    with pytest.raises(ValueError, match="std"):
        compute_grpo_process_supervision_advantages(rewards)


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_an_advantage_is_the_sum_of_normalised_rewards_to_come(kind):
    advantages = compute_grpo_process_supervision_advantages([kind([0.0, 2.0]), kind([1.0])])
    deviation = np.sqrt(2 / 3)
    np.testing.assert_allclose(advantages[0], [0.0, 1 / deviation])
    np.testing.assert_allclose(advantages[1], [0.0])


def test_rewards_to_come_can_be_discounted():
    np.testing.assert_allclose(compute_discounted_returns([1, 1, 1], 0.5), [1.75, 1.5, 1.0])
    first, _ = compute_grpo_process_supervision_advantages([[0.0, 2.0], [1.0]], gamma=0.5)
    np.testing.assert_allclose(first, np.array([-0.5, 1.0]) / np.sqrt(2 / 3))


@pytest.mark.parametrize("data", [[], [[], []], ["text"], [None]])
def test_statistics_of_no_numbers_are_an_error(data):
    with pytest.raises(ValueError, match="numbers"):
        compute_stats(data)


def test_rows_are_compared_with_the_first():
    rows = [[1.0, 2.0], [1.0, 2.0 + 1e-9], [1.0, 3.0]]
    assert allclose_to_first(rows) is False
    assert allclose_to_first(rows[:2]) is True
    assert allclose_to_first(rows, return_vector=True).tolist() == [True, True, False]
