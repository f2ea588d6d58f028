"""What an environment tells about its run: metrics at each step, rollouts in a table, results of evaluations."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from atroposlib.envs import metrics
from atroposlib.envs.eval_results import Evaluation
from atroposlib.envs.groups import Failures, told
from atroposlib.envs.masking import masked
from atroposlib.envs.queue_client import QueueClient
from atroposlib.envs.recording import writing
from atroposlib.envs.server_handling.server_manager import ServerManager
from atroposlib.envs.workers import WorkerPool
from atroposlib.tracking import NullTracker, Tracker, TrackerKind, make_tracker
from atroposlib.type_definitions import Item

logger = logging.getLogger(__name__)


class EnvReports:
    """The part of ``BaseEnv`` that tells; its methods may be overridden like all others."""

    name: ClassVar[str | None] = None
    config: Any
    server: ServerManager
    queue_client: QueueClient
    pool: WorkerPool
    rollout_failures: Failures
    dropped_groups: Counter[str]
    curr_step: int
    env_id: int | None
    _tokenizer: Any

    def _begin_reports(self) -> None:
        self.tracker: Tracker = NullTracker()
        self.wandb_prepend: str | None = None
        self.wandb_project: str | None = None
        self.wandb_group: str | None = None
        self.completion_lengths: list[float] = []
        """Tokens trained on in each sequence since the last log."""
        self.rollouts_for_wandb: list[Any] = []
        self.items_sent_this_step = 0
        self._said_not_kept = False

    @property
    def run_name(self) -> str:
        """What this run is called, at wandb and by the server."""
        return self.config.wandb_name or self.name or type(self).__name__

    async def setup_wandb(self) -> None:
        """Open the tracker: wandb, or a JSONL file."""
        if self.env_id is not None:
            info = await self.queue_client.wandb_info()
            self.wandb_group, self.wandb_project = info["group"], info["project"]
        folder = self.config.metrics_dir
        kind: TrackerKind = "wandb" if self.config.use_wandb else "jsonl" if folder else "none"
        self.tracker = await asyncio.to_thread(
            make_tracker,
            kind,
            folder or Path("runs") / self.run_name,
            self.wandb_project,
            self.wandb_group,
            self.run_name,
            masked(self.config),
            f"{self.wandb_prepend}_" if self.wandb_prepend else "",
        )

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log ``wandb_metrics`` and what every environment measures, at ``curr_step``. Subclasses call this last."""
        values = {} if wandb_metrics is None else wandb_metrics
        values.update(metrics.describe_lengths(self.completion_lengths, self.config.max_token_length))
        values.update(metrics.describe_counts("rollouts/failed", self.rollout_failures))
        values.update(metrics.describe_counts("groups/left_out", self.dropped_groups))
        values["groups/unsent"] = self.queue_client.unsent
        self.completion_lengths = []
        values = await self.create_rollout_table(values)
        self.rollouts_for_wandb = []
        await self.server.wandb_metrics(values)
        self.perf_stats(values)
        self.tracker.log(values, self.curr_step)

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the kept rollouts as a table."""
        table = metrics.rollout_table(self.rollouts_for_wandb)
        if table is not None:
            wandb_metrics["train/rollouts"] = table
        return wandb_metrics

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Item = None) -> None:
        """Keep some rollouts of a group for the table, as (text, score)."""
        wanted = self.config.num_rollouts_per_group_for_logging
        decode = self._tokenizer.decode if self._tokenizer is not None else None
        scores = list(scored_data["scores"])[: wanted if wanted >= 0 else None]
        self.rollouts_for_wandb.append(
            [(metrics.rollout_text(scored_data, index, decode), score) for index, score in enumerate(scores)]
        )
        del self.rollouts_for_wandb[: -max(1, self.config.num_rollouts_to_keep)]

    def perf_stats(self, metrics_dict: dict[str, Any]) -> None:
        """Add how long groups take."""
        metrics_dict.update(metrics.describe_durations(self.pool.durations))

    def failure_summary(self) -> str:
        """Why rollouts and groups were left out so far, in one line."""
        return told(self.rollout_failures + self.dropped_groups, self.rollout_failures.last)

    async def evaluate_log(
        self,
        metrics: Mapping[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: Mapping[str, Any] | None = None,
        samples: Sequence[Mapping[str, Any]] | None = None,
        verbose: bool = True,
    ) -> None:
        """Write the results of an evaluation to ``data_dir_to_save_evals``, then print them."""
        evaluation = Evaluation(
            task=task_name or f"{self.name or type(self).__name__}_eval",
            metrics=metrics,
            samples=samples or (),
            model_name=model_name or self._model_name(),
            started=start_time,
            ended=end_time,
            generation_parameters={"max_new_tokens": self.config.max_token_length, **(generation_parameters or {})},
            made_with={"seed": self.config.seed, "step": self.curr_step},
        )
        folder = self.config.data_dir_to_save_evals
        if folder:
            with writing("--env.data_dir_to_save_evals", folder):
                await asyncio.to_thread(evaluation.write, Path(folder))
        elif not self._said_not_kept:
            self._said_not_kept = True
            logger.warning("the results are not kept: --env.data_dir_to_save_evals names a folder for them")
        if verbose:
            sys.stdout.write(evaluation.table() + "\n")

    def _model_name(self) -> str | None:
        return self.server.servers[0].config.model_name if self.server.servers else None
