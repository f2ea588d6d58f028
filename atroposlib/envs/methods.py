"""The methods that the author of an environment writes: whether they are there, and written as they are called."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError

if TYPE_CHECKING:
    from atroposlib.envs.base import BaseEnv


async def called(env: BaseEnv, method: str, *args: Any) -> Any:
    """What a method of the environment gives. Raises: ConfigError where it was written without ``async``."""
    answer = getattr(env, method)(*args)
    if not inspect.isawaitable(answer):
        raise ConfigError(
            f"{type(env).__name__}.{method}() gave {type(answer).__name__}, which cannot be awaited; write it as "
            f"`async def {method}`"
        )
    return await answer


def check_defined(cls: type[BaseEnv], mode: str) -> None:
    """Raises: ConfigError where the class lacks a method that ``mode`` calls, or without which it cannot be made."""
    missing = sorted(f"{name}()" for name in cls.__abstractmethods__)
    if _is_missing(cls, "setup"):
        missing.append("setup()")
    if mode != "evaluate" and _is_missing(cls, "collect_trajectory") and _is_missing(cls, "collect_trajectories"):
        missing.append("collect_trajectory() or collect_trajectories()")
    if missing:
        raise ConfigError(f"{cls.__name__} must define {', '.join(missing)}")


def _is_missing(cls: type[BaseEnv], method: str) -> bool:
    from atroposlib.envs.base import BaseEnv

    return getattr(cls, method) is getattr(BaseEnv, method)
