"""A number of processors in the terms of control groups."""

from hypothesis import given
from hypothesis import strategies as st

from sandboxes.processor import ProcessorShare


def test_a_processor_is_the_whole_of_every_period():
    assert ProcessorShare.of(1.0) == ProcessorShare(period_us=200_000, quota_us=200_000, shares=1024, weight=100)


def test_a_small_share_has_longer_periods_since_no_kernel_takes_a_quota_below_a_millisecond():
    share = ProcessorShare.of(0.004)
    assert (share.period_us, share.quota_us) == (250_000, 1_000)


@given(st.floats(min_value=0.001, max_value=512))
def test_every_share_is_one_that_kernels_take(cpus: float):
    share = ProcessorShare.of(cpus)
    assert share.quota_us >= 1_000
    assert 1_000 <= share.period_us <= 1_000_000
    assert 2 <= share.shares <= 262_144
    assert 1 <= share.weight <= 10_000
    assert abs(share.quota_us / share.period_us - cpus) <= 0.001
