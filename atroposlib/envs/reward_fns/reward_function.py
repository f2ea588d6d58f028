"""The contract of a reward function.

Promises: one finite number per completion; what goes wrong rises as ``RewardError`` and is never a score of 0.

``compute`` gets the completions and keywords such as ``solution``, ``ground_truth``, ``item``, ``config``, ``ctx`` and
``judge``, of which it takes what it needs. A reward that waits (for a judge, a sandbox) defines ``acompute`` instead.
Numbers may be ``Verdict``s, which say why.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

from atroposlib.envs.reward_fns.verdict import Verdict
from atroposlib.envs.reward_fns.workers.outcomes import reason_of
from atroposlib.errors import RewardError


class MetricsLogger(Protocol):
    """What rewards report to: wandb's run, or anything with its ``log``."""

    def log(self, metrics: dict[str, float]) -> object:
        """Take some metrics."""


class RewardFunction:
    """A reward. ``weight`` is what it counts beside others; further keywords are kept in ``config``."""

    cpu_bound: bool = False
    """Whether it computes for so long that it belongs into a process of its own, which is killed when it takes longer
    than ``time_limit_s``. There it is made again from its class and parameters, and gets ``solution``,
    ``ground_truth``, ``item`` and those other keywords that its ``compute`` names."""

    independent: bool = False
    """Whether each completion is judged by itself. It is then called with one completion at a time, and one that cannot
    be judged does not fail the others."""

    time_limit_s: float = 10.0
    """Seconds for one completion, where ``cpu_bound``."""

    extra_parameters: ClassVar[bool] = False
    """Whether it reads parameters from ``config`` that its constructor does not name. A configuration that gives others
    is an error otherwise, unless the class has no constructor."""

    registered_name: ClassVar[str | None] = None
    """The name under which the registry knows the class."""

    made_with: tuple[tuple[Any, ...], dict[str, Any]]
    """The arguments it was made with, so that another process can make it again."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        self = super().__new__(cls)
        self.made_with = (args, kwargs)
        return self

    def __init__(self, weight: float = 1.0, name: str | None = None, **kwargs: Any) -> None:
        self.weight = weight
        self._name = name
        self.config = kwargs
        self.wandb_logger: MetricsLogger | None = None

    @property
    def name(self) -> str:
        """What it is called in metrics and errors."""
        return self._name or self.__class__.__dict__.get("registered_name") or snake_case(type(self).__name__)

    @property
    def needs_answer(self) -> bool:
        """Whether it cannot judge without a right answer: what it asks for by name, unless it says otherwise."""
        return not {"solution", "ground_truth"}.isdisjoint(self._asks_for())

    @property
    def needs_box(self) -> bool:
        """Whether it works in the box of the rollout."""
        return "ctx" in self._asks_for()

    def _asks_for(self) -> set[str]:
        return {name for method in (self.compute, self.acompute) for name in inspect.signature(method).parameters}

    def prepare(self) -> None:
        """Load what is slow to load (a model, a library), before the first completion and its time limit."""

    async def aclose(self) -> None:
        """Close what it keeps open, such as connections; it may be used again, and closed again."""

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> Sequence[float]:
        """Return one number per completion, not weighted."""
        raise RewardError(f"{self.name} has no compute(): await acompute() if it has that, else define one of them")

    async def acompute(self, completions: Sequence[Any], **kwargs: Any) -> Sequence[float]:
        """The same, for rewards that wait."""
        return self.compute(completions, **kwargs)

    def __call__(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """Return the weighted rewards. Raises: RewardError."""
        return self.weighted(self.verdicts(completions, **kwargs))

    async def acall(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        """Return the weighted rewards, also of a reward that waits. Raises: RewardError."""
        return self.weighted(await self.averdicts(completions, **kwargs))

    def verdicts(self, completions: Sequence[Any], **kwargs: Any) -> list[Verdict]:
        """``compute``, checked. Raises: RewardError."""
        try:
            rewards = self.compute(completions, **kwargs)
        except (Exception, SystemExit) as error:
            raise self.failure(error) from error
        return self.checked(completions, rewards)

    async def averdicts(self, completions: Sequence[Any], **kwargs: Any) -> list[Verdict]:
        """``acompute``, checked. Raises: RewardError."""
        try:
            rewards = await self.acompute(completions, **kwargs)
        except Exception as error:
            raise self.failure(error) from error
        return self.checked(completions, rewards)

    def checked(self, completions: Sequence[Any], rewards: Sequence[float]) -> list[Verdict]:
        """The rewards as numbers. Raises: RewardError where they are not one finite number per completion."""
        try:
            numbers = [each if isinstance(each, Verdict) else Verdict(each) for each in rewards]
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
                f"reward/{self.name}/min": float(min(raw_rewards)),
                f"reward/{self.name}/max": float(max(raw_rewards)),
            }
        )

    def failure(self, error: BaseException) -> RewardError:
        """What went wrong, as the error that leaves a reward."""
        if isinstance(error, RewardError):
            return error
        return RewardError(f"{self.name} failed: {reason_of(error)}")

    @staticmethod
    def get_content(completion: Any) -> str:
        """The text of a completion: a text itself, an assistant's message (alone or under ``message``), or a list of
        messages, of which the last of an assistant that has text counts. Empty where there is none.
        """
        if isinstance(completion, str):
            return completion
        if isinstance(completion, Mapping):
            inner = completion.get("message")
            return RewardFunction.get_content(inner) if isinstance(inner, Mapping) else _said(completion)
        if isinstance(completion, (list, tuple)):
            return next((text for message in reversed(completion) if (text := RewardFunction.get_content(message))), "")
        return ""


class TextReward(RewardFunction):
    """A reward that judges the text of each completion by itself, without a right answer: define ``judge_text``."""

    independent = True

    def compute(self, completions: Sequence[Any], **_: Any) -> list[float]:
        """Judge the text of each completion."""
        return [self.judge_text(self.get_content(completion)) for completion in completions]

    def judge_text(self, text: str) -> float:
        """The reward of one text."""
        raise NotImplementedError


class AnswerReward(RewardFunction):
    """A reward that compares the text of each completion with its right answer: define ``judge_answer``."""

    independent = True

    def compute(
        self, completions: Sequence[Any], solution: Any = None, ground_truth: Any = None, **_: Any
    ) -> list[float]:
        """Compare with ``ground_truth`` or ``solution``: one answer for all, or a list. Raises: RewardError."""
        gold = gold_for_each(completions, ground_truth=ground_truth, solution=solution)
        texts = [self.get_content(completion) for completion in completions]
        return [self.judge_answer(text, right) for text, right in zip(texts, gold, strict=True)]

    def judge_answer(self, text: str, gold: Any) -> float:
        """The reward of one text, whose right answer is ``gold``."""
        raise NotImplementedError


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
    if any(each is None for each in gold):
        raise RewardError(f"the right answer of completion {[*gold].index(None)} is missing")
    return list(gold)


def item_of_each(completions: Sequence[Any], item: Any) -> list[Any]:
    """The item of each completion: a list holds one for each, anything else is the item of all."""
    return item if isinstance(item, list) else [item] * len(completions)


def snake_case(class_name: str) -> str:
    """``ReasoningStepsReward`` as ``reasoning_steps``, ``R1Reward`` as ``r1``."""
    bare = re.sub(r"_?[Rr]eward$", "", class_name) or class_name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare).lower()
