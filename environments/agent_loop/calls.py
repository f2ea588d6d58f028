"""The tool calls of one turn: run in the order the model wrote them, answered each with one message.

Whatever a model writes gets an answer: an unknown tool, arguments that are no JSON, a call that could not even be
parsed. Only a box that broke ends the rollout.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from environments.agent_loop.reply import ToolRequest
from environments.agent_loop.result import Message, ToolError
from environments.tools.base import Tool, ToolCallContext, ToolFailure, ToolResult
from environments.tools.registry import find_tool, run_tool, unknown_tool
from environments.tools.results import BudgetConfig, as_json, spill
from environments.tools.workspaces import Workspace, current_scope, workspace_of


@dataclass(frozen=True)
class Outcome:
    """A call and its answer. ``tool`` is None where none was found; ``spilled``: a preview stands for the answer."""

    request: ToolRequest
    tool: Tool | None
    result: ToolResult
    text: str
    spilled: bool = False

    def as_message(self) -> Message:
        return {"role": "tool", "tool_call_id": self.request.call_id, "content": self.text}

    def as_error(self, turn: int) -> ToolError | None:
        """The record of a call that was answered with an error; None where it was not."""
        error = self.result.get("error") if isinstance(self.result, Mapping) else None
        if not error:
            return None
        arguments = self.request.as_message_part()["function"]["arguments"]
        return ToolError(turn, self.request.name, arguments[:200], str(error)[:500], self.text[:500])


class CallRunner:
    """Runs the calls of one task."""

    def __init__(self, task_id: str, valid_names: Collection[str], budget: BudgetConfig) -> None:
        self.task_id = task_id
        self.valid_names = valid_names
        self.budget = budget
        self._boxless: Workspace | None = None

    async def run(self, requests: Sequence[ToolRequest]) -> list[Outcome]:
        """Raises: SandboxError, WorkspaceError where the box failed."""
        outcomes = [await self._run_one(request) for request in requests]
        return await self._bound_turn(outcomes)

    async def _run_one(self, request: ToolRequest) -> Outcome:
        tool: Tool | None = None
        try:
            tool = self._find(request)
            workspace = self._workspace(tool)
            workspace.agent_acts()
            result = await run_tool(tool, ToolCallContext(workspace, request.call_id), request.arguments)
        except ToolFailure as failure:
            result = {"error": str(failure)}
        outcome = Outcome(request, tool, result, as_json(result))
        limit = self.budget.threshold(tool) if tool else None
        return await self._spill(outcome) if limit is not None and len(outcome.text) > limit else outcome

    def _find(self, request: ToolRequest) -> Tool:
        if request.problem:
            raise ToolFailure(f"This tool call could not be read: {request.problem}. Please retry with valid JSON.")
        if request.name not in self.valid_names:
            raise unknown_tool(request.name, self.valid_names)
        return find_tool(request.name)

    def _workspace(self, tool: Tool) -> Workspace:
        """The task's workspace. Outside every scope there is none; tools that need no box run all the same."""
        if tool.needs_box or current_scope() is not None:
            return workspace_of(self.task_id)
        self._boxless = self._boxless or Workspace(self.task_id, None)
        return self._boxless

    async def _bound_turn(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Spill the longest answers until all of them together fit the budget of a turn."""
        bounded = list(outcomes)
        longest_first = sorted(range(len(bounded)), key=lambda i: -len(bounded[i].text))
        for i in longest_first:
            if sum(len(outcome.text) for outcome in bounded) <= self.budget.turn_budget:
                break
            if not bounded[i].spilled:
                bounded[i] = await self._spill(bounded[i])
        return bounded

    async def _spill(self, outcome: Outcome) -> Outcome:
        if outcome.tool is None or outcome.tool.pinned:
            text = json.dumps({"error": "The results of this turn are too long together; ask for less at a time."})
        else:
            call = ToolCallContext(self._workspace(outcome.tool), outcome.request.call_id)
            text = await spill(call, outcome.tool, outcome.result, self.budget)
        return replace(outcome, text=text, spilled=True)
