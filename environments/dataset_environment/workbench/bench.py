"""The bench: an environment over one engine, its questions one by one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from atroposlib.envs.argv import split_flags
from atroposlib.envs.cli import defaults_of
from atroposlib.envs.engines import prepare_engines
from atroposlib.envs.reward_fns.scoring import Score
from atroposlib.envs.settings import Settings, settings_from
from atroposlib.errors import ConfigError, EngineRefused, EngineUnavailable
from environments.dataset_environment.config_files import read_env_config
from environments.dataset_environment.dataset_config import DatasetEnvConfig
from environments.dataset_environment.dataset_env import DatasetEnv, Trial
from environments.dataset_environment.questions import Question
from environments.dataset_environment.rewards import make_rewards
from environments.dataset_environment.workbench.agents import AgentConfig
from environments.dataset_environment.workbench.engines import open_engine


@dataclass(frozen=True)
class Choice:
    """What is to be tried: a configuration by name or path, an agent, and sampling that goes over both.

    Without an agent the engines of the configuration answer, or else the embedded one.
    """

    config: str
    agent: AgentConfig | None
    sampling: Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """An answer, its length where that is known, and what it is worth."""

    text: str
    tokens: int | None
    score: Score

    @classmethod
    def of(cls, trial: Trial) -> Judged:
        """The answer of a model."""
        return cls(trial.result.final_response, trial.result.usage.completion_tokens or None, trial.score)


class Bench:
    """Questions of an environment, answered and judged one by one."""

    def __init__(self, env: DatasetEnv) -> None:
        self.env = env

    @property
    def config(self) -> DatasetEnvConfig:
        """The settings of the environment."""
        return self.env.config

    @property
    def model_name(self) -> str:
        """The model that answers."""
        facts = self.env.engine_facts
        return facts.model_name if facts else self.env.server.servers[0].config.model_name

    async def next_question(self) -> Question:
        """The next question in the order of training; where all are evaluated, of those."""
        if self.env.items:
            return await self.env.get_next_item()
        self.env.questions_drawn += 1
        return self.env.eval_items[(self.env.questions_drawn - 1) % len(self.env.eval_items)]

    async def attempt(self, question: Question) -> Trial:
        """Let the model answer. Raises: RolloutInvalid where engine or box failed."""
        return await self.env.attempt(question)

    async def judge(self, question: Question, text: str) -> Judged:
        """Judge an answer that somebody wrote."""
        return Judged(text, self.env.count_tokens(text), await self.env.judge_text(question, text))


def with_prompt(question: Question, text: str) -> Question:
    """The question in other words."""
    changed = {**question.conversation[-1], "content": text}
    return replace(question, conversation=(*question.conversation[:-1], changed))


@asynccontextmanager
async def open_bench(choice: Choice) -> AsyncIterator[Bench]:
    """Start the engine and load the questions. Raises: ConfigError, also where no engine answers; ChildFailed."""
    settings = _settings(choice)
    if choice.agent is None and "openai" in read_env_config(choice.config):
        async with _over(settings, settings.servers) as bench:
            yield bench
        return
    async with open_engine(choice.agent or AgentConfig()) as engine, _over(settings, [engine]) as bench:
        yield bench


@asynccontextmanager
async def _over(settings: Settings, servers: Any) -> AsyncIterator[Bench]:
    assert isinstance(settings.env, DatasetEnvConfig)
    env = DatasetEnv(settings.env, servers)
    try:
        await env.setup()
        try:
            await prepare_engines(env, "evaluate", replace(settings, engine_chosen=True))
        except (EngineUnavailable, EngineRefused) as error:
            raise ConfigError(str(error)) from error
        yield Bench(env)
    finally:
        await env.aclose()


def _settings(choice: Choice) -> Settings:
    sampling = {**(choice.agent.sampling if choice.agent else {}), **choice.sampling}
    words = ["--config", choice.config, "--env.use_wandb", "false"]
    for name, value in sampling.items():
        words += [f"--env.{name}", str(value)]
    if "max_tokens" in sampling:
        words += ["--env.max_token_length", str(sampling["max_tokens"])]
    settings = settings_from(split_flags(words), defaults_of(DatasetEnv, "evaluate"))
    assert isinstance(settings.env, DatasetEnvConfig)
    make_rewards(settings.env)  # a wrong one is told before an engine is loaded
    return settings if choice.agent is None else replace(settings, env=_without_tokenizer(settings.env))


def _without_tokenizer(config: Any) -> Any:
    """The tokenizer that a configuration names belongs to its own model, not to the agent's."""
    chosen = {name: value for name, value in config if name in config.model_fields_set and name != "tokenizer_name"}
    return type(config)(**chosen)
