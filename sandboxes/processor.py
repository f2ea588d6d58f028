"""A box's share of the processors, in the terms of control groups."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

_PERIOD_US = 200_000
_LONGEST_PERIOD_US = 1_000_000
_LEAST_QUOTA_US = 1_000

# Trainers of one machine begin anywhere, and give their boxes one core after the other.
_next_cores = itertools.count(random.randrange(1 << 16))


@dataclass(frozen=True)
class ProcessorShare:
    """At most ``quota_us`` microseconds of processor time in each period, and a weight beside others that want it.

    The period is twice what is usual. Each time that a box is let go on, a neighbour may wait for the kernel's next
    tick, so the fewer periods, the fewer waits: of 5, 10, 20, 50, 100 and 200 ms the longest was the kindest to the
    99th percentile. Only the box itself waits longer, once it has spent its quota. The weight grows with the quota, as
    Kubernetes has it. Source: the kernel's documentation, ``admin-guide/cgroup-v2`` and ``scheduler/sched-bwc``.
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


def cores_of(cpus: float) -> tuple[int, int]:
    """On how many cores a box of ``cpus`` runs, and from which one on, counted in a ring; each box begins one further.

    One core more than the whole ones that it may spend: enough for all of them while one is held by somebody else, and
    few enough that a box which spins leaves the others alone. Programs in it see as many, and start as many threads.
    """
    return int(cpus) + 1, next(_next_cores) % (1 << 32)
