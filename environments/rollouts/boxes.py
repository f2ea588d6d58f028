"""The boxes of an environment: what is checked before the first one, and how each is planned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from atroposlib.errors import ConfigError, RolloutInvalid
from environments.hermes_config import HermesAgentEnvConfig
from environments.tools.workspaces import BoxPlan, Workspace, WorkspaceError, WorkspaceScope, finish, workspace_scope
from sandboxes import backends, check_backend, reaper, start_sandbox
from sandboxes.base import Sandbox, SandboxSpec
from sandboxes.errors import ImageBuildError, ImageNotFound, SandboxError, SandboxUnavailable
from sandboxes.pool import SandboxPool

logger = logging.getLogger(__name__)

BACKENDS_WITH_IMAGES = ("docker", "auto")
MOST_WAITING = 100_000
"""Rollouts that may wait for a box; how many run at once is bounded by the environment's workers."""


class RunBoxes:
    """Where the boxes of an environment come from.

    In a run (``running``) that is one pool: few boxes start at once, and as many as configured stand ready. From the
    first need of a box to the end of the run, what dead processes left on this machine is swept. Outside a run a box
    is started when it is taken.
    """

    def __init__(self, config: HermesAgentEnvConfig) -> None:
        self._config = config
        self._pool: SandboxPool | None = None
        self._run: AsyncExitStack | None = None
        self._sweeps = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A run. At its end, however it comes, boxes that stand ready or are starting are closed."""
        config = self._config
        self._pool = SandboxPool(
            partial(start_sandbox, config.terminal_backend),
            starting=config.max_boxes_starting,
            warm=config.warm_boxes,
            queue=MOST_WAITING,
            patience_s=float(config.terminal_lifetime),
        )
        self._run = AsyncExitStack()
        try:
            yield
        finally:
            pool, run = self._pool, self._run
            self._pool, self._run, self._sweeps = None, None, False
            await finish(_end(pool, run))

    async def prepare(self) -> None:
        """See that boxes can be had here, and remove those of owners that are gone, from now on where a run began.

        Raises: ConfigError where the backend cannot be used; it says what to install.
        """
        await check_usable(self._config)
        if self._run is None:
            await _reap_once()
        else:
            await self._sweep()

    async def take(self, spec: SandboxSpec, task_id: str) -> Sandbox:
        """A box that nobody used; the caller closes it. Raises: SandboxError."""
        if self._pool is None:
            return await start_sandbox(self._config.terminal_backend, spec)
        await self._sweep()
        return await self._pool.take(spec, who=task_id)

    def describe(self) -> dict[str, float]:
        """For the metrics: how many tasks wait for their box now, and for how long the first of them."""
        waiting = [] if self._pool is None else self._pool.waiting()
        longest_s = max((each.seconds for each in waiting), default=0.0)
        return {"sandbox/waiting": len(waiting), "sandbox/longest_wait_s": longest_s}

    async def _sweep(self) -> None:
        if self._run is not None and not self._sweeps:
            self._sweeps = True
            await self._run.enter_async_context(reaper.sweeping())


async def _reap_once() -> None:
    try:
        await asyncio.to_thread(reaper.reap)
    except SandboxError as error:
        logger.warning("Boxes of earlier runs could not be looked for: %s", error)


async def _end(pool: SandboxPool, run: AsyncExitStack) -> None:
    """The last sweep comes after the last box."""
    async with run:
        try:
            await pool.close()
        except* SandboxError:
            logger.exception("Boxes that stood ready were not closed; a sweep after this process removes them")


def check_backend_name(name: str) -> None:
    """Raises: ConfigError for a backend that does not exist."""
    if name not in backends():
        raise ConfigError(f"unknown terminal_backend {name!r}; known are {', '.join(backends())}")


async def check_usable(config: HermesAgentEnvConfig) -> None:
    """Raises: ConfigError where boxes as configured cannot be had here; it says what to install or change."""
    name = config.terminal_backend
    for field in ("docker_image", "docker_build"):
        if getattr(config, field) is not None and name not in BACKENDS_WITH_IMAGES:
            raise ConfigError(f"{field} is set, but terminal_backend {name!r} has no images; use docker")
    if config.sandbox_network == "bridge" and name == "bubblewrap":
        raise ConfigError(
            "sandbox_network is bridge, but bubblewrap boxes have no network of the machine; set "
            "--env.terminal_backend docker, or name the hosts that a box may reach"
        )
    if isinstance(config.sandbox_network, list) and name == "local":
        raise ConfigError(
            "sandbox_network names hosts, to which local boxes cannot be held; set --env.terminal_backend docker or "
            "bubblewrap"
        )
    if config.docker_build is not None and not Path(config.docker_build, "Dockerfile").is_file():
        raise ConfigError(f"docker_build: there is no file {Path(config.docker_build, 'Dockerfile')}")
    try:
        await asyncio.to_thread(check_backend, name, config.sandbox_spec())
    except SandboxUnavailable as error:
        raise ConfigError(f"terminal_backend {name!r}: {error}") from error


def plan_of(
    config: HermesAgentEnvConfig,
    spec: SandboxSpec,
    prepare: Callable[[Workspace], Awaitable[None]] | None,
    boxes: RunBoxes,
) -> BoxPlan:
    """The plan of a box as the settings describe it, taken from ``boxes``."""
    timeout_s = float(config.terminal_timeout)
    return BoxPlan(config.terminal_backend, spec, timeout_s, prepare, config.grading_env, boxes.take)


async def refuse_unbound(workspace: Workspace) -> None:
    """The ``prepare`` of a task whose item nobody named, where boxes have to be prepared for their items."""
    raise WorkspaceError(
        f"Task {workspace.task_id} has no item, and prepare_box needs one: call self.bind_item(task_id, item) first."
    )


@asynccontextmanager
async def rollout_scope(plan: BoxPlan, lifetime_s: float) -> AsyncIterator[WorkspaceScope]:
    """Boxes that are closed at the end, which comes after ``lifetime_s`` seconds at the latest.

    Raises: RolloutInvalid where it came so; ConfigError where the image of a box does not exist or cannot be built.
    """
    try:
        async with asyncio.timeout(lifetime_s) as deadline, workspace_scope(plan) as scope:
            yield scope
    except ImageNotFound as error:
        raise ConfigError(f"docker_image: {error}") from error
    except ImageBuildError as error:
        raise ConfigError(f"docker_build: {error}") from error
    except TimeoutError as error:
        if not deadline.expired():
            raise
        raise RolloutInvalid("terminal_lifetime", f"the rollout took longer than {lifetime_s:g} s") from error
