"""``BaseEnv``: what an environment is, and what it may override.

A subclass says where items come from (``setup``, ``get_next_item``), how one becomes trajectories
(``collect_trajectory`` for one, or ``collect_trajectories`` for a group) and how the policy is evaluated
(``evaluate``). The rest of the class connects the rooms that do the work:

    cli, settings, argv    the command line            workers           which tasks run
    serving                the loop of ``serve``       groups, delivery  from rollouts to sent groups
    offline                ``process``, ``evaluate``   queue_client      the trajectory server
    reports, eval_results, recording, checkpoints      what is written down
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import BaseModel

from atroposlib.envs import checkpoints, offline, serving
from atroposlib.envs.config import BaseEnvConfig, EvalHandlingEnum
from atroposlib.envs.delivery import deliver
from atroposlib.envs.groups import (
    Failures,
    as_groups,
    both,
    collect_members,
    count_failure,
    failure_reason,
    fewest_members,
    merge_items,
)
from atroposlib.envs.items import next_item
from atroposlib.envs.masking import secret_from
from atroposlib.envs.methods import called
from atroposlib.envs.queue_client import QueueClient
from atroposlib.envs.recording import GroupRecorder
from atroposlib.envs.reports import EnvReports
from atroposlib.envs.server_handling.server_manager import (
    APIServer,
    APIServerConfig,
    EngineFacts,
    OpenaiConfig,
    ReasoningConfig,
    ServerBaseline,
    ServerManager,
)
from atroposlib.envs.settings import read_yaml
from atroposlib.envs.tokenizers import load_tokenizer
from atroposlib.envs.workers import RunningItem, WorkerPool, uninterrupted
from atroposlib.errors import ConfigError
from atroposlib.type_definitions import Item
from atroposlib.wire import ScoredDataGroup, ScoredDataItem

__all__ = [
    "APIServer",
    "APIServerConfig",
    "BaseEnv",
    "BaseEnvConfig",
    "EvalHandlingEnum",
    "Item",
    "OpenaiConfig",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
]

Groups = ScoredDataGroup | Sequence[ScoredDataGroup | None] | None
Servers = ServerBaseline | list[APIServerConfig]


class BaseEnv(EnvReports, ABC):
    """An environment. Subclasses call ``super().__init__(config, server_configs, slurm, testing)``."""

    env_config_cls: ClassVar[type[BaseEnvConfig]] = BaseEnvConfig
    server_cls: ClassVar[type[APIServer]] = APIServer  # type: ignore[type-abstract]  # stands for: as server_type says
    needs_token_ids: ClassVar[bool] = True
    """Whether ``serve`` wants an engine that tells the token ids it sampled; false where they come from elsewhere."""
    needs_engine: ClassVar[bool] = False
    """Whether nothing can be done without an engine, so that a run ends at once where none was chosen or answers."""

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: ServerBaseline | Sequence[APIServerConfig],
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        self.config: Any = config
        reasoning = ReasoningConfig.from_env_config(config)
        self.server = ServerManager(
            server_configs, self.server_cls, slurm=slurm, testing=testing, reasoning_config=reasoning
        )
        self.process_mode = False
        self.trainable = True
        """False where the engine does not tell its token ids, so that nothing may be trained on what it says."""
        self.engine_facts: EngineFacts | None = None
        """What was found out about the engines at the start."""
        self._tokenizer: Any = None

        self.rollout_failures = Failures()
        """Why rollouts failed, by reason."""
        self.dropped_groups: Counter[str] = Counter()
        """Why groups were neither sent nor recorded, by reason."""
        self.pool = WorkerPool(config.eval_handling, config.eval_limit_ratio, self.rollout_failures)
        self.max_num_workers = self._worker_limit(weight=1.0)
        self.eval_workers: set[Any] = set()
        self.last_completed_item: Item = None
        self.fruitless_draws = 0
        """How often there was no item, before there was a first one."""
        self.n_groups_to_process = config.total_steps
        self.group_size_to_process = config.group_size

        token = secret_from(config.rollout_server_token_env, "--env.rollout_server_token_env")
        self.queue_client = QueueClient(config.rollout_server_url, token)
        self.env_id: int | None = None
        self.status_dict: dict[str, Any] = {"current_step": 0, "queue_size": 0, "unallocated_fraction": 1.0}
        self.curr_step = 0
        self.max_token_len = -1
        self.checkpoint_dir = ""
        self.checkpoint_interval = -1

        path = config.data_path_to_save_groups
        self.recorder = GroupRecorder(path) if path else None
        self._begin_reports()
        self._own_attributes = frozenset(vars(self))

    # What a subclass provides

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, Servers | APIServerConfig]:
        """The settings that this environment starts from; files and flags go over them."""
        return cls.env_config_cls(), ServerBaseline()

    async def setup(self) -> None:
        """Load what the environment needs; called once, before anything is collected."""
        raise NotImplementedError(f"{type(self).__name__} must define setup()")

    async def preflight(self) -> None:
        """Find out what is wrong with the settings before an engine is waited for; called before ``setup``.

        Raises: ConfigError.
        """

    @abstractmethod
    async def get_next_item(self) -> Item:
        """The next item to make rollouts from; ``None`` if there is none now."""

    @abstractmethod
    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Measure the policy; what this raises ends the run."""

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """One rollout, and items to work on later.

        ``None`` or an exception (``RolloutInvalid`` names a reason) means that it failed: it is tried again, then
        left out, and counted. It is never a score of 0.
        """
        raise NotImplementedError(f"{type(self).__name__} must define collect_trajectory() or collect_trajectories()")

    async def collect_trajectories(self, item: Item) -> tuple[Groups, list[Item]]:
        """The group of an item, and items to work on later: ``group_size`` times ``collect_trajectory``, at once."""
        backlog: list[Item] = []

        async def attempt() -> ScoredDataItem | None:
            rollout: ScoredDataItem | None
            rollout, later = both(await called(self, "collect_trajectory", item), "collect_trajectory")
            backlog.extend(later or ())
            return rollout

        members = await collect_members(attempt, self.config.group_size, self.rollout_failures)
        group = merge_items(members, self.rollout_failures)
        if len(group.get("scores") or ()) < fewest_members(self.config.group_size):
            return None, backlog
        return group, backlog

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """Change the groups of an item before they are sent."""
        return trajectories

    async def cleanup(self) -> None:
        """Release what an item held; called after each one, also after a failure or a cancellation."""

    @classmethod
    def extra_settings(cls) -> Mapping[str, BaseModel]:
        """More namespaces of flags, each with its defaults: ``{"teacher": APIServerConfig(...)}``."""
        return {}

    @classmethod
    def read_config(cls, name: str) -> Mapping[str, Any]:
        """The sections (``env``, ``openai``, …) of the file that ``--config`` names. Raises: ConfigError."""
        return read_yaml(name)

    @classmethod
    def from_settings(
        cls, config: BaseEnvConfig, servers: Servers, slurm: bool, testing: bool, extra: Mapping[str, BaseModel]
    ) -> BaseEnv:
        """Build the environment that the command line describes; ``extra`` has the keys of ``extra_settings``."""
        del extra
        return cls(config, servers, slurm, testing)

    @classmethod
    def cli(cls, argv: Sequence[str] | None = None) -> None:
        """Run ``serve``, ``process`` or ``evaluate`` as the command line says. Raises: SystemExit on failure."""
        try:
            from atroposlib.envs.cli import run_cli

            run_cli(cls, argv)
        except KeyboardInterrupt:  # before the run began
            raise SystemExit(130) from None

    def needs_tokenizer(self, mode: str) -> bool:
        """Whether ``mode`` needs the tokenizer of an engine that tells its token ids, so that it is loaded first."""
        return mode == "serve" and self.needs_token_ids

    # The three modes

    async def env_manager(self) -> None:
        """``serve``: collect for a trainer until it has taken its steps."""
        await serving.serve(self)

    async def process_manager(self) -> None:
        """``process``: make ``n_groups_to_process`` groups and record them."""
        self.process_mode = True
        await offline.process(self)

    async def evaluate_manager(self) -> None:
        """``evaluate``: set up and evaluate, once."""
        await offline.evaluate(self)

    async def aclose(self) -> None:
        """Close files and connections. A subclass that holds more closes it here, then calls ``super().aclose()``."""
        if self.recorder is not None:
            self.recorder.close()
        self.tracker.finish()
        await self.queue_client.aclose()
        await self.server.close()

    # From an item to a sent group

    async def start_worker(self) -> RunningItem | None:
        """Begin with an item of the backlog, or else the next one; ``None`` if there is none."""
        item = self.backlog.pop(0) if self.backlog else await next_item(self)
        return None if item is None else self.pool.start(item, self.handle_env, self.config.worker_timeout)

    async def add_train_workers(self) -> None:
        """Begin with as many items as may be collected ahead of the trainer."""
        limit = min(self.max_num_workers, serving.groups_ahead(self))
        while self.pool.room(limit) > 0 and await self.start_worker() is not None:
            pass

    async def handle_env(self, item_uuid: str) -> Groups:
        """Collect, postprocess and send the groups of a running item. A failure is counted, and gives ``None``."""
        item = self.running_items[item_uuid].item
        try:
            collected, backlog = both(await called(self, "collect_trajectories", item), "collect_trajectories")
            self.backlog.extend(backlog or ())
            groups: Groups = await called(self, "postprocess_histories", collected) if as_groups(collected) else None
            if groups is not None:
                await self.handle_send_to_api(groups, item, do_send_to_api=not self.process_mode)
                self.last_completed_item = item
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  (the boundary of one rollout; logged and counted)
            count_failure(self.rollout_failures, failure_reason(error), error, "group")
            return None
        finally:
            await uninterrupted(called(self, "cleanup"))
        return groups

    async def handle_send_to_api(
        self,
        scored_data: Groups,
        item: Item = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> None:
        """Record and send a group or several. Those that must not be sent are left out, and counted by reason."""
        longest = self.max_token_len if abort_on_any_max_length_exceeded else -1
        await deliver(self, scored_data, item, sending=do_send_to_api, longest=longest)

    # The trajectory server

    async def register_env(self) -> None:
        """Register, waiting for server and trainer; the first time, go on where the trainer's run stands."""
        answer = await serving.register(self)
        first, self.env_id = self.env_id is None, answer["env_id"]
        if answer["num_steps"] > 0:
            self.config.total_steps = answer["num_steps"]
        if not first:
            return
        self.wandb_prepend = answer["wandb_name"]
        self.checkpoint_dir, self.checkpoint_interval = answer["checkpoint_dir"], answer["checkpoint_interval"]
        self.curr_step = answer["starting_step"]
        if self.curr_step > 0 and self.checkpoint_dir:
            self.load_checkpoint()

    async def get_server_info(self) -> None:
        """Learn the trainer's batch size, which goes before the setting, and its longest sequence."""
        info = await self.queue_client.run_info()
        self.max_token_len = info["max_token_len"]
        if info["batch_size"] > 0:
            self.config.batch_size = info["batch_size"]
        serving.check_batch_size(self.config.group_size, self.config.batch_size)

    async def get_status(self) -> None:
        """Learn how far training is, and take this environment's share of the engines."""
        self.status_dict = {**self.status_dict, **await self.queue_client.status()}
        weight = float(self.status_dict.get("env_weight", 1.0))
        self.max_num_workers = self._worker_limit(weight)
        await self.server.update_weight(weight)

    async def env_step_checks(self) -> None:
        """What a new step of the trainer brings: an evaluation, a checkpoint, metrics."""
        before, self.curr_step = self.curr_step, self.status_dict["current_step"]
        if serving.crossed(before, self.curr_step, self.config.steps_per_eval):
            self.pool.request_evaluation()
        if serving.crossed(before, self.curr_step, self.checkpoint_interval):
            self.save_checkpoint(self.curr_step)
        if self.curr_step > before and self.items_sent_this_step >= self.config.min_items_sent_before_logging:
            await self.wandb_log()
            self.items_sent_this_step = 0
        self.pool.start_due_evaluation(partial(called, self, "evaluate"))

    @property
    def derived_batch_size(self) -> int:
        """Sequences of a batch that this environment may fill; -1 where nobody has said."""
        batch: int = self.config.batch_size
        if batch <= 0 or self.config.min_batch_allocation is not None:
            return batch
        return max(1, int(batch * self.status_dict.get("unallocated_fraction", 1.0)))

    def _worker_limit(self, weight: float) -> int:
        workers: int = self.config.max_num_workers
        if workers < 0:
            workers = self.config.max_num_workers_per_node * max(1, len(self.server.servers))
        return max(1, math.ceil(workers * weight))

    # Checkpoints

    def save_checkpoint(self, step: int, data: Mapping[str, Any] | None = None) -> None:
        """Keep ``data`` for a run that goes on from ``step``; its keys become attributes again."""
        if self.checkpoint_dir:
            path = checkpoints.checkpoint_path(self.checkpoint_dir, self.wandb_prepend, step)
            checkpoints.write_checkpoint(path, data or {})

    def load_checkpoint(self) -> None:
        """Set the attributes that were kept for ``curr_step``."""
        path = checkpoints.checkpoint_path(self.checkpoint_dir, self.wandb_prepend, self.curr_step)
        checkpoints.restore(self, checkpoints.read_checkpoint(path), protected=self._own_attributes)

    # What environments read and set

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of ``tokenizer_name``, loaded when first asked for; may be set. Raises: ConfigError."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.config.tokenizer_name)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether one has been loaded or set."""
        return self._tokenizer is not None

    @property
    def workers(self) -> set[Any]:
        """The tasks that collect groups."""
        return self.pool.workers

    @property
    def running_items(self) -> dict[str, RunningItem]:
        """The items in hand, by id."""
        return self.pool.running_items

    @property
    def backlog(self) -> list[Item]:
        """Items to work on before new ones."""
        return self.pool.backlog

    @property
    def eval_runner(self) -> Any:
        """The task of the evaluation that runs, if one does."""
        return self.pool.evaluation

    @property
    def jsonl_writer(self) -> GroupRecorder | None:
        """Where groups are recorded."""
        return self.recorder
