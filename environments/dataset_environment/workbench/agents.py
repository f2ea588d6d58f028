"""Agent files: which engine answers, and how it samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from atroposlib.envs.addresses import check_base, check_url
from atroposlib.envs.settings import read_yaml
from atroposlib.errors import ConfigError
from environments.dataset_environment.config_files import expand_variables, find_config


class AgentConfig(BaseModel):
    """One agent. ``hf``: a model in this process; ``embedded``: the engine of the trainer; ``openai``: any URL, which
    is the engine where a ``base_url`` is all that is given."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    engine: Literal["hf", "openai", "embedded"] = "embedded"
    model_name: str | None = None
    base_url: str | None = None
    api_key: str | None = Field(None, repr=False)
    wait_s: float | None = Field(None, ge=0)
    """Seconds to wait for the engine at ``base_url``; somebody who tries things out waits shortly by default."""
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)

    _file: Path = PrivateAttr(default=Path("agent"))

    @model_validator(mode="before")
    @classmethod
    def _a_url_is_an_engine(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("base_url") and "engine" not in values:
            return {**values, "engine": "openai"}
        return values

    @property
    def file(self) -> Path:
        """Where it was read from."""
        return self._file

    @property
    def sampling(self) -> dict[str, Any]:
        """What it says about sampling."""
        settings = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        return {name: value for name, value in settings.items() if value is not None}


def read_agent(name: str) -> AgentConfig:
    """The agent of a name or a path. Raises: ConfigError, which names file and key."""
    path = find_config(name, "agents")
    document = read_yaml(str(path))
    texts = {key: value for key, value in document.items() if isinstance(value, str)}
    expanded = {key: expand_variables(value, f"{path}: {key}") for key, value in texts.items()}
    try:
        agent = AgentConfig(**{**document, **expanded})
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    _check(agent, path)
    agent._file = path
    return agent


def _check(agent: AgentConfig, path: Path) -> None:
    """Raises: ConfigError where a setting is missing that its engine needs, or belongs to another engine."""
    if agent.engine == "openai":
        if not agent.base_url:
            raise ConfigError(f"{path}: an agent with the engine openai needs its base_url")
        check_url(agent.base_url, f"{path}: base_url")
        check_base(agent.base_url, f"{path}: base_url")
        return
    for name in ("base_url", "api_key", "wait_s"):
        if getattr(agent, name) is not None:
            raise ConfigError(f"{path}: {name} belongs to the engine openai, not to {agent.engine}")
    if agent.engine == "hf" and not agent.model_name:
        raise ConfigError(f"{path}: an agent with the engine hf needs its model_name")
