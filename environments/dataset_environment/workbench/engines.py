"""Opens the engine of an agent, and ends it with the bench."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from atroposlib.envs.server_handling.server_baseline import APIServer, APIServerConfig
from environments.dataset_environment.workbench.agents import AgentConfig
from environments.dataset_environment.workbench.transformers_server import TransformersServer
from environments.local_run import programs
from environments.local_run.ports import free_ports
from environments.local_run.processes import ProcessGroup

EMBEDDED_MODEL = "tiny"


@asynccontextmanager
async def open_engine(agent: AgentConfig) -> AsyncIterator[APIServer | APIServerConfig]:
    """The engine, up and ready. Raises: ConfigError, ChildFailed where it cannot be had."""
    if agent.engine == "hf":
        assert agent.model_name is not None
        yield await asyncio.to_thread(TransformersServer.load, agent.model_name)
    elif agent.engine == "openai":
        yield APIServerConfig(base_url=agent.base_url, model_name=agent.model_name or "", api_key=agent.api_key)
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
