"""A plain function as a reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from atroposlib.envs.reward_fns.reward_function import RewardFunction


class FunctionReward(RewardFunction):
    """What a function ``(completions, **kwargs)`` returns; one number counts for all completions."""

    def __init__(self, func: Callable[..., Any], weight: float = 1.0, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(weight=weight, name=name or getattr(func, "__name__", None), **kwargs)
        self.func = func

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """Call the function with its parameters and the keywords of the call, which win."""
        rewards = self.func(completions, **{**self.config, **kwargs})
        return [rewards] * len(completions) if isinstance(rewards, (int, float)) else rewards
