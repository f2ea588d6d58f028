"""A box's share of the processors, in the terms of control groups."""

from __future__ import annotations

from dataclasses import dataclass

_PERIOD_US = 10_000
_LONGEST_PERIOD_US = 1_000_000
_LEAST_QUOTA_US = 1_000


@dataclass(frozen=True)
class ProcessorShare:
    """At most ``quota_us`` microseconds of processor time in each period, and a weight beside others that want it.

    The period is a tenth of what is usual, unless the quota were less than kernels take: a box that spends it at once
    holds up its neighbours for a tenth of the time. The weight grows with the quota, as Kubernetes has it.
    Source: the kernel's documentation, ``admin-guide/cgroup-v2`` and ``scheduler/sched-bwc``.
    """

    period_us: int
    quota_us: int
    shares: int
    """Weight in the first version of control groups: 1024 for one processor."""
    weight: int
    """Weight in the second version: 100 for one processor."""

    @classmethod
    def of(cls, cpus: float) -> ProcessorShare:
        """The share that is worth ``cpus`` processors."""
        period = min(_LONGEST_PERIOD_US, max(_PERIOD_US, round(_LEAST_QUOTA_US / cpus)))
        return cls(
            period_us=period,
            quota_us=max(_LEAST_QUOTA_US, round(cpus * period)),
            shares=min(262_144, max(2, round(1024 * cpus))),
            weight=min(10_000, max(1, round(100 * cpus))),
        )
