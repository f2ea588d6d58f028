"""The settings that every environment has."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from atroposlib.envs.server_handling.reasoning import VALID_REASONING_EFFORTS

logger = logging.getLogger(__name__)


class EvalHandlingEnum(StrEnum):
    """What training does while an evaluation runs."""

    STOP_TRAIN = "STOP_TRAIN"
    """Rollouts that run are finished, then the evaluation has the engine to itself."""
    LIMIT_TRAIN = "LIMIT_TRAIN"
    """Only ``eval_limit_ratio`` of the workers collect meanwhile."""
    NONE = "NONE"
    """Both run side by side."""


class BaseEnvConfig(BaseModel):
    """Settings of an environment; a subclass adds its own as fields, and they become flags."""

    model_config = ConfigDict(validate_default=False, extra="ignore")

    without_effect: ClassVar[Mapping[str, str]] = {}
    """Fields that are taken from older configurations and do nothing, each with why."""

    group_size: int = Field(4, ge=1, description="Rollouts made from one item and scored against each other.")
    max_num_workers: int = Field(-1, description="Groups collected at once; -1: max_num_workers_per_node per engine.")
    max_eval_workers: int = Field(16, description="Evaluation items worked on at once.")
    max_num_workers_per_node: int = Field(8, description="Groups collected at once for each engine.")
    steps_per_eval: int = Field(100, description="Training steps between evaluations; 0 or less: none.")
    max_token_length: int = Field(2048, ge=1, description="Longest single generation, in tokens.")
    max_rollout_tokens: int | None = Field(
        None, ge=1, description="Longest rollout, in tokens; None: the smaller of the trainer's and the engine's limit."
    )
    eval_handling: EvalHandlingEnum = Field(
        EvalHandlingEnum.STOP_TRAIN, description="What training does while an evaluation runs."
    )
    eval_limit_ratio: float = Field(0.5, ge=0, le=1, description="Share of the workers that go on under LIMIT_TRAIN.")
    inference_weight: float = Field(1.0, ge=0, description="Share of the engines, against other environments.")
    batch_size: int = Field(-1, description="Sequences of a training batch, where the trainer does not say; -1: none.")
    max_batches_offpolicy: int = Field(3, ge=0, description="Batches collected ahead of the trainer.")
    tokenizer_name: str = Field(
        "NousResearch/DeepHermes-3-Llama-3-3B-Preview",
        description="Tokenizer: a folder or a name on the Hub; that of the engine's model where nobody sets it.",
    )
    use_wandb: bool = Field(True, description="Send metrics to wandb (offline without a key, JSONL without wandb).")
    metrics_dir: str | None = Field(
        None, description="Folder for metrics.jsonl, and for wandb's files; written also without wandb when set."
    )
    rollout_server_url: str = Field("http://localhost:8000", description="The trajectory server.")
    rollout_server_token_env: str | None = Field(
        None, description="Name of the environment variable that holds the trajectory server's token."
    )
    rollout_server_wait_s: float = Field(
        600.0, ge=0, description="Seconds without the trajectory server before giving up."
    )
    total_steps: int = Field(1000, description="Steps to run, where the trainer does not say; groups for process.")
    wandb_name: str | None = Field(None, description="Name of the run; None: the environment's.")
    num_rollouts_to_keep: int = Field(32, description="Rollouts kept for the table of rollouts.")
    num_rollouts_per_group_for_logging: int = Field(1, description="Of each group, how many; -1: all.")
    ensure_scores_are_not_same: bool = Field(True, description="Leave out groups whose scores are all the same.")
    data_path_to_save_groups: str | None = Field(None, description="JSONL file that every group is written to.")
    data_dir_to_save_evals: str | None = Field(None, description="Folder for metrics.json and samples.jsonl.")
    min_items_sent_before_logging: int = Field(2, description="Groups sent before metrics are logged again.")
    include_messages: bool = Field(False, description="Send the chat messages of each sequence too.")
    min_batch_allocation: float | None = Field(
        None, ge=0, le=1, description="Share of each batch that is kept for this environment (0 to 1)."
    )
    worker_timeout: float = Field(600.0, description="Seconds one group may take; 0 or less: no limit.")
    thinking_mode: bool = Field(False, description="Ask the model to reason.")
    reasoning_effort: str | None = Field(None, description=f"One of {', '.join(VALID_REASONING_EFFORTS)}.")
    max_reasoning_tokens: int | None = Field(None, ge=1024, le=32000, description="Most tokens to reason with.")
    custom_thinking_prompt: str | None = Field(None, description="System prompt of the thinking mode.")
    seed: int = Field(0, description="Seed of what the environment draws at random.")

    @field_validator("reasoning_effort")
    @classmethod
    def _known_effort(cls, effort: str | None) -> str | None:
        if effort is not None and effort not in VALID_REASONING_EFFORTS:
            raise ValueError(f"must be one of {', '.join(VALID_REASONING_EFFORTS)}")
        return effort

    @model_validator(mode="before")
    @classmethod
    def _say_what_is_ignored(cls, values: Any) -> Any:
        """Keyword arguments that no field takes are ignored, as ever, but not silently."""
        if isinstance(values, dict) and cls.model_config.get("extra") == "ignore":
            aliases = {field.alias for field in cls.model_fields.values() if field.alias}
            for name in values.keys() - cls.model_fields.keys() - aliases:
                near = get_close_matches(str(name), cls.model_fields, n=1)
                hint = f"; is {near[0]} meant?" if near else ""
                logger.warning("%s has no field %r: it is ignored%s", cls.__name__, name, hint)
        return values

    @model_validator(mode="after")
    def _say_what_does_nothing(self) -> Self:
        for name, why in self.without_effect.items():
            if getattr(self, name) != type(self).model_fields[name].default:
                warn_once(f"--env.{name} has no effect: {why}")
        return self


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning about the settings, which are read several times on their way to a run."""
    logger.warning("%s", message)
