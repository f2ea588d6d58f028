"""Opens the engine of an agent, and ends it with the bench."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import PrivateAttr

from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig
from environments.dataset_environment.workbench.agents import AgentConfig
from environments.dataset_environment.workbench.transformers_server import TransformersServer
from environments.local_run import programs
from environments.local_run.ports import free_ports
from environments.local_run.processes import ProcessGroup

EMBEDDED_MODEL = "tiny"
WAIT_S = 5.0
"""How long an engine is waited for that should be there already."""


class AgentEngineConfig(APIServerConfig):
    """An engine whose settings stand in the file of an agent."""

    _file: Path = PrivateAttr()

    @classmethod
    def of(cls, agent: AgentConfig) -> AgentEngineConfig:
        """The engine at the agent's ``base_url``."""
        config = cls(
            base_url=agent.base_url,
            model_name=agent.model_name or "",
            api_key=agent.api_key,
            wait_s=WAIT_S if agent.wait_s is None else agent.wait_s,
        )
        config._file = agent.file
        return config

    def spelled(self, setting: str) -> str:
        """The key in the file."""
        return f"{setting} in {self._file}"


@asynccontextmanager
async def open_engine(agent: AgentConfig) -> AsyncIterator[APIServer | APIServerConfig]:
    """The engine, up and ready. Raises: ConfigError, ChildFailed where it cannot be had."""
    if agent.engine == "hf":
        assert agent.model_name is not None
        yield await asyncio.to_thread(TransformersServer.load, agent.model_name)
    elif agent.engine == "openai":
        yield AgentEngineConfig.of(agent)
    else:
        async with _embedded(agent.model_name or EMBEDDED_MODEL) as url:
            yield APIServerConfig(base_url=url)


@asynccontextmanager
async def _embedded(model: str) -> AsyncIterator[str]:
    """The trainer's engine over a model, as a child process; yields its URL."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="engine-") as logs:
        async with ProcessGroup(Path(logs)) as group:
            await group.start(programs.engine(model, port))
            yield f"http://127.0.0.1:{port}/v1"
