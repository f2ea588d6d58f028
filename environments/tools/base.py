"""What a tool is: a schema that the model reads, and an async function that runs in the box of its task.

A tool answers the model with JSON. It tells the model what went wrong by raising ``ToolFailure``; a box that broke
(``sandboxes.errors``) is not the model's doing and rises to the rollout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from environments.tools.workspaces import Workspace

Arguments = dict[str, Any]
ToolResult = Mapping[str, Any] | str
ToolFunction = Callable[["ToolCallContext", Arguments], Awaitable[ToolResult]]


class ToolFailure(Exception):
    """A tool could not do what the model asked; the message is the model's answer."""


@dataclass(frozen=True)
class ToolCallContext:
    """Where one call happens: the workspace of its task, and the id that the model gave the call."""

    workspace: Workspace
    call_id: str = ""

    @property
    def task_id(self) -> str:
        return self.workspace.task_id


@dataclass(frozen=True)
class Tool:
    """One action of an agent. ``run`` gets arguments that were checked against ``parameters``."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments: an object."""
    run: ToolFunction
    needs_box: bool = True
    """Whether it needs a sandbox; an environment whose tools need none starts without a backend."""
    max_result_chars: int | None = None
    """How long its answer may be before it is saved in the box; None: the budget's default."""
    text_field: str | None = None
    """The field of the answer that grows, saved as plain text where the answer is too long."""
    pinned: bool = False
    """Whether the tool bounds its own answer, so that no budget cuts it."""

    def schema(self) -> dict[str, Any]:
        """The tool in OpenAI's form, as it is offered to the model."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def parameters(required: tuple[str, ...] = (), **properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with these properties, in this order."""
    return {"type": "object", "properties": dict(properties), "required": list(required)}
