"""Results as the model sees them: JSON, bounded per call and per turn, with the rest kept in the task's box.

A result over its threshold is saved as plain text in the box, where ``read_file`` pages through it, and replaced by
a preview that names the file. The file's name is the workspace's own count, so nothing collides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.tools.base import Tool, ToolCallContext, ToolResult
from environments.tools.workspaces import Workspace
from sandboxes.errors import SandboxFileError

RESULTS_FOLDER = "/tmp/hermes-results"


@dataclass(frozen=True)
class BudgetConfig:
    """How many characters of tool results reach the model."""

    default_result_size: int = 100_000
    turn_budget: int = 200_000
    preview_size: int = 1_500
    tool_overrides: Mapping[str, int] = field(default_factory=dict)

    def threshold(self, tool: Tool) -> int | None:
        """The longest result of ``tool`` that is passed on whole; None: the tool bounds itself."""
        if tool.pinned:
            return None
        return self.tool_overrides.get(tool.name, tool.max_result_chars or self.default_result_size)


DEFAULT_BUDGET = BudgetConfig()


def as_json(result: ToolResult) -> str:
    """The text of a tool message."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


async def save_text(workspace: Workspace, text: str, label: str) -> str | None:
    """Save a long text in the task's box and return its path; None where the box does not take it."""
    box = await workspace.box()
    workspace.saved_results += 1
    # a local box shares /tmp with the machine; only its working folder is its own
    folder = workspace.absolute(".hermes-results") if box.backend == "local" else RESULTS_FOLDER
    path = f"{folder}/{workspace.saved_results:03d}-{label}.txt"
    try:
        await box.write(path, text.encode("utf-8", errors="replace"))
    except SandboxFileError:
        return None
    return path


async def spill(call: ToolCallContext, tool: Tool, result: ToolResult, budget: BudgetConfig) -> str:
    """Save a result in the box and return what stands for it, in the form of the result."""
    text, others = _split(tool, result, budget.preview_size)
    saved = await save_text(call.workspace, text, tool.name) if tool.needs_box else None
    where = f"saved in {saved}, read it with read_file" if saved else "the rest could not be saved"
    preview = f"{_preview(text, budget.preview_size)}\n[{len(text)} chars in all; {where}]"
    return preview if others is None else as_json({str(tool.text_field): preview} | others)


def _split(tool: Tool, result: ToolResult, longest_others: int) -> tuple[str, dict[str, Any] | None]:
    """The field of a result that grows, and the others; or all of it as text, where no single field is long."""
    if isinstance(result, str):
        return result, None
    others = {name: value for name, value in result.items() if name != tool.text_field}
    text = result.get(tool.text_field or "")
    if isinstance(text, str) and len(as_json(others)) <= longest_others:
        return text, others
    return json.dumps(result, ensure_ascii=False, indent=1, default=str), None


def _preview(text: str, size: int) -> str:
    """The beginning of a text, up to its last whole line where there is one."""
    head = text[:size]
    return head[: head.rfind("\n") + 1] or head
