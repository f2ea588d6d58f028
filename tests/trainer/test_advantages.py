"""Advantages within a group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages import group_advantages


def test_advantages_are_deviations_from_the_mean_in_units_of_the_deviation() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 1.0], [0, 1, 2, 3]) == pytest.approx([1.0, -1.0, -1.0, 1.0])


def test_rollout_of_several_sequences_counts_once() -> None:
    # rollouts a (three sequences) and b: mean 0.5 and deviation 0.5, not the mean 0.75 over sequences
    assert group_advantages([1.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b"]) == pytest.approx([1.0, 1.0, 1.0, -1.0])


@pytest.mark.parametrize("score", [0.1, 0.0, -3.7])
def test_equal_scores_teach_nothing(score: float) -> None:
    assert group_advantages([score] * 6, range(6)) == pytest.approx([0.0] * 6, abs=1e-6)


def test_group_of_one_rollout_keeps_its_score() -> None:
    assert group_advantages([0.7], [0]) == [0.7]
    assert group_advantages([0.7, 0.7], ["a", "a"]) == [0.7, 0.7]


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_advantages_sum_to_zero_and_order_as_the_scores(scores: list[float]) -> None:
    advantages = group_advantages(scores, range(len(scores)))
    assert sum(advantages) == pytest.approx(0.0, abs=1e-4)
    for a, b in zip(sorted(zip(scores, advantages, strict=True)), sorted(advantages), strict=True):
        assert a[1] == pytest.approx(b, abs=1e-4)


@given(st.lists(st.integers(0, 10), min_size=2, max_size=8), st.integers(1, 5), st.integers(0, 5))
def test_advantages_do_not_depend_on_scale_or_offset_of_the_scores(scores: list[int], scale: int, offset: int) -> None:
    plain = group_advantages([float(s) for s in scores], range(len(scores)))
    changed = group_advantages([scale * s + offset for s in map(float, scores)], range(len(scores)))
    assert changed == pytest.approx(plain, abs=1e-6)
