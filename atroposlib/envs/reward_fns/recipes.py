"""Rewards as bytes that another process can make them from: the name of the class, and its arguments."""

from __future__ import annotations

import functools
import importlib
import inspect
import pickle
import sys
from typing import Any

from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.envs.reward_fns.source_files import import_file
from atroposlib.envs.reward_fns.verdict import Verdict
from atroposlib.errors import RewardError


def recipe_of(reward: RewardFunction) -> bytes:
    """Write down how to make it again. Raises: RewardError where that cannot be done elsewhere."""
    made = type(reward)
    if "<" in made.__qualname__:
        raise RewardError(
            f"{reward.name} is cpu_bound, so another process has to find {made.__qualname__}: define it in a module, "
            "not in a function"
        )
    module = sys.modules[made.__module__]
    file = None if made.__module__.startswith(f"{__package__}.") else getattr(module, "__file__", None)
    try:
        return pickle.dumps((_importable_name(made.__module__), file, made.__qualname__, reward.made_with))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise RewardError(
            f"{reward.name} is cpu_bound, so its parameters must be plain values that can be pickled: {error}"
        ) from error


@functools.lru_cache(maxsize=64)
def made_from(recipe: bytes) -> RewardFunction:
    """Make the reward, once per process, and load what it needs."""
    module_name, file, qualname, (args, kwargs) = pickle.loads(recipe)
    found: Any = _module(module_name, file)
    for part in qualname.split("."):
        found = getattr(found, part)
    reward: RewardFunction = found(*args, **kwargs)
    reward.prepare()
    return reward


def prepare_all(recipes: tuple[bytes, ...]) -> None:
    """Make all of them; the setup of a batch."""
    for recipe in recipes:
        made_from(recipe)


def judge(recipe: bytes, completions: list[Any], keywords: dict[str, Any]) -> list[Verdict]:
    """What a reward says; one call of a batch."""
    return made_from(recipe).verdicts(completions, **keywords)


def keywords_for(reward: RewardFunction, keywords: dict[str, Any]) -> dict[str, Any]:
    """Those that travel to another process: what ``compute`` names, and the data where it takes any keyword.

    A parameter ``**_`` says that it looks at no others.
    """
    named = inspect.signature(reward.compute).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD and each.name != "_" for each in named.values())
    wanted = {*named, *(("solution", "ground_truth", "item") if takes_any else ())}
    return {name: value for name, value in keywords.items() if name in wanted}


def _importable_name(module: str) -> str:
    """The name by which others import a module; that of the program, if it was started by ``python -m``."""
    spec = getattr(sys.modules[module], "__spec__", None) if module == "__main__" else None
    return spec.name if spec is not None else module


def _module(name: str, file: str | None) -> Any:
    if name != "__main__":
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            if file is None:
                raise
    if file is None:
        raise RewardError("a reward of an interactive session cannot be made again: write it into a file")
    return import_file(file)
