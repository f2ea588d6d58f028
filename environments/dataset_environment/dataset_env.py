"""``DatasetEnv``: the questions of a data set, answered once each, judged by reward functions.

    python -m environments.dataset_environment.dataset_env serve --config gsm8k

The rollout is that of every agent here, with no tools and one turn; members of a group are judged together, so that
rewards may compare them. What a reward cannot judge is left out and counted, never scored 0.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from pydantic import Field

from atroposlib.envs.base import APIServerConfig
from atroposlib.envs.groups import count_failure
from atroposlib.envs.reward_fns.scoring import Score, Scores, score
from atroposlib.errors import ConfigError, RewardError
from environments.dataset_environment.config_files import read_env_config
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.dataset_environment.questions import Question, load_questions
from environments.dataset_environment.questions.division import shuffled
from environments.dataset_environment.rewards import make_rewards
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.rollouts.evaluation import Sample, sample_of
from environments.rollouts.prompt import prompt_of
from environments.tool_context import ToolContext

if TYPE_CHECKING:
    from environments.agent_loop import AgentResult
    from environments.rollouts.player import Messages, Rollout, Split
    from environments.tools.workspaces import WorkspaceScope

logger = logging.getLogger(__name__)

ENGINE_URL = "http://localhost:9001/v1"
"""Where the trainer serves its policy unless told otherwise."""


class PolicyEngineConfig(APIServerConfig):
    """An engine that is the trainer's where no URL was given, so that ``testing`` may take a scripted one instead."""

    base_url: str | None = Field(ENGINE_URL, description="URL of the engine; the default is where the trainer serves.")


@dataclass(frozen=True)
class Trial:
    """A question, how it was answered, and what the answer is worth."""

    question: Question
    result: AgentResult
    score: Score


