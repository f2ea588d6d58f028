"""Rewards that the tests of this folder need; a module of its own, so that worker processes can import it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from atroposlib.envs.reward_fns import RewardFunction


class GivenReward(RewardFunction):
    """Answers what it was given."""

    def __init__(self, answer: Any = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.answer = answer

    def compute(self, completions: Sequence[Any], **_: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class WaitingReward(RewardFunction):
    """Asks the judge of the call."""

    async def acompute(self, completions: Sequence[Any], judge: Any = None, **_: Any) -> list[float]:
        return [await judge(completion) for completion in completions]


class ObeyingReward(RewardFunction):
    """Does what the completion says, in a worker process."""

    cpu_bound = True
    independent = True
    time_limit_s = 1.0

    def compute(self, completions: Sequence[Any], **_: Any) -> list[float]:
        return [self._obey(self.get_content(each)) for each in completions]

    def _obey(self, order: str) -> float:
        if order == "hang":
            while True:
                pass
        if order == "hang in C":
            return float(len(str(7 ** (7**12))))
        if order == "sleep":
            time.sleep(60)
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "exit":
            os._exit(3)
        if order == "raise":
            raise ValueError("what is this?")
        if order == "eat":
            return float(len(bytearray(64 << 30)))
        if order == "pid":
            return float(os.getpid())
        return float(len(order))


class TogetherReward(RewardFunction):
    """Compares completions with each other, in a worker process."""

    cpu_bound = True

    def compute(self, completions: Sequence[Any], **_: Any) -> list[float]:
        longest = max(len(each) for each in completions)
        return [float(len(each) == longest) for each in completions]


class UnderstandingReward(RewardFunction):
    """Reports what reached it, in a worker process."""

    cpu_bound = True
    independent = True

    def compute(self, completions: Sequence[Any], threshold: float = 0.0, **kwargs: Any) -> list[float]:
        known = [name for name in ("solution", "item", "ctx", "judge", "tokenizer") if name in kwargs]
        return [threshold + len(known) for _ in completions]
