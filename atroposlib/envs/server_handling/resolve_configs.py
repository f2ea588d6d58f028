"""Which engines a run has, from an environment's own, a YAML file and flags; for callers with a parser of their own.

Environments' command lines do this in ``atroposlib.envs.settings``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from atroposlib.envs.constants import NAMESPACE_SEP, OPENAI_NAMESPACE
from atroposlib.envs.server_handling.server_baseline import APIServerConfig, ServerBaseline
from atroposlib.errors import ConfigError

Configs = ServerBaseline | Sequence[APIServerConfig]


def resolve_openai_configs(
    default_server_configs: Configs,
    openai_config_dict: Mapping[str, Any],
    yaml_config: Mapping[str, Any],
    cli_passed_flags: Mapping[str, Any],
    logger: logging.Logger,
) -> Configs:
    """Return the engines: those of a YAML list of several; several defaults; one, made of the merged settings.

    ``openai_config_dict`` holds the merged settings of one engine. A ``ServerBaseline`` stays one unless a flag sets
    something of an engine.

    Raises: ConfigError for flags that could mean any of several engines, and for settings that are wrong.
    """
    prefix = f"{OPENAI_NAMESPACE}{NAMESPACE_SEP}"
    flags = [name for name in cli_passed_flags if name.startswith(prefix)]
    in_yaml = yaml_config.get(OPENAI_NAMESPACE)
    several = _several(in_yaml) or _several(default_server_configs)
    if not several:
        if type(default_server_configs) is ServerBaseline and not flags and not in_yaml:
            return default_server_configs
        merged = _config(openai_config_dict)
        return merged if isinstance(default_server_configs, APIServerConfig) else [merged]
    if flags:
        raise ConfigError(
            f"--{flags[0]}: {len(several)} engines are configured; set it for each of them in the YAML file"
        )
    logger.info("taking %d configured engines", len(several))
    return [each if isinstance(each, APIServerConfig) else _config(each) for each in several]


def _several(configs: object) -> list[Any]:
    """The engines, where they are more than one."""
    return list(configs) if isinstance(configs, (list, tuple)) and len(configs) > 1 else []


def _config(values: Mapping[str, Any]) -> APIServerConfig:
    try:
        return APIServerConfig(**values)
    except ValidationError as error:
        raise ConfigError(f"{OPENAI_NAMESPACE}: {error}") from error
