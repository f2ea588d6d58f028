"""Tools of agents: each is a schema and an async function that runs in the box of its task."""

from environments.tools.base import Tool, ToolCallContext, ToolFailure, parameters
from environments.tools.registry import register_tool, tools
from environments.tools.results import DEFAULT_BUDGET, BudgetConfig
from environments.tools.toolsets import register_distribution, register_toolset, resolve_tools

__all__ = [
    "DEFAULT_BUDGET",
    "BudgetConfig",
    "Tool",
    "ToolCallContext",
    "ToolFailure",
    "parameters",
    "register_distribution",
    "register_tool",
    "register_toolset",
    "resolve_tools",
    "tools",
]
