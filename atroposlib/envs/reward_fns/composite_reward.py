"""Rewards that are made of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns.reward_function import MetricsLogger, RewardFunction
from atroposlib.envs.reward_fns.verdict import Verdict


class CompositeReward(RewardFunction):
    """A reward that combines others: define ``combine``.

    Its parts are judged wherever each of them belongs: in a worker process, a thread, or on the event loop.
    """

    def __init__(self, parts: Sequence[RewardFunction], /, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self.reward_functions = list(parts)

    @property
    def needs_answer(self) -> bool:
        """Whether one of the parts does."""
        return any(each.needs_answer for each in self.reward_functions)

    @property
    def needs_box(self) -> bool:
        """Whether one of the parts does."""
        return any(each.needs_box for each in self.reward_functions)

    def combine(self, verdicts: Sequence[Sequence[Verdict]]) -> list[Verdict]:
        """The rewards of completions from what each part (in their order, not weighted) said of each completion.

        A completion that a part could not judge is not among them.
        """
        raise NotImplementedError

    def set_wandb_logger(self, logger: MetricsLogger | None) -> None:
        """Report each part as well."""
        super().set_wandb_logger(logger)
        for each in self.reward_functions:
            each.set_wandb_logger(logger)

    def prepare(self) -> None:
        """Load what the parts need that compute in this process; workers load what theirs need."""
        for each in self.reward_functions:
            if not each.cpu_bound:
                each.prepare()

    async def aclose(self) -> None:
        """Close every part."""
        for each in self.reward_functions:
            await each.aclose()

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[Verdict]:
        """Combine the parts. Raises: RewardError of the part that failed."""
        by_part = [each.verdicts(completions, **kwargs) for each in self.reward_functions]
        return self._combined(by_part)

    async def acompute(self, completions: Sequence[Any], **kwargs: Any) -> list[Verdict]:
        """The same with parts that wait, one after the other."""
        by_part = [await each.averdicts(completions, **kwargs) for each in self.reward_functions]
        return self._combined(by_part)

    def _combined(self, by_part: Sequence[Sequence[Verdict]]) -> list[Verdict]:
        for each, verdicts in zip(self.reward_functions, by_part, strict=True):
            each.weighted(verdicts)  # reports to the logger, if there is one
        return self.combine([*zip(*by_part, strict=True)])
