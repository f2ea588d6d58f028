"""Compare formulas, by ``math-verify``.

What is written in an answer may take for ever to compute, so this is done in worker processes only, which are killed.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from atroposlib.envs.reward_fns.workers.child import inside
from atroposlib.envs.reward_fns.workers.outcomes import Call, Failed
from atroposlib.envs.reward_fns.workers.pool import shared_pool
from atroposlib.errors import RewardError

_BARE_FUNCTION: Final = re.compile(
    r"(?<![A-Za-z\\])(pi|ln|log|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|exp|infty)(?![A-Za-z])"
)


def settle(pairs: Sequence[tuple[str, str]], tolerance: float, limit_s: float) -> list[bool]:
    """Whether each answer equals the truth beside it. In a worker it is computed at once, else by one.

    Raises: RewardError for the first pair that takes longer than ``limit_s`` or cannot be computed.
    """
    if not pairs or inside():
        return [same_mathematics(answer, gold, tolerance) for answer, gold in pairs]
    calls = [Call((answer, gold, tolerance), limit_s) for answer, gold in pairs]
    outcomes = shared_pool().run(same_mathematics, calls, setup=(prepare,))
    for (answer, gold), outcome in zip(pairs, outcomes, strict=True):
        if isinstance(outcome, Failed):
            raise RewardError(f"comparing {answer!r:.200} with {gold!r:.200} {outcome.reason}")
    return [outcome.value for outcome in outcomes if not isinstance(outcome, Failed)]


def same_mathematics(answer: str, gold: str, tolerance: float) -> bool:
    """Whether two formulas are equal: sums in any order, roots and their values, sets, intervals, matrices, equations.

    Raises: RewardError where ``math-verify`` is not installed.
    """
    wanted, given = formula(gold), formula(answer)
    if not wanted or not given:
        return False
    from math_verify import verify

    digits = max(1, min(15, round(-math.log10(tolerance)))) if tolerance > 0 else 15
    # its own time limits are signals, which only work in a main thread
    return bool(verify(wanted, given, float_rounding=digits, timeout_seconds=None, raise_on_error=False))


@functools.lru_cache(maxsize=1024)
def formula(text: str) -> list[Any]:
    """What ``math-verify`` reads; empty where it reads nothing. Raises: RewardError where it is not installed."""
    try:
        from latex2sympy2_extended import NormalizationConfig
        from math_verify import LatexExtractionConfig, parse
    except ImportError as error:
        raise RewardError(
            f"comparing formulas such as {text!r:.200} takes math-verify: pip install 'atroposlib[rewards]' ({error})"
        ) from error
    normalization = NormalizationConfig(basic_latex=True, malformed_operators=True)
    latex = _BARE_FUNCTION.sub(r"\\\1 ", text).replace("**", "^")
    parsed: list[Any] = parse(
        f"${latex}$",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=False,
    )
    return parsed


def prepare() -> None:
    """Import it, so that the first comparison is as quick as the others; without it, numbers and words are compared."""
    try:
        formula("x")
    except RewardError:
        return