class DatasetEnv(HermesAgentBaseEnv):
    """Questions from a data set, answered in one turn and judged by reward functions."""

    name = "dataset"
    env_config_cls = DatasetEnvConfig
    config: DatasetEnvConfig

    def __init__(
        self, config: DatasetEnvConfig, server_configs: Any, slurm: bool = False, testing: bool = False
    ) -> None:
        super().__init__(config.as_played(), server_configs, slurm, testing)
        self.rewards = make_rewards(self.config)
        self.items: Sequence[Question] = ()
        self.eval_items: Sequence[Question] = ()
        self._is_loaded = False
        self.questions_drawn = 0
        """How many questions were given out so far; a checkpoint keeps it."""
        self._order: list[int] = []
        self._order_epoch = -1
        self._ordering = asyncio.Lock()
        self._reward_means: list[dict[str, float]] = []
        self._judged: WeakKeyDictionary[ToolContext, Score] = WeakKeyDictionary()
        if config.debug_mode:
            logger.setLevel(logging.DEBUG)

    @classmethod
    def config_init(cls) -> tuple[DatasetEnvConfig, list[APIServerConfig]]:
        """The defaults: the engine of the trainer on this machine."""
        return cls.env_config_cls(), [PolicyEngineConfig()]

    @classmethod
    def read_config(cls, name: str) -> Mapping[str, Any]:
        """A configuration by its name or path, in any of its shapes. Raises: ConfigError."""
        return read_env_config(name)

    # -- questions

    async def preflight(self) -> None:
        """Load the questions, and what the rewards need.

        Raises: ConfigError where the data set, a field, a reward's model or a backend for boxes is not there.
        """
        self._is_loaded = True
        if self.rewards.needs_box:
            await self._boxes.prepare()
        questions = await asyncio.to_thread(load_questions, self.config, self.rewards.needs_answer)
        self.items, self.eval_items = questions.train, questions.held_out
        try:
            await asyncio.to_thread(self.rewards.prepare)
        except RewardError as error:
            raise ConfigError(f"reward_functions: {error}") from error
        logger.info("%d questions to train on, %d held out", len(self.items), len(self.eval_items))

    async def setup(self) -> None:
        """What ``preflight`` loads, unless it has done so. Raises: ConfigError."""
        if not self._is_loaded:
            await self.preflight()

    async def get_next_item(self) -> Question:
        """The next question, in an order of the seed that is another one in every epoch.

        Raises: ConfigError where every question is held out.
        """
        if not self.items:
            raise ConfigError(f"no question of split {self.config.split} is left to train on: all of it is evaluated")
        epoch, place = divmod(self.questions_drawn, len(self.items))
        self.questions_drawn += 1
        order = await self._order_of(epoch)
        return await asyncio.to_thread(lambda: self.items[order[place]])

    async def _order_of(self, epoch: int) -> Sequence[int]:
        if not self.config.shuffle_dataset:
            return range(len(self.items))
        async with self._ordering:
            if epoch != self._order_epoch:
                self._order = await asyncio.to_thread(shuffled, len(self.items), self.config.seed, epoch)
                self._order_epoch = epoch
            return self._order

    def save_checkpoint(self, step: int, data: Mapping[str, Any] | None = None) -> None:
        """Keep how far the questions were drawn, beside ``data``."""
        super().save_checkpoint(step, {"questions_drawn": self.questions_drawn} | dict(data or {}))

    def format_prompt(self, item: Question) -> str:
        """The text of the question; a subclass may put it in other words."""
        return item.prompt

    def _first_messages(self, item: Question) -> Messages:
        messages = item.messages()
        if type(self).format_prompt is not DatasetEnv.format_prompt:
            messages[len(item.conversation) - 1]["content"] = prompt_of(self, item)
        return messages

    # -- answers

    async def _play(self, messages: Messages, scope: WorkspaceScope, split: Split = "train") -> Rollout:
        start = len(messages)
        prefilled = messages[-1]["role"] == "assistant"
        rollout = await super()._play(messages, scope, split)
        if prefilled:
            _join_prefill(rollout.result.messages, start - 1)
        return rollout

    async def compute_reward(self, item: Question, result: AgentResult, ctx: ToolContext) -> float:
        """Σ weight·reward / Σ weight. Raises: RewardError where a reward cannot judge the answer."""
        return (await self.judge(item, [result], [ctx])).rewards[0]

    async def compute_group_rewards(
        self, item: Question, results: Sequence[AgentResult], ctxs: Sequence[ToolContext]
    ) -> list[float | None]:
        """The same for all members at once; None for one that cannot be judged. Raises: RewardError where none can."""
        scores = await self.judge(item, results, ctxs)
        if len(scores.failures) == len(scores):
            return list(scores.rewards)
        for error in scores.failures.values():
            count_failure(self.rollout_failures, "reward_error", error)
        self._reward_means.append(scores.means())
        return [each.reward for each in scores]

    async def judge(self, item: Question, results: Sequence[AgentResult], ctxs: Sequence[ToolContext]) -> Scores:
        """What the rewards say of these answers to one question, part by part."""
        answers = [result.messages[len(item.conversation) :] for result in results]
        lengths = [result.usage.completion_tokens for result in results]
        scores = await self._score(item, answers, ctx=list(ctxs), token_lengths=lengths if all(lengths) else None)
        self._judged.update(zip(ctxs, scores, strict=True))
        return scores

    async def judge_text(self, item: Question, text: str, tokens: int | None = None) -> Score:
        """What the rewards say of an answer that somebody wrote; ``tokens``: its length, counted where None."""
        async with self._scope(item) as scope:
            ctx = ToolContext(scope.bind(str(uuid.uuid4()), scope.plan).task_id)
            length = self.count_tokens(text) if tokens is None else tokens
            lengths = None if length is None else [length]
            answer = [{"role": "assistant", "content": text}]
            return (await self._score(item, [answer], ctx=[ctx], token_lengths=lengths))[0]

    def count_tokens(self, text: str) -> int | None:
        """How many tokens a text is; None where no tokenizer was loaded."""
        return len(self.tokenizer.encode(text, add_special_tokens=False)) if self.has_tokenizer else None

    async def _score(self, item: Question, answers: Sequence[Messages], **keywords: Any) -> Scores:
        scores = await score(
            self.rewards,
            answers,
            solution=None if item.answer is None else [item.answer] * len(answers),
            ground_truth=None if item.ground_truth is None else [item.ground_truth] * len(answers),
            item=item.row,
            item_id=item.id,
            prompt=item.prompt,
            config=self.config,
            judge=self._judge.engine(),
            **keywords,
        )
        for each in scores:
            logger.debug("%s: %s", each.item_id, each.error or each.reward)
        return scores

    async def attempt(self, item: Question, split: Split = "train") -> Trial:
        """Let the model answer, and judge it. Raises: RolloutInvalid where the engine or the box failed."""
        async with self._scope(item) as scope:
            rollout = await self._play(self._first_messages(item), scope, split)
            scores = await self.judge(item, [rollout.result], [rollout.ctx])
        return Trial(item, rollout.result, scores[0])

    # -- evaluation

    async def _evaluate_once(self, item: Question, messages: Messages) -> Sample:
        async with self._scope(item) as scope:
            rollout = await self._play(list(messages), scope, split="eval")
            reward = await self._grade(item, rollout)
            judged = self._judged.get(rollout.ctx)
        return sample_of(messages, rollout.result, reward) | {
            "item": item.id,
            "prompt": item.prompt,
            "answer": item.answer if item.ground_truth is None else item.ground_truth,
            "rewards": {part.name: {"value": part.value, "why": part.why} for part in (judged.parts if judged else ())},
        }

    def _evaluation_settings(self) -> dict[str, Any]:
        config = self.config
        rewards = {"rewards": config.rewards, "top_p": config.top_p, "prefill": config.prefill}
        data = {"dataset": config.dataset_path or config.dataset_name, "config": config.dataset_config}
        return super()._evaluation_settings() | data | {"split": config.eval_split or config.split} | rewards

    async def evaluate_log(self, metrics: Mapping[str, Any], *args: Any, **more: Any) -> None:
        """Log an evaluation, with the mean of every single reward."""
        columns: dict[str, list[float]] = {}
        for sample in more.get("samples") or ():
            for name, part in (sample.get("rewards") or {}).items():
                columns.setdefault(f"eval/reward/{name}", []).append(part["value"])
        means = {name: fmean(values) for name, values in columns.items()}
        await super().evaluate_log({**metrics, **means}, *args, **more)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log the mean of every single reward since the last call."""
        values: dict[str, Any] = {} if wandb_metrics is None else wandb_metrics
        for name in {name for means in self._reward_means for name in means}:
            values[f"train/{name}"] = fmean(means[name] for means in self._reward_means if name in means)
        self._reward_means.clear()
        await super().wandb_log(values)

    async def aclose(self) -> None:
        """Close what the rewards hold open, and all of the base's."""
        await self.rewards.aclose()
        await super().aclose()


def _join_prefill(messages: Messages, place: int) -> None:
    """Make one message of the beginning that the model was given and of what it went on with."""
    if place + 1 < len(messages):
        given, said = messages[place : place + 2]
        messages[place : place + 2] = [said | {"content": given["content"] + (said.get("content") or "")}]


if __name__ == "__main__":
    DatasetEnv.cli()
