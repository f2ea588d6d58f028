"""The grade of a rollout: the box it is given in, and what counts as one."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from atroposlib.errors import ConfigError, RolloutInvalid
from environments.tool_context import ToolContext
from environments.tools.workspaces import Workspace, WorkspaceScope
from sandboxes.errors import (
    IMAGE_FAULTS,
    PoolBusy,
    SandboxClosed,
    SandboxFileError,
    SandboxStartError,
    SandboxTimeout,
    SandboxUnavailable,
)

if TYPE_CHECKING:
    from sandboxes.base import Sandbox

_BOX_FAULTS = (SandboxUnavailable, SandboxStartError, PoolBusy, SandboxClosed, SandboxTimeout)
"""The box failed, and not what was asked of it."""


async def fresh_context(scope: WorkspaceScope, agent: Workspace, artefacts: Sequence[str]) -> ToolContext:
    """A context over a new box that was prepared as the agent's was and then got the artefacts of its work.

    An artefact that the agent did not make is absent. Raises: SandboxError.
    """
    fresh = scope.bind(f"{agent.task_id}-grading", agent.plan)
    if agent.has_box:
        await agent.end_agent_part()
        source, target = await agent.box(), await fresh.box()
        for artefact in artefacts:
            await _copy(source, target, agent.absolute(artefact))
    return ToolContext(fresh.task_id)


async def _copy(source: Sandbox, target: Sandbox, path: str) -> None:
    with tempfile.TemporaryDirectory(prefix="artefact-") as folder:
        copy = Path(folder) / "artefact"
        try:
            await source.download(path, copy)
        except SandboxFileError:
            return
        await target.upload(copy, path)


@contextmanager
def as_invalid(reason: str) -> Iterator[None]:
    """What a reward function raises makes the rollout invalid; settings that are wrong end the run.

    ``reason`` is what it is counted under, unless the box failed.
    """
    try:
        yield
    except (ConfigError, RolloutInvalid, *IMAGE_FAULTS):
        raise
    except _BOX_FAULTS as error:
        raise RolloutInvalid("sandbox_error", f"{type(error).__name__}: {error}") from error
    except Exception as error:
        raise RolloutInvalid(reason, f"{type(error).__name__}: {error}") from error


def valid_reward(reward: object) -> float:
    """Raises: RolloutInvalid for what is no finite number."""
    try:
        number = float(reward)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise RolloutInvalid("reward_error", f"the reward is {reward!r}, no number") from error
    if not math.isfinite(number):
        raise RolloutInvalid("reward_error", f"the reward is {number}")
    return number
