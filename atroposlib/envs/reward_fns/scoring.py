"""Score completions off the event loop: ``scores = await score(rewards, completions, solution=…, item=…)``.

Promises: nothing here computes on the event loop. A reward that waits is awaited, one that is ``cpu_bound`` computes in
worker processes, which are killed when it takes too long, any other one in a thread. What a reward cannot judge is an
error that names reward and item; the other completions are scored all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, overload

from atroposlib.envs.reward_fns.calls import Calls
from atroposlib.envs.reward_fns.combined_reward import CombinedReward
from atroposlib.envs.reward_fns.judging import Judges, Part
from atroposlib.envs.reward_fns.registry import RewardConfig, registry
from atroposlib.envs.reward_fns.workers.pool import WorkerPool, shared_pool
from atroposlib.errors import RewardError

__all__ = ["Part", "Score", "Scores", "rewards_as_one", "score"]

MAX_WAITING: Final = 16
"""How many calls of a reward that waits are under way at once, in one call of ``score``."""


@dataclass(frozen=True)
class Score:
    """What became of one completion: a ``reward`` with its ``parts``, or an ``error``."""

    item_id: str
    reward: float | None
    parts: tuple[Part, ...] = ()
    error: RewardError | None = None


@dataclass(frozen=True)
class Scores(Sequence[Score]):
    """One ``Score`` per completion, in order."""

    each: tuple[Score, ...]
    failures: Mapping[int, RewardError] = field(init=False)
    """The completions that could not be judged, by index."""

    def __post_init__(self) -> None:
        failures = {i: score.error for i, score in enumerate(self.each) if score.error is not None}
        object.__setattr__(self, "failures", failures)

    @property
    def rewards(self) -> list[float]:
        """One number per completion. Raises: the RewardError of the first that could not be judged."""
        for error in self.failures.values():
            raise error
        return [score.reward for score in self.each if score.reward is not None]

    def means(self) -> dict[str, float]:
        """``{"reward": …, "reward/<name>": …}``: means over the completions that were judged, parts not weighted."""
        judged = [score for score in self.each if score.error is None]
        columns: dict[str, list[float]] = {"reward": [score.reward for score in judged if score.reward is not None]}
        for score in judged:
            for part in score.parts:
                columns.setdefault(f"reward/{part.name}", []).append(part.value)
        return {name: sum(values) / len(values) for name, values in columns.items() if values}

    def __len__(self) -> int:
        return len(self.each)

    @overload
    def __getitem__(self, index: int) -> Score: ...
    @overload
    def __getitem__(self, index: slice) -> Scores: ...
    def __getitem__(self, index: int | slice) -> Score | Scores:
        return Scores(self.each[index]) if isinstance(index, slice) else self.each[index]

    def __iter__(self) -> Iterator[Score]:
        return iter(self.each)


def rewards_as_one(rewards: RewardConfig | Sequence[RewardConfig]) -> CombinedReward:
    """Σ weight·reward / Σ weight of one or several rewards, named, configured or made.

    Raises: ConfigError for an unknown name or wrong parameters.
    """
    if isinstance(rewards, CombinedReward) and rewards.normalization == "sum" and rewards.weight == 1:
        return rewards
    several = list(rewards) if isinstance(rewards, Sequence) and not isinstance(rewards, str) else [rewards]
    made = registry.create("combined", rewards=several, normalization="sum")
    assert isinstance(made, CombinedReward)
    return made


async def score(
    rewards: RewardConfig | Sequence[RewardConfig],
    completions: Sequence[Any],
    *,
    pool: WorkerPool | None = None,
    max_waiting: int = MAX_WAITING,
    **keywords: Any,
) -> Scores:
    """Judge every completion by every reward: Σ weight·reward / Σ weight.

    ``keywords`` go to the rewards: ``solution``, ``ground_truth``, ``item``, ``item_id``, ``ctx``, ``token_lengths`` (a
    list of these holds one for each completion; an answer that is a list itself is given as ``[answer] * n``),
    ``config``, ``judge``, ``tokenizer`` and others. ``pool`` is the one of the process unless another is given.

    What fails is told by ``Scores.failures``, and rises where ``Scores.rewards`` is read.

    Raises: ConfigError for an unknown name or wrong parameters; RewardError where a keyword has a wrong length.
    """
    combined = rewards_as_one(rewards)
    calls = Calls(completions, keywords)
    judges = Judges(calls, pool or shared_pool(), asyncio.Semaphore(max_waiting))
    outcomes = await judges.judgements(combined)
    return Scores(
        tuple(
            Score(item_id, None, error=outcome)
            if isinstance(outcome, RewardError)
            else Score(item_id, outcome.value, outcome.parts)
            for item_id, outcome in zip(calls.item_ids, outcomes, strict=True)
        )
    )
