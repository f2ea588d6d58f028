"""Reward functions by name.

Names are in snake case without "reward" (``ReasoningStepsReward`` is ``reasoning_steps``). When one is looked up, case,
underscores, dashes and a "reward" at the end do not count, so older spellings are found as well. A file of this folder
is imported when a name is asked for that is not registered yet: first the one that is called so, then all others.
``package.module:Class`` names a class anywhere, and ``load`` brings in files, folders and modules from anywhere.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from atroposlib.envs.reward_fns.function_reward import FunctionReward
from atroposlib.envs.reward_fns.parameters import checked_parameters, suggestion
from atroposlib.envs.reward_fns.reward_function import RewardFunction, snake_case
from atroposlib.envs.reward_fns.source_files import import_file
from atroposlib.errors import ConfigError

logger = logging.getLogger(__name__)

RewardConfig: TypeAlias = str | Mapping[str, Any] | RewardFunction
Registered: TypeAlias = type[RewardFunction] | Callable[..., Any]
LegacyFunctionWrapper = FunctionReward

_HERE: Final = Path(__file__).parent
_NO_REWARDS: Final = frozenset(
    {
        "__init__", "calls", "composite_reward", "function_reward", "judging", "parameters", "recipes", "registry",
        "reward_function", "scoring", "source_files", "verdict",
    }
)  # fmt: skip


class RewardRegistry:
    """Finds, lists and makes reward functions."""

    def __init__(self, folders: Iterable[str | Path] = (_HERE,)) -> None:
        self._folders = [Path(folder) for folder in folders]
        self._rewards: dict[str, Registered] = {}
        self._names: dict[str, str] = {}
        self._read: set[Path] = set()
        self._broken: dict[Path, Exception] = {}

    # bringing in

    def register(self, cls: Any = None, name: str | None = None) -> Any:
        """Register a class: as a decorator, with or without a name of its choice.

        A class that takes the name of another one replaces it. Raises: TypeError for what is no RewardFunction.
        """
        if cls is None:
            return lambda actual: self.register(actual, name)
        if not (inspect.isclass(cls) and issubclass(cls, RewardFunction)):
            raise TypeError(f"{cls!r} is not a subclass of RewardFunction")
        self._add(name or snake_case(cls.__name__), cls)
        return cls

    def register_function(self, name: str, function: Registered) -> None:
        """Register a plain function ``(completions, **kwargs) -> rewards``, or a class."""
        self._add(name, function)

    def add_folder(self, folder: str | Path) -> None:
        """Look for files with rewards in this folder too."""
        if Path(folder) not in self._folders:
            self._folders.append(Path(folder))

    def load(self, source: str | Path) -> None:
        """Bring in the rewards of a ``.py`` file, of a folder of such files, or of a module by its name.

        Raises: ConfigError where there is no such thing, or it cannot be imported.
        """
        path = Path(source).expanduser()
        if path.is_dir():
            self.add_folder(path)
        elif path.suffix == ".py" or "/" in str(source):
            self._load_file(path, str(source))
        else:
            self._load_module(str(source))

    def load_required_functions(self, config: Any) -> set[str]:
        """Import what the ``reward_functions`` and ``reward_funcs`` of a config name; returns the names."""
        names: set[str] = set()
        for source in [config, *getattr(config, "datasets", ())]:
            for field in ("reward_functions", "reward_funcs", "dataset_reward_funcs"):
                names |= {
                    each if isinstance(each, str) else each["type"] for each in getattr(source, field, None) or ()
                }
        for name in names:
            self.get(name)
        return names

    # finding

    def create(self, name_or_config: RewardConfig | Sequence[RewardConfig], **kwargs: Any) -> RewardFunction:
        """Make a reward from its name, or from ``{"type": …, "weight": …, "params": {…}}``; keywords are defaults.

        A list becomes one reward: the sum of weight times reward over the sum of weights.

        Raises: ConfigError for an unknown name, or parameters that are unknown or wrong.
        """
        if isinstance(name_or_config, RewardFunction):
            return name_or_config
        if not isinstance(name_or_config, (str, Mapping)):
            return self.create("combined", rewards=[*name_or_config], normalization="sum", **kwargs)
        kind, parameters = _read_config(name_or_config, kwargs)
        made_from = self.get(kind)
        try:
            if isinstance(made_from, type):
                reward: RewardFunction = made_from(**checked_parameters(kind, made_from, parameters))
                return reward
            return FunctionReward(made_from, **parameters)
        except (TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"reward {kind!r}: {error}") from error

    def get(self, name: str) -> Registered:
        """The class (or function) of this name. Raises: ConfigError, which lists the names there are."""
        if ":" in name:
            return _import_class(name)
        key = _key(name)
        for path in [None, *self._files_for(key)]:
            if path is not None:
                self._import(path)
            if key in self._names:
                return self._rewards[self._names[key]]
        raise ConfigError(self._unknown(name))

    def list(self) -> builtins.list[str]:
        """All names, sorted: the registered ones, and those of files that were not imported yet."""
        unread = {_stem_name(path) for path in self._files() if path not in self._read}
        return sorted({*self._rewards, *(name for name in unread if _key(name) not in self._names)})

    def list_registered(self) -> builtins.list[str]:
        """The names that are registered already."""
        return [*self._rewards]

    def _unknown(self, name: str) -> str:
        for path, error in self._broken.items():
            if _key(path.stem) == _key(name):
                return f"reward function {name!r} cannot be imported from {path}: {type(error).__name__}: {error}"
        names = [each for each in self.list() if _key(each) not in {_key(path.stem) for path in self._broken}]
        broken = "".join(f"; {path} cannot be imported: {error}" for path, error in self._broken.items())
        return f"no reward function {name!r}{suggestion(name, names)}; there are {', '.join(names)}{broken}"

    def _add(self, name: str, reward: Registered) -> None:
        key = _key(name)
        known = self._names.get(key)
        if known is not None and _is_built_in(reward) and not _is_built_in(self._rewards[known]):
            return  # what a user calls so stays, although the built-in one is imported later
        if known is not None and self._rewards[known] is not reward:
            logger.info("the reward function %s is replaced by %s", known, reward)
            del self._rewards[known]
        self._names[key] = name
        self._rewards[name] = reward
        if isinstance(reward, type) and issubclass(reward, RewardFunction) and "registered_name" not in vars(reward):
            reward.registered_name = name

    # files

    def _load_file(self, path: Path, source: str) -> None:
        if not path.is_file():
            raise ConfigError(f"there is no file or folder {source} to load rewards from")
        self._import(path.resolve())
        if path.resolve() in self._broken:
            error = self._broken[path.resolve()]
            raise ConfigError(f"{source} cannot be imported: {type(error).__name__}: {error}") from error

    def _load_module(self, name: str) -> None:
        try:
            module = importlib.import_module(name)
        except (ImportError, SyntaxError) as error:
            raise ConfigError(f"the reward module {name!r} cannot be imported: {error}") from error
        self._add_unregistered(module, name.rpartition(".")[2])

    def _files(self) -> builtins.list[Path]:
        found = [path for folder in self._folders for path in sorted(folder.glob("*.py"))]
        return [path for path in found if path.parent != _HERE or path.stem not in _NO_REWARDS]

    def _files_for(self, key: str) -> builtins.list[Path]:
        """The files that may define a reward, the one that is called so first; those read already are left out."""
        unread = [path for path in self._files() if path not in self._read]
        return sorted(unread, key=lambda path: _key(path.stem) != key)

    def _import(self, path: Path) -> None:
        try:
            module = import_file(path)
        except Exception as error:  # noqa: BLE001 (any code may stand there; it is told where its name is asked for)
            self._broken[path] = error
            return
        self._read.add(path)
        self._broken.pop(path, None)
        if _key(path.stem) not in self._names:
            self._add_unregistered(module, path.stem)

    def _add_unregistered(self, module: ModuleType, stem: str) -> None:
        """Register what a file without ``@registry.register`` defines: its one class or its function of the file's name
        under that name, several classes under their own."""
        name = stem.removesuffix("_reward")
        classes = [
            each
            for each in vars(module).values()
            if inspect.isclass(each) and issubclass(each, RewardFunction) and each.__module__ == module.__name__
        ]
        if any(each in self._rewards.values() for each in classes):
            return
        if len(classes) == 1:
            self._add(name, classes[0])
            return
        for each in classes:
            self._add(snake_case(each.__name__), each)
        function = getattr(module, name, None) or getattr(module, f"{name}_reward", None)
        if callable(function):
            self._add(name, function)


def _is_built_in(reward: Registered) -> bool:
    return getattr(reward, "__module__", "").startswith(f"{__package__}.")


def _key(name: str) -> str:
    """What of a name counts when it is looked up."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    return bare.removesuffix("reward") or bare


def _stem_name(path: Path) -> str:
    return path.stem.removesuffix("_reward")


def _read_config(name_or_config: str | Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(name_or_config, str):
        return name_or_config, dict(defaults)
    config = dict(name_or_config)
    kind = config.pop("type", None)
    if not isinstance(kind, str):
        raise ConfigError(f"a reward needs its 'type': {dict(name_or_config)!r}")
    parameters = config.pop("params", None) or {}
    if not isinstance(parameters, Mapping):
        raise ConfigError(
            f"the params of reward {kind!r} must be a mapping of names to values, not {parameters!r:.100}"
        )
    return kind, {**defaults, **config, **parameters}


def _import_class(name: str) -> Registered:
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"reward {name!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"reward {name!r} is neither a class nor a function")
    reward: Registered = found
    return reward


registry = RewardRegistry()
"""The registry of the process."""
