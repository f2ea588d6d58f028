"""What is put around the methods that a subclass of ``HermesAgentBaseEnv`` defines."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from environments.tool_context import bridged_method
from environments.tools.workspaces import workspace_scope

if TYPE_CHECKING:
    from environments.hermes_base_env import HermesAgentBaseEnv

Method = Callable[..., Any]


def wrap_hooks(cls: type[Any]) -> None:
    """Let the hooks in the body of ``cls`` be called as the base class calls them, however they are written."""
    for name, around in _AROUND.items():
        if name in cls.__dict__:
            setattr(cls, name, around(cls.__dict__[name]))


def _evaluating(function: Method) -> Method:
    """An ``evaluate`` whose tasks find boxes, all of which are closed when it ends."""
    evaluate = bridged_method(function)

    @functools.wraps(function)
    async def run(self: HermesAgentBaseEnv, *args: Any, **kwargs: Any) -> Any:
        async with workspace_scope(self._unbound_plan()):
            return await evaluate(self, *args, **kwargs)

    return run


def _starting(function: Method) -> Method:
    """A ``setup`` that begins with the base's own checks, once, however deep the classes are."""

    @functools.wraps(function)
    async def run(self: HermesAgentBaseEnv, *args: Any, **kwargs: Any) -> Any:
        await self._begin_once()
        done = function(self, *args, **kwargs)
        return await done if inspect.isawaitable(done) else done

    return run


_AROUND: Mapping[str, Callable[[Method], Method]] = {
    "compute_reward": bridged_method,
    "compute_group_rewards": bridged_method,
    "prepare_box": bridged_method,
    "evaluate": _evaluating,
    "setup": _starting,
}
