"""The boxes of an environment: what is checked before the first one, and how each is planned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from atroposlib.errors import ConfigError, RolloutInvalid
from environments.hermes_config import HermesAgentEnvConfig
from environments.tools.workspaces import BoxPlan, Workspace, WorkspaceError, WorkspaceScope, workspace_scope
from sandboxes import backends, check_backend, reaper
from sandboxes.base import SandboxSpec
from sandboxes.errors import ImageNotFound, SandboxError, SandboxUnavailable

logger = logging.getLogger(__name__)

BACKENDS_WITH_IMAGES = ("docker", "auto")


def check_backend_name(name: str) -> None:
    """Raises: ConfigError for a backend that does not exist."""
    if name not in backends():
        raise ConfigError(f"unknown terminal_backend {name!r}; known are {', '.join(backends())}")


async def prepare_backend(name: str, image: str | None) -> None:
    """See that boxes can be had here, and remove those of owners that are gone.

    Raises: ConfigError where the backend cannot be used; it says what to install.
    """
    if image is not None and name not in BACKENDS_WITH_IMAGES:
        raise ConfigError(f"docker_image is set, but terminal_backend {name!r} has no images; use docker")
    try:
        await asyncio.to_thread(check_backend, name)
    except SandboxUnavailable as error:
        raise ConfigError(f"terminal_backend {name!r}: {error}") from error
    try:
        await asyncio.to_thread(reaper.reap)
    except SandboxError as error:
        logger.warning("Boxes of earlier runs could not be looked for: %s", error)


def plan_of(
    config: HermesAgentEnvConfig, spec: SandboxSpec, prepare: Callable[[Workspace], Awaitable[None]] | None
) -> BoxPlan:
    """The plan of a box as the settings describe it."""
    return BoxPlan(config.terminal_backend, spec, float(config.terminal_timeout), prepare, config.grading_env)


async def refuse_unbound(workspace: Workspace) -> None:
    """The ``prepare`` of a task whose item nobody named, where boxes have to be prepared for their items."""
    raise WorkspaceError(
        f"Task {workspace.task_id} has no item, and prepare_box needs one: call self.bind_item(task_id, item) first."
    )


@asynccontextmanager
async def rollout_scope(plan: BoxPlan, lifetime_s: float) -> AsyncIterator[WorkspaceScope]:
    """Boxes that are closed at the end, which comes after ``lifetime_s`` seconds at the latest.

    Raises: RolloutInvalid where it came so; ConfigError where the image of a box does not exist.
    """
    try:
        async with asyncio.timeout(lifetime_s) as deadline, workspace_scope(plan) as scope:
            yield scope
    except ImageNotFound as error:
        raise ConfigError(f"docker_image: {error}") from error
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise RolloutInvalid("terminal_lifetime", f"the rollout took longer than {lifetime_s:g} s") from error
