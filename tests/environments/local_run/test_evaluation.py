import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.local_run.evaluation import SuccessRate, read_success_rate


def test_the_interval_of_a_known_case_matches_wilsons_published_value():
    # 81 of 263: 0.2553 to 0.3662 (R. G. Newcombe, Statistics in Medicine 17, 1998, table I)
    rate = SuccessRate(81, 263)
    assert (rate.low, rate.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_stays_within_zero_and_one(case):
    rate = SuccessRate(*case)
    assert 0.0 <= rate.low <= rate.rate + 1e-12
    assert rate.rate - 1e-12 <= rate.high <= 1.0


def test_only_full_rewards_count_and_failed_rollouts_are_not_scores(tmp_path):
    path = tmp_path / "samples.jsonl"
    rewards = [1.0, 0.5, 1.0, None, 0.0]
    path.write_text("".join(json.dumps({"reward": reward}) + "\n" for reward in rewards))
    assert read_success_rate(path) == SuccessRate(successes=2, items=4)


def test_a_file_without_rewards_is_an_error(tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ValueError, match="no sample with a reward"):
        read_success_rate(path)
