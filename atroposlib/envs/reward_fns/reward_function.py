"""The contract of a reward function.

Promises: one finite number per completion; what goes wrong rises as ``RewardError`` and is never a score of 0.

``compute`` gets the completions and keywords such as ``solution``, ``ground_truth``, ``item``, ``config``, ``ctx`` and
``judge``, of which it takes what it needs. A reward that waits (for a judge, a sandbox) defines ``acompute`` instead.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from atroposlib.errors import RewardError

logger = logging.getLogger(__name__)


class MetricsLogger(Protocol):
    """What rewards report to: wandb's run, or anything with its ``log``."""

    def log(self, metrics: dict[str, float]) -> object:
        """Take some metrics."""


class RewardFunction:
    """A reward. ``weight`` is what it counts beside others; further keywords are kept in ``config``."""

    cpu_bound: ClassVar[bool] = False
    """Whether it computes for so long that it belongs into another process."""

    def __init__(self, weight: float = 1.0, name: str | None = None, **kwargs: Any) -> None:
        self.weight = weight
        self._name = name
        self.config = kwargs
        self.wandb_logger: MetricsLogger | None = None
        self.recipe: tuple[str, dict[str, Any]] | None = None
        """The type and parameters from which the registry made it, so that another process can make it again."""

    @property
    def name(self) -> str:
        """What it is called in metrics."""
        return self._name or type(self).__name__.lower()

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """Return one number per completion, not weighted."""
        raise RewardError(f"{self.name} has no compute(): await acompute() if it has that, else define one of them")

    async def acompute(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """The same, for rewards that wait."""
        return self.compute(completions, **kwargs)

    def __call__(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """Return the weighted rewards. Raises: RewardError."""
        return self.weighted(self.checked(completions, self._guarded(self.compute, completions, kwargs)))

    async def acall(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """Return the weighted rewards, also of a reward that waits. Raises: RewardError."""
        try:
            rewards = await self.acompute(completions, **kwargs)
        except Exception as error:
            raise self._failure(error) from error
        return self.weighted(self.checked(completions, rewards))

    def checked(self, completions: Sequence[Any], rewards: Sequence[float]) -> list[float]:
        """The rewards as floats. Raises: RewardError where they are not one finite number per completion."""
        try:
            numbers = [float(reward) for reward in rewards]
        except (TypeError, ValueError) as error:
            raise RewardError(f"{self.name} answered {rewards!r:.200}, which are no numbers") from error
        if len(numbers) != len(completions):
            raise RewardError(f"{self.name} answered {len(numbers)} rewards for {len(completions)} completions")
        if not all(map(math.isfinite, numbers)):
            raise RewardError(f"{self.name} answered a reward that is not finite: {numbers!r:.200}")
        return numbers

    def weighted(self, rewards: Sequence[float]) -> list[float]:
        """Apply the weight, and report to the logger if there is one."""
        weighted = [reward * self.weight for reward in rewards]
        if self.wandb_logger is not None and rewards:
            self.log_metrics(rewards, weighted)
        return weighted

    def set_wandb_logger(self, logger: MetricsLogger | None) -> None:
        """Report every call from now on."""
        self.wandb_logger = logger

    def log_metrics(self, raw_rewards: Sequence[float], weighted_rewards: Sequence[float]) -> None:
        """Report means, least and greatest of one call."""
        if self.wandb_logger is None or not raw_rewards:
            return
        self.wandb_logger.log(
            {
                f"reward/{self.name}/mean_raw": sum(raw_rewards) / len(raw_rewards),
                f"reward/{self.name}/mean_weighted": sum(weighted_rewards) / len(weighted_rewards),
                f"reward/{self.name}/min": min(raw_rewards),
                f"reward/{self.name}/max": max(raw_rewards),
            }
        )

    @staticmethod
    def get_content(completion: Any) -> str:
        """The text of a completion: a text itself, an assistant's message (alone or under ``message``), or a list of
        messages, of which the first of an assistant that has text counts. Empty where there is none.
        """
        if isinstance(completion, str):
            return completion
        if isinstance(completion, Mapping):
            inner = completion.get("message")
            return RewardFunction.get_content(inner) if isinstance(inner, Mapping) else _said(completion)
        if isinstance(completion, (list, tuple)):
            return next((text for message in completion if (text := RewardFunction.get_content(message))), "")
        return ""

    def _guarded(
        self, compute: Callable[..., list[float]], completions: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[float]:
        try:
            return compute(completions, **kwargs)
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> RewardError:
        if isinstance(error, RewardError):
            return error
        return RewardError(f"{self.name} failed: {type(error).__name__}: {error}")


def _said(message: Mapping[str, Any]) -> str:
    if message.get("role") != "assistant":
        return ""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def after_thoughts(text: str) -> str:
    """What follows the last ``</think>``; the whole text where there is none."""
    return text.rpartition("</think>")[2]


def gold_for_each(completions: Sequence[Any], **named: Any) -> list[Any]:
    """The right answer of each completion: the first of the named values that is given.

    A list or tuple holds one for each completion; anything else is the answer of all.

    Raises: RewardError where none is given, or a list is not as long as the completions.
    """
    gold = next((value for value in named.values() if value is not None), None)
    if gold is None:
        raise RewardError(f"needs the right answers, as one of {', '.join(named)}")
    if not isinstance(gold, (list, tuple)):
        return [gold] * len(completions)
    if len(gold) != len(completions):
        raise RewardError(f"{len(gold)} right answers for {len(completions)} completions")
    return list(gold)
