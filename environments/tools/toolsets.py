"""Toolsets: names for groups of tools, and distributions that draw some of them for a group of rollouts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from atroposlib.errors import ConfigError
from environments.tools.base import Tool
from environments.tools.registry import tools

_toolsets: dict[str, tuple[str, ...]] = {
    "terminal": ("terminal", "process"),
    "shell": ("terminal",),
    "file": ("read_file", "write_file", "patch", "search_files"),
    "todo": ("todo",),
    "debugging": ("terminal", "process", "read_file", "write_file", "patch", "search_files"),
}

_distributions: dict[str, Mapping[str, int]] = {
    "default": {"terminal": 100, "file": 100, "todo": 100},
    "development": {"terminal": 80, "file": 80, "todo": 30},
    "balanced": {"terminal": 50, "file": 50, "todo": 50},
    "terminal_only": {"terminal": 100, "file": 100},
    "terminal_tasks": {"terminal": 97, "file": 97},
}
"""Chance of each toolset in percent."""


def register_toolset(name: str, tool_names: Iterable[str]) -> None:
    """Name a group of tools, or name it anew."""
    _toolsets[name] = tuple(tool_names)


def register_distribution(name: str, chances: Mapping[str, int]) -> None:
    """Name a distribution: toolset → chance in percent. Raises: ConfigError for an unknown toolset."""
    for toolset in chances:
        _members(toolset)
    _distributions[name] = dict(chances)


def toolset_names() -> tuple[str, ...]:
    return tuple(_toolsets)


def resolve_tools(enabled: Sequence[str] | None = None, disabled: Sequence[str] | None = None) -> list[Tool]:
    """The tools of the enabled toolsets (None: every tool) without the disabled ones, in order of registration.

    Raises: ConfigError for a toolset or a tool that does not exist.
    """
    wanted = set(tools()) if enabled is None else {name for toolset in enabled for name in _members(toolset)}
    wanted -= {name for toolset in disabled or () for name in _members(toolset)}
    return [tool for name, tool in tools().items() if name in wanted]


def toolsets_of(distribution: str) -> list[str]:
    """The toolsets that may be drawn. Raises: ConfigError for an unknown distribution."""
    if distribution not in _distributions:
        raise ConfigError(f"Unknown distribution {distribution!r}; known are {', '.join(_distributions)}.")
    return list(_distributions[distribution])


def draw_toolsets(distribution: str, rng: random.Random) -> list[str]:
    """Toolsets drawn independently by their chances; where none came up, the likeliest.

    Raises: ConfigError for an unknown distribution.
    """
    names = toolsets_of(distribution)
    chances = _distributions[distribution]
    drawn = [name for name in names if rng.random() * 100 < chances[name]]
    return drawn or [max(names, key=lambda name: chances[name])]


def _members(toolset: str) -> tuple[str, ...]:
    if toolset not in _toolsets:
        raise ConfigError(f"Unknown toolset {toolset!r}; known are {', '.join(_toolsets)}.")
    missing = [name for name in _toolsets[toolset] if name not in tools()]
    if missing:
        raise ConfigError(f"Toolset {toolset!r} names the tool {missing[0]!r}, which is not registered.")
    return _toolsets[toolset]
