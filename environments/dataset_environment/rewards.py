"""The reward functions of an environment."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from atroposlib.envs.reward_fns import CombinedReward, registry
from atroposlib.envs.reward_fns.scoring import rewards_as_one
from atroposlib.envs.reward_fns.source_files import import_file
from atroposlib.errors import ConfigError
from environments.dataset_environment.dataset_config import DatasetEnvConfig


def make_rewards(config: DatasetEnvConfig) -> CombinedReward:
    """All chosen rewards as one: Σ weight·reward / Σ weight.

    Raises: ConfigError where none is chosen, for an unknown name and for wrong parameters.
    """
    import_rewards(config.reward_modules)
    if not config.rewards:
        raise ConfigError(f"choose reward functions: --env.reward_functions NAME …, of {', '.join(registry.list())}")
    return rewards_as_one(config.rewards)


def import_rewards(modules: Sequence[str]) -> None:
    """Import files, folders and modules that define rewards. Raises: ConfigError for one that is not there."""
    for name in modules:
        path = Path(name).expanduser()
        try:
            if path.is_dir():
                registry.add_folder(path)
            elif path.is_file():
                import_file(path.resolve())
            else:
                importlib.import_module(name)
        except (ImportError, SyntaxError) as error:
            there = "" if path.exists() else "is no file or folder and "
            raise ConfigError(f"reward_modules: {name} {there}cannot be imported: {error}") from error
