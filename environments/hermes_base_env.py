"""``HermesAgentBaseEnv``: an environment whose agents use tools in a sandbox of their own.

A whole environment is ``setup``, ``get_next_item``, ``format_prompt`` and ``compute_reward``. This class plays the
rollouts: conversation → box → reward → sequences to train on.

Promises:

- one rollout, one box: opened at the first use by a tool or by ``ctx``, closed always, also after a cancellation;
- a failure (engine, box, reward function) is a ``RolloutInvalid`` with a reason, retried and then left out, never a
  score of 0;
- with a token-exact engine every sequence that the policy sampled is sent, with the engine's own ids and logprobs;
  with another engine the groups say ``trainable: false`` and are never sent to a trainer;
- ``compute_reward``, ``compute_group_rewards``, ``evaluate`` and ``prepare_box`` may call ``ctx.terminal`` and the
  like without ``await``, and no other rollout waits for it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, ClassVar

from atroposlib.envs.base import BaseEnv, EvalHandlingEnum
from atroposlib.envs.delivery import leave_out
from atroposlib.envs.groups import both, collect_members, fewest_members, merge_items
from atroposlib.envs.methods import called
from atroposlib.envs.server_handling.server_manager import EngineFacts
from atroposlib.errors import ConfigError
from atroposlib.wire import ScoredDataGroup, ScoredDataItem
from environments.agent_loop import AgentResult
from environments.agent_loop.display import format_conversation
from environments.hermes_config import HermesAgentEnvConfig
from environments.rollouts.boxes import RunBoxes, check_backend_name, plan_of, refuse_unbound, rollout_scope
from environments.rollouts.evaluation import (
    Progress,
    Sample,
    invalid_sample,
    run_in_order,
    sample_of,
    summarise,
    tell_invalid,
)
from environments.rollouts.grading import as_invalid, valid_reward
from environments.rollouts.held_out import evaluation_items
from environments.rollouts.hooks import wrap_hooks
from environments.rollouts.judge import Judge
from environments.rollouts.player import Messages, OfferedTools, Rollout, RolloutPlayer, Split
from environments.rollouts.prompt import prompt_of
from environments.rollouts.samples import longest_sequence, trained_sequences, untrained_sequence
from environments.rollouts.statistics import RolloutStatistics
from environments.rollouts.tool_choice import ToolChoice
from environments.tool_context import ToolContext, bridged
from environments.tools.workspaces import (
    BoxPlan,
    Workspace,
    WorkspaceError,
    WorkspaceScope,
    current_scope,
    open_boxes,
)
from sandboxes.base import SandboxSpec

__all__ = ["EvalHandlingEnum", "HermesAgentBaseEnv", "HermesAgentEnvConfig"]

logger = logging.getLogger(__name__)

Sequences = list[ScoredDataItem]

KEPT_REWARDS = 10_000
_group_tools: ContextVar[OfferedTools | None] = ContextVar("group_tools", default=None)
"""The tools of the group that the running task belongs to."""


class HermesAgentBaseEnv(BaseEnv):
    """Subclasses implement ``setup``, ``get_next_item``, ``format_prompt`` and ``compute_reward``.

    ``setup`` may set ``self.items`` and ``self.eval_items`` (or ``_items`` and ``_eval_items``), from which the
    default ``evaluate`` takes its items.
    """

    name: ClassVar[str | None] = "hermes-agent"
    needs_engine: ClassVar[bool] = True
    env_config_cls = HermesAgentEnvConfig
    config: HermesAgentEnvConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        wrap_hooks(cls)

    def __init__(
        self, config: HermesAgentEnvConfig, server_configs: Any, slurm: bool = False, testing: bool = False
    ) -> None:
        super().__init__(config, server_configs, slurm, testing)
        check_backend_name(config.terminal_backend)
        self._index = 0
        self._reward_buffer: list[float] = []
        self._statistics = RolloutStatistics()
        self._player = RolloutPlayer(config, self.server, self._engine_facts, lambda: self.tokenizer)
        self._judge = Judge(config, self.server)
        self._tools = ToolChoice(config)
        self._boxes = RunBoxes(config)
        self._begun = False
        self._only_evaluates = False
        self._tools_need_boxes = any(tool.needs_box for tool in self._tools.all_tools())

    # -- what a subclass implements

    def format_prompt(self, item: Any) -> str:
        """The user message that puts the item to the agent."""
        raise ConfigError(f"{type(self).__name__} must define format_prompt()")

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        """What a finished rollout is worth. Raise where it cannot be judged: a failure is not a score."""
        raise ConfigError(f"{type(self).__name__} must define compute_reward()")

    async def compute_group_rewards(
        self, item: Any, results: Sequence[AgentResult], ctxs: Sequence[ToolContext]
    ) -> Sequence[float | None]:
        """One reward per member, in order, while all their boxes are open; None leaves a member out.

        Override it where members are judged against each other. Where it is not, each member is graded by
        ``compute_reward`` as soon as it is done.
        """
        return await asyncio.gather(*map(self.compute_reward, itertools.repeat(item), results, ctxs))

    async def prepare_box(self, item: Any, ctx: ToolContext) -> None:
        """Put into the fresh box what the agent starts from; override it where an item needs files.

        Called once per rollout, when its box opens: before the agent's first command, or before the first call of the
        verifier where the agent ran none. What is written here can be read by the agent; what must stay hidden is
        written in ``compute_reward``.
        """

    def sandbox_spec(self, item: Any) -> SandboxSpec:
        """The box of an item: the config's, with the item's ``docker_image`` or ``docker_build`` where it names one.

        Raises: ConfigError where it names both.
        """
        named = item if isinstance(item, Mapping) else {}
        image, build = named.get("docker_image") or None, named.get("docker_build") or None
        if image and build:
            raise ConfigError(f"an item names both docker_image {image} and docker_build {build}; its box has one")
        return self.config.sandbox_spec(image=image, build=build)

    # -- rollouts

    async def collect_trajectories(self, item: Any) -> tuple[ScoredDataGroup | None, list[Any]]:
        """A group: the same item played ``group_size`` times. Members that fail are retried, then left out."""
        token = _group_tools.set(self._resolve_tools_for_group())
        try:
            if type(self).compute_group_rewards is HermesAgentBaseEnv.compute_group_rewards:
                rollouts, backlog = await self._collect_graded_singly(item)
            else:
                rollouts, backlog = await self._collect_graded_together(item), []
        finally:
            _group_tools.reset(token)
        if len(rollouts) < fewest_members(self.config.group_size):
            return None, backlog
        if self.config.uneven_groups == "exact" and len(rollouts) < self.config.group_size:
            leave_out(self, "fewer than group_size rollouts")
            return None, backlog
        return merge_items([sequence for rollout in rollouts for sequence in rollout], self.rollout_failures), backlog

    async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
        """One rollout, graded: one sequence, or a list of them where the history changed. Raises: RolloutInvalid."""
        async with self._scope(item) as scope:
            rollout = await self._play(self._first_messages(item), scope)
            reward = await self._grade(item, rollout)
        sequences = self._scored(rollout, reward)
        return sequences[0] if len(sequences) == 1 else sequences, []

    async def _collect_graded_singly(self, item: Any) -> tuple[list[Sequences], list[Any]]:
        backlog: list[Any] = []

        async def attempt() -> Sequences | None:
            member, later = both(await called(self, "collect_trajectory", item), "collect_trajectory")
            backlog.extend(later or ())
            return member if isinstance(member, list) or member is None else [member]

        return await collect_members(attempt, self.config.group_size, self.rollout_failures), backlog

    async def _collect_graded_together(self, item: Any) -> list[Sequences]:
        async with self._scope(item) as scope:

            async def attempt() -> Rollout:
                return await self._play(self._first_messages(item), scope)

            rollouts = await collect_members(attempt, self.config.group_size, self.rollout_failures)
            rewards = await self._grade_together(item, rollouts) if rollouts else []
        graded = zip(rollouts, rewards, strict=True)
        return [self._scored(rollout, reward) for rollout, reward in graded if reward is not None]

    def _scope(self, item: Any) -> AbstractAsyncContextManager[WorkspaceScope]:
        return rollout_scope(self._plan(item), self.config.terminal_lifetime)

    def _first_messages(self, item: Any) -> Messages:
        system = self.config.system_message(self.config.system_prompt)
        return [*system, {"role": "user", "content": prompt_of(self, item)}]

    async def _play(self, messages: Messages, scope: WorkspaceScope, split: Split = "train") -> Rollout:
        """Raises: RolloutInvalid where the engine or the box failed."""
        tools = _group_tools.get() or self._resolve_tools_for_group()
        return await self._player.play(messages, tools, scope, split, self.max_token_len)

    async def _engine_facts(self) -> EngineFacts:
        return self.engine_facts or await self.server.probe()

    # -- grades

    async def _grade(self, item: Any, rollout: Rollout) -> float:
        with as_invalid("reward_error"):
            return valid_reward(await bridged(self.compute_reward, item, rollout.result, rollout.ctx))

    async def _grade_together(self, item: Any, rollouts: Sequence[Rollout]) -> list[float | None]:
        results, ctxs = [rollout.result for rollout in rollouts], [rollout.ctx for rollout in rollouts]
        with as_invalid("group_reward_error"):
            rewards = list(await bridged(self.compute_group_rewards, item, results, ctxs))
            if len(rewards) != len(rollouts):
                raise ValueError(f"{len(rewards)} rewards for {len(rollouts)} rollouts")
            return [None if reward is None else valid_reward(reward) for reward in rewards]

    def _scored(self, rollout: Rollout, reward: float) -> Sequences:
        result, rollout_id = rollout.result, rollout.rollout_id
        if result.managed_state is None:
            sequences = [untrained_sequence(result, reward, rollout_id)]
        else:
            sequences = trained_sequences(result, reward, rollout_id)
        self._statistics.add(result, len(sequences))
        self._reward_buffer.append(reward)
        del self._reward_buffer[:-KEPT_REWARDS]
        return sequences if self.config.uneven_groups == "all" else [longest_sequence(sequences)]

    async def _llm_judge(self, item: Any, response: str) -> float:
        """A model's score of an answer, 0 to 1, by the engine at ``judge_base_url``.

        Raises: RewardError where the judge gives no score.
        """
        return await self._judge.score(item, response)

    # -- tools and boxes

    def _resolve_tools_for_group(self) -> OfferedTools:
        """Schemas and names for one group: the enabled toolsets, or those drawn by the run's seed."""
        return self._tools.next_group()

    def bind_item(self, task_id: str, item: Any) -> None:
        """Give a task of a hand-written loop the box of an item: its image and its files.

        Call it inside ``evaluate``, before the loop runs. Without it a task gets the box that the config describes.
        Raises: WorkspaceError elsewhere, and for a task that has a box already.
        """
        scope = current_scope()
        if scope is None:
            raise WorkspaceError("bind_item belongs inside evaluate, which owns the boxes of its tasks")
        scope.bind(task_id, self._plan(item))

    def _plan(self, item: Any) -> BoxPlan:
        prepare = functools.partial(self._prepare, item) if self._prepares_boxes else None
        return plan_of(self.config, self.sandbox_spec(item), prepare, self._boxes)

    def _unbound_plan(self) -> BoxPlan:
        prepare = refuse_unbound if self._prepares_boxes else None
        return plan_of(self.config, self.sandbox_spec(None), prepare, self._boxes)

    @property
    def _prepares_boxes(self) -> bool:
        return type(self).prepare_box is not HermesAgentBaseEnv.prepare_box

    async def _prepare(self, item: Any, workspace: Workspace) -> None:
        await bridged(self.prepare_box, item, ToolContext(workspace.task_id))

    # -- evaluation

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Play ``eval_size`` held-out items at ``eval_temperature`` and log what they were worth, in their order.

        In the mode ``evaluate`` with a folder for results, an evaluation that was killed goes on where it stopped.
        While training it does not, since the policy is another each time.
        """
        started = time.time()
        items = await evaluation_items(self, self.config.eval_size)
        folder = self.config.data_dir_to_save_evals if self._only_evaluates else None
        token = _group_tools.set(self._resolve_tools_for_group())
        try:
            with Progress.in_folder(folder, self._evaluation_settings()) as progress:
                work = functools.partial(self._evaluate_item, progress)
                samples = await run_in_order(items, work, self.config.max_eval_workers)
                await self.evaluate_log(
                    metrics=summarise(samples),
                    samples=samples,
                    start_time=started,
                    end_time=time.time(),
                    generation_parameters=self._evaluation_settings(),
                )
        finally:
            _group_tools.reset(token)
        tell_invalid(samples, progress.failures, allowed=not self._only_evaluates)

    async def _evaluate_item(self, progress: Progress, index: int, item: Any) -> Sample:
        messages = self._first_messages(item)
        key = progress.key(index, item, messages)
        sample = progress.find(key)
        if sample is None:
            reasons = progress.failures.part()
            graded = await collect_members(functools.partial(self._evaluate_once, item, messages), 1, reasons)
            sample = graded[0] if graded else invalid_sample(messages, ", ".join(reasons))
            progress.add(key, sample)
        return {"index": index} | sample

    async def _evaluate_once(self, item: Any, messages: Messages) -> Sample:
        async with self._scope(item) as scope:
            rollout = await self._play(list(messages), scope, split="eval")
            return sample_of(messages, rollout.result, await self._grade(item, rollout))

    def _evaluation_settings(self) -> dict[str, Any]:
        config = self.config
        return {
            "env": self.name,
            "model": self.server.servers[0].config.model_name if self.server.servers else None,
            "seed": config.seed,
            "temperature": config.eval_temperature,
            "max_tokens": config.max_token_length,
            "max_turns": config.max_agent_turns,
            "system_prompt": config.system_prompt,
            "tools": sorted((_group_tools.get() or ([], set()))[1]),
        }

    # -- what is told

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log the rollouts since the last call beside ``wandb_metrics``. Subclasses call this last."""
        values: dict[str, Any] = {} if wandb_metrics is None else wandb_metrics
        values.update(self._statistics.describe())
        values["sandbox/open"] = open_boxes()
        values |= self._boxes.describe()
        self._statistics = RolloutStatistics()
        if self._reward_buffer:
            values.setdefault("train/mean_reward", sum(self._reward_buffer) / len(self._reward_buffer))
            self._reward_buffer.clear()
        await super().wandb_log(values)

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        """Keep some rollouts of a group for the table, as (conversation, score)."""
        if not scored_data.get("messages"):
            await super().add_rollouts_for_wandb(scored_data, item)
            return
        wanted = self.config.num_rollouts_per_group_for_logging
        told = list(zip(scored_data["messages"], scored_data["scores"], strict=False))
        told = told[: wanted if wanted >= 0 else None]
        self.rollouts_for_wandb.append([(self._format_trajectory_for_display(each), score) for each, score in told])
        del self.rollouts_for_wandb[: -max(1, self.config.num_rollouts_to_keep)]

    @staticmethod
    def _format_trajectory_for_display(messages: Sequence[Mapping[str, Any]]) -> str:
        """A conversation as text for people."""
        return format_conversation(messages)

    # -- a run

    def needs_tokenizer(self, mode: str) -> bool:
        """Rollouts are recorded token by token; an ``evaluate`` of the environment's own may do without."""
        return mode != "evaluate" or type(self).evaluate is HermesAgentBaseEnv.evaluate

    async def env_manager(self) -> None:
        """The mode ``serve``; its boxes come from one pool."""
        async with self._boxes.running():
            await super().env_manager()

    async def process_manager(self) -> None:
        """The mode ``process``; its boxes come from one pool."""
        async with self._boxes.running():
            await super().process_manager()

    async def evaluate_manager(self) -> None:
        """The mode ``evaluate``; its boxes come from one pool."""
        self._only_evaluates = True
        async with self._boxes.running():
            await super().evaluate_manager()

    async def aclose(self) -> None:
        """Close the judge's connections and all of the base's."""
        await self._judge.close()
        await super().aclose()

    async def _begin_once(self) -> None:
        """Before ``setup``: boxes can be had, and a setup that shuffles does so alike in every run."""
        if self._begun:
            return
        self._begun = True
        if self._tools_need_boxes:
            await self._boxes.prepare()
        random.seed(self.config.seed)
