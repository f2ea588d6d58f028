"""An environment for tests: item ``n`` gives groups that hold ``n``, so that they are known again.

Also a program: ``python -m tests.atroposlib.envs.counting_env serve | process | evaluate``.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from pydantic import Field

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataItem


class CountingConfig(BaseEnvConfig):
    """What the tests change from the command line."""

    items: int = Field(10_000, description="How many items there are.")
    ask_engine: bool = Field(False, description="Whether each rollout asks the engine for a chat completion.")
    fail_every: int = Field(0, description="Every so manieth attempt raises.")
    seconds: float = Field(0.0, description="How long a rollout takes; a later item takes less.")
    first_seconds: float = Field(0.0, description="How long the rollouts of the first item take.")
    eval_samples: int = Field(2, description="How many samples an evaluation has.")
    evaluate_raises: bool = Field(False, description="Whether evaluate() raises.")


class CountingEnv(BaseEnv):
    """Counts, and needs no model."""

    name = "counting"
    env_config_cls = CountingConfig

    @classmethod
    def config_init(cls) -> tuple[CountingConfig, list[APIServerConfig]]:
        return CountingConfig(group_size=2, use_wandb=False, max_num_workers=4), []

    async def setup(self) -> None:
        self.count = 0
        self.attempts = 0
        self.cleaned = 0
        self.evaluations: list[int] = []

    async def get_next_item(self) -> dict[str, int] | None:
        if self.count >= self.config.items:
            return None
        self.count += 1
        return {"n": self.count}

    async def collect_trajectory(self, item: dict[str, int]) -> tuple[ScoredDataItem | None, list[Any]]:
        self.attempts += 1
        attempt, n = self.attempts, item["n"]
        if self.config.seconds:
            await asyncio.sleep(self.config.seconds * (2 if n % 2 else 1))
        if n == 1 and self.config.first_seconds:
            await asyncio.sleep(self.config.first_seconds)
        if self.config.fail_every and attempt % self.config.fail_every == 0:
            raise RuntimeError(f"planned failure of attempt {attempt}")
        said = "nothing"
        if self.config.ask_engine:
            answer = await self.server.chat_completion(messages=[{"role": "user", "content": str(n)}], max_tokens=16)
            said = answer.choices[0].message.content
        return {
            "tokens": [n, 7, 8],
            "masks": [-100, 7, 8],
            "scores": float(attempt),
            "inference_logprobs": [1.0, -0.5, -0.25],
            "messages": [{"role": "user", "content": str(n)}, {"role": "assistant", "content": said}],
            "overrides": {"attempt": attempt},
            "anything": n,
        }, []

    async def cleanup(self) -> None:
        self.cleaned += 1

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.config.evaluate_raises:
            raise RuntimeError("the evaluation failed")
        self.evaluations.append(self.curr_step)
        samples = [{"n": n} for n in range(1, self.config.eval_samples + 1)]
        await self.evaluate_log({"eval/score": 0.5, "odd": object(), "none": None}, samples=samples)


class ChatEnv(CountingEnv):
    """Asks an engine that the environment names itself."""

    @classmethod
    def config_init(cls):
        config, _ = super().config_init()
        return config.model_copy(update={"ask_engine": True}), APIServerConfig(
            base_url="http://127.0.0.1:9/v1", wait_s=0
        )


def run(env_class: type[BaseEnv], *words: str) -> int:
    """Exit code of ``env_class.cli()`` for these words."""
    try:
        env_class.cli(words)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def lines(path: Path) -> list[dict[str, Any]]:
    """The groups or samples of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    CountingEnv.cli()
