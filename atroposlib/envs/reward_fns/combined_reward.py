"""Several rewards as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from atroposlib.envs.reward_fns.registry import RewardConfig, registry
from atroposlib.envs.reward_fns.reward_function import MetricsLogger, RewardFunction

Normalization = Literal["none", "sum", "minmax"]


@registry.register
class CombinedReward(RewardFunction):
    """The sum of weight times reward.

    ``normalization``: "none" leaves it; "sum" divides by the sum of weights; "minmax" maps the least of the completions
    at hand to 0 and the greatest to 1, and leaves equal ones. A part that fails fails the whole.
    """

    def __init__(
        self, rewards: Sequence[RewardConfig], normalization: Normalization = "none", weight: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        if normalization not in get_args(Normalization):
            raise ValueError(f"normalization {normalization!r} is none of {', '.join(get_args(Normalization))}")
        self.normalization = normalization
        self.reward_functions = [registry.create(each) for each in rewards]
        if normalization == "sum" and sum(each.weight for each in self.reward_functions) <= 0:
            raise ValueError("the weights of the rewards must have a positive sum")

    @property
    def name(self) -> str:
        """``combined(a,b)`` unless it was given a name."""
        return self._name or f"combined({','.join(each.name for each in self.reward_functions)})"

    def set_wandb_logger(self, logger: MetricsLogger | None) -> None:
        """Report each part as well."""
        super().set_wandb_logger(logger)
        for each in self.reward_functions:
            each.set_wandb_logger(logger)

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """Combine the parts. Raises: RewardError of the part that failed."""
        return self._combined(completions, [each(completions, **kwargs) for each in self.reward_functions])

    async def acompute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """The same with parts that wait, one after the other."""
        return self._combined(completions, [await each.acall(completions, **kwargs) for each in self.reward_functions])

    def _combined(self, completions: Sequence[Any], weighted: Sequence[Sequence[float]]) -> list[float]:
        sums = [sum(rewards[i] for rewards in weighted) for i in range(len(completions))]
        if self.normalization == "sum":
            total = sum(each.weight for each in self.reward_functions)
            return [each / total for each in sums]
        if self.normalization == "minmax" and sums and max(sums) > min(sums):
            return [(each - min(sums)) / (max(sums) - min(sums)) for each in sums]
        return sums
