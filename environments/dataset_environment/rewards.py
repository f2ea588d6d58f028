"""The reward functions of an environment, and what they need."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

from atroposlib.envs.reward_fns import CombinedReward, RewardFunction, registry
from atroposlib.envs.reward_fns.composite_reward import CompositeReward
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
            raise ConfigError(f"reward_modules: {name} is no file or folder and cannot be imported: {error}") from error


def needs_answers(reward: RewardFunction) -> bool:
    """Whether it compares with right answers; a judge only looks at them where there are some."""
    from atroposlib.envs.reward_fns.llm_judge_reward import LlmJudgeReward

    strict = [leaf for leaf in leaves(reward) if not isinstance(leaf, LlmJudgeReward)]
    return any(_names(leaf) & {"solution", "ground_truth"} for leaf in strict)


def needs_box(reward: RewardFunction) -> bool:
    """Whether it works in the box of the rollout."""
    return any("ctx" in _names(leaf) for leaf in leaves(reward))


def leaves(reward: RewardFunction) -> Iterator[RewardFunction]:
    """The rewards that others are made of."""
    if isinstance(reward, CompositeReward):
        for each in reward.reward_functions:
            yield from leaves(each)
    else:
        yield reward


def _names(reward: RewardFunction) -> set[str]:
    """The keywords that it asks for by name."""
    return {name for method in (reward.compute, reward.acompute) for name in inspect.signature(method).parameters}
