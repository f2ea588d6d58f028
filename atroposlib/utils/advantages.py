"""Advantages of GRPO with process supervision, and the statistics they need.

Input may be lists, tuples or NumPy arrays, jagged or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    BoolVector: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
    FloatVector: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]

Nested: TypeAlias = Any
"""Numbers, or sequences of such, however deep."""


def allclose_to_first(
    values: Nested, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False, return_vector: bool = False
) -> BoolVector | bool:
    """Tell whether every entry of ``values`` (rectangular) is close to the first one; one answer each, if asked."""
    import numpy as np

    array = np.asarray(values)
    close = np.isclose(array, array[0], rtol=rtol, atol=atol, equal_nan=equal_nan)
    each: BoolVector = close.reshape(len(array), -1).all(axis=1)
    return each if return_vector else bool(each.all())


def compute_stats(data: Nested) -> dict[str, float]:
    """Return ``mean`` and ``var`` (of the population, never negative) of all numbers in a nested sequence.

    Raises: ValueError where there is no number, or something else than numbers.
    """
    numbers = list(_flat(data))
    if not numbers:
        raise ValueError("no numbers to compute statistics of")
    mean = math.fsum(numbers) / len(numbers)
    return {"mean": mean, "var": math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)}


def compute_discounted_returns(rewards: Sequence[float] | FloatVector, gamma: float) -> FloatVector:
    """Return, for each time, the sum of the rewards from then on, each discounted by ``gamma`` per step."""
    import numpy as np

    returns = np.array(rewards, dtype=np.float64)
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += gamma * returns[t + 1]
    return returns


def compute_grpo_process_supervision_advantages(
    rewards: Iterable[Any], gamma: float | None = None, std_tol: float = 1e-8
) -> list[FloatVector]:
    """Return the advantage of every step of every trajectory of a group.

    ``rewards`` holds the rewards of each trajectory's steps. They are normalised over the whole group; the advantage
    of a step is the sum of the rewards from it on, discounted if ``gamma`` is given.

    Raises: ValueError where all rewards are equal (a deviation under ``std_tol``): nothing can be learnt from them.
    """
    import numpy as np

    trajectories = [np.asarray(trajectory, dtype=np.float64) for trajectory in rewards]
    stats = compute_stats(trajectories)
    deviation = math.sqrt(stats["var"])
    if deviation < std_tol:
        raise ValueError(f"`std` is smaller than tolerance of {std_tol}.")
    discount = 1.0 if gamma is None else gamma
    return [compute_discounted_returns((each - stats["mean"]) / deviation, discount) for each in trajectories]


def _flat(data: Nested) -> Iterator[float]:
    if hasattr(data, "tolist"):  # an array or a NumPy number
        data = data.tolist()
    if isinstance(data, (int, float)):
        yield float(data)
    elif isinstance(data, (list, tuple)):
        for entry in data:
            yield from _flat(entry)
    else:
        raise ValueError(f"expected numbers or sequences of numbers, not {type(data).__name__}")  # noqa: TRY004
