"""The tools and toolsets by name, and the one way in which a tool is called."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from environments.tools.arguments import check_arguments, parse_arguments
from environments.tools.base import Tool, ToolCallContext, ToolFailure, ToolResult
from environments.tools.files import PATCH, READ_FILE, WRITE_FILE
from environments.tools.search import SEARCH_FILES
from environments.tools.terminal import PROCESS, TERMINAL
from environments.tools.todo import TODO
from environments.tools.workspaces import WorkspaceError
from sandboxes.errors import OutputLimitExceeded, SandboxError, SandboxFileError

logger = logging.getLogger(__name__)

_tools: dict[str, Tool] = {
    tool.name: tool for tool in (TERMINAL, PROCESS, READ_FILE, WRITE_FILE, PATCH, SEARCH_FILES, TODO)
}


def register_tool(tool: Tool) -> Tool:
    """Offer a tool under its name. Raises: ValueError where another tool has the name."""
    if _tools.get(tool.name, tool) is not tool:
        raise ValueError(f"There is a tool {tool.name!r} already.")
    _tools[tool.name] = tool
    return tool


def tools() -> Mapping[str, Tool]:
    """Every tool by name, in the order of registration."""
    return MappingProxyType(_tools)


def find_tool(name: str) -> Tool:
    """Raises: ToolFailure for an unknown name."""
    tool = _tools.get(name)
    if tool is None:
        raise unknown_tool(name, _tools)
    return tool


def unknown_tool(name: str, available: Iterable[str]) -> ToolFailure:
    """What a model hears that calls a tool it was not offered."""
    return ToolFailure(f"Unknown tool {name!r}. Available tools: {sorted(available)}")


async def run_tool(tool: Tool, call: ToolCallContext, raw_arguments: object) -> ToolResult:
    """Call a tool with what a model wrote as its arguments.

    Raises: ToolFailure with the words for the model; SandboxError or WorkspaceError where the box failed, which
    no model is to blame for.
    """
    arguments = check_arguments(parse_arguments(raw_arguments), tool.parameters)
    try:
        return await tool.run(call, arguments)
    except (SandboxFileError, OutputLimitExceeded) as error:
        raise ToolFailure(str(error)) from error
    except (ToolFailure, WorkspaceError, SandboxError):
        raise
    except Exception as error:
        # One tool call is a boundary: a fault of one tool is a failed call, with its traceback in the log.
        logger.exception("Tool %s failed", tool.name)
        raise ToolFailure(f"Tool execution failed: {type(error).__name__}: {error}") from error
