"""Which tools the agents of a run are offered."""

from __future__ import annotations

import itertools
import random

from environments.hermes_config import HermesAgentEnvConfig
from environments.rollouts.player import OfferedTools
from environments.tools.base import Tool
from environments.tools.toolsets import draw_toolsets, resolve_tools, toolsets_of


class ToolChoice:
    """The enabled toolsets, or those that the run's seed draws for each group."""

    def __init__(self, config: HermesAgentEnvConfig) -> None:
        self._config = config
        self._groups = itertools.count()

    def all_tools(self) -> list[Tool]:
        """All that may be offered. Raises: ConfigError for an unknown toolset or distribution."""
        drawn_from = self._config.distribution
        enabled = self._config.enabled_toolsets if drawn_from is None else toolsets_of(drawn_from)
        return resolve_tools(enabled, self._config.disabled_toolsets)

    def next_group(self) -> OfferedTools:
        """Schemas and names for one group."""
        offered = self.all_tools() if self._config.distribution is None else self._draw(self._config.distribution)
        return [tool.schema() for tool in offered], {tool.name for tool in offered}

    def _draw(self, distribution: str) -> list[Tool]:
        chance = random.Random(f"{self._config.seed}:{next(self._groups)}")
        return resolve_tools(draw_toolsets(distribution, chance), self._config.disabled_toolsets)
