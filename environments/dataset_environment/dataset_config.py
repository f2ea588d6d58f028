"""The settings of a data set environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from environments.hermes_config import HermesAgentEnvConfig

RewardEntry = str | dict[str, Any]
"""The name of a reward function, or ``{"type": …, "weight": …, "params": {…}}``."""


class DatasetEnvConfig(HermesAgentEnvConfig):
    """Settings of ``DatasetEnv``. Without tools and with one turn unless somebody asks for more."""

    without_effect: ClassVar[Mapping[str, str]] = {
        **HermesAgentEnvConfig.without_effect,
        "length_warmup_steps": "a reward judges alike from the first step to the last",
    }

    enabled_toolsets: list[str] | None = Field([], description="Toolsets offered to the model; none unless named.")
    max_agent_turns: int = Field(1, ge=1, description="Replies of the model in one rollout.")

    dataset_name: str | None = Field(
        None, description="Name on the Hugging Face Hub, local folder or file, or package:NAME/FILE of a package."
    )
    dataset_config: str | None = Field(None, description="Configuration of the data set, such as gsm8k's main.")
    dataset_path: str | None = Field(None, description="Local folder, file or pattern, in the place of dataset_name.")
    split: str = Field("train", description="Split, with slices where wanted: train[:100], train[10%:20%]+test.")
    shuffle_dataset: bool = Field(True, description="Draw the rows in an order of the seed, another one each epoch.")

    prompt_field: str = Field("prompt", description="Field of the question: a text, or chat messages; a.b leads in.")
    prompt_template: str | None = Field(None, description="Jinja template of the question over the fields of a row.")
    answer_field: str | None = Field(None, description="Field of the right answer; a.b leads into nested fields.")
    answer_template: str | None = Field(
        None, description="Jinja template of the right answer over the fields of a row."
    )
    ground_truth_field: str | None = Field(None, description="Field of the bare right answer, where there are both.")
    system_prompt: str | None = Field(None, description="System message, plain or a Jinja template.")
    prefill: str | None = Field(None, description="Beginning of every answer, which the model goes on from.")
    few_shot: int = Field(0, ge=0, description="Solved rows shown before each question; they are not trained on.")
    few_shot_examples: list[dict[str, str]] = Field(
        [], description="Solved examples shown before each question: {prompt: …, answer: …}."
    )

    reward_functions: list[RewardEntry] = Field([], description="Reward functions: names, or type, weight and params.")
    reward_funcs: list[RewardEntry] = Field([], description="More of them, under their older name.")
    reward_modules: list[str] = Field([], description="Python files, folders or modules that define rewards.")

    temperature: float | None = Field(None, ge=0, description="Sampling temperature; None: agent_temperature.")
    top_p: float | None = Field(None, gt=0, le=1, description="Nucleus to sample from; None: the engine's default.")
    max_tokens: int | None = Field(None, ge=1, description="Longest answer, in tokens, up to max_token_length.")

    eval_dataset_name: str | None = Field(None, description="Data set of evaluations; None: dataset_name.")
    eval_dataset_config: str | None = Field(None, description="Its configuration; None: dataset_config.")
    eval_split: str | None = Field(None, description="Split of evaluations; None: some rows of split are held out.")
    eval_fraction: float = Field(
        0.1, ge=0, le=1, description="Largest share of the rows that is held out where there is no eval_split."
    )

    max_generations_per_prompt: int = Field(1, ge=1, description="Older name of group_size, where that is not set.")
    include_messages_in_scoring: bool = Field(False, description="Older name of include_messages.")
    length_warmup_steps: int = Field(0, description="Accepted for older configurations; has no effect.")
    min_tokens: int = Field(
        0, ge=0, description="Shortest answer, in tokens, for engines that take min_tokens; 0: any length."
    )
    debug_mode: bool = Field(False, description="Log what becomes of every question.")

    @model_validator(mode="before")
    @classmethod
    def _one_name_for_the_split(cls, values: Any) -> Any:
        if isinstance(values, dict) and "split" not in values and values.get("dataset_split") is not None:
            return {**values, "split": values["dataset_split"]}
        return values

    @field_validator("reward_functions", "reward_funcs", "reward_modules", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, (str, dict)) else value

    @model_validator(mode="after")
    def _complete_examples(self) -> Self:
        for example in self.few_shot_examples:
            if example.keys() != {"prompt", "answer"}:
                raise ValueError(f"few_shot_examples: an example is {{prompt: …, answer: …}}, not {example!r:.200}")
        return self

    @property
    def rewards(self) -> list[RewardEntry]:
        """All chosen reward functions."""
        return [*self.reward_functions, *self.reward_funcs]

    def as_played(self) -> Self:
        """The same settings in the words of the agent's loop: how it samples, and how long an answer may be."""
        longest = min(self.max_token_length, self.max_tokens or self.max_token_length)
        changes: dict[str, Any] = {"max_token_length": longest, "max_tokens": longest}
        if self.temperature is not None:
            changes["agent_temperature"] = self.temperature
        if asked := {name: value for name in ("top_p", "min_tokens") if (value := getattr(self, name))}:
            changes["extra_body"] = asked | (self.extra_body or {})
        if self.max_generations_per_prompt > 1 and "group_size" not in self.model_fields_set:
            changes["group_size"] = self.max_generations_per_prompt
        if self.include_messages_in_scoring:
            changes["include_messages"] = True
        return self.model_copy(update=changes)
