"""The agent's loop: ask the model, run the tools it calls, show it the results, until it answers without a call."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from atroposlib.errors import ContextFull, RolloutInvalid
from environments.agent_loop.calls import CallRunner
from environments.agent_loop.reply import EmptyReply, Reply, ToolRequest, read_reply
from environments.agent_loop.result import AgentResult, Message, StopReason, Timings
from environments.agent_loop.token_budget import TokenBudget
from environments.tools.arguments import parse_arguments
from environments.tools.base import ToolFailure
from environments.tools.results import DEFAULT_BUDGET, BudgetConfig
from environments.tools.workspaces import WorkspaceError
from sandboxes.errors import IMAGE_FAULTS, SandboxError


class _Stop(Exception):
    """Ends the conversation from wherever it is noticed."""

    def __init__(self, reason: StopReason, error: str | None = None, refusal: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error
        self.refusal = refusal


class HermesAgentLoop:
    """One conversation of an agent with tools.

    ``server`` is anything with ``chat_completion``; one that has ``get_state`` (a managed server) also fills
    ``AgentResult.managed_state``. The tools run in the box of ``task_id``. ``max_tokens`` bounds one reply,
    ``max_rollout_tokens`` the conversation. ``tool_call_parser`` reads calls that the engine leaves in the text.
    """

    def __init__(
        self,
        server: Any,
        tool_schemas: Sequence[dict[str, Any]],
        valid_tool_names: Collection[str],
        max_turns: int = 30,
        task_id: str | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        extra_body: dict[str, Any] | None = None,
        budget_config: BudgetConfig | None = None,
        *,
        max_rollout_tokens: int | None = None,
        tool_call_parser: str = "hermes",
        split: Literal["train", "eval"] = "train",
    ) -> None:
        self.server = server
        self.tool_schemas = list(tool_schemas)
        self.max_turns = max_turns
        self.task_id = task_id or str(uuid.uuid4())
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.extra_body = extra_body
        self.max_rollout_tokens = max_rollout_tokens
        self.tool_call_parser = tool_call_parser
        self.split = split
        self._calls = CallRunner(self.task_id, valid_tool_names, budget_config or DEFAULT_BUDGET)

    async def run(self, messages: list[Message]) -> AgentResult:
        """Converse from ``messages`` on. An engine or a box that fails ends it: see ``stop_reason`` and ``error``.

        Raises: ImageNotFound, ImageBuildError, which no other rollout can do better about.
        """
        result = AgentResult(messages=messages)
        with _clock(result.timings, "total_s"):
            try:
                result.stop_reason = await self._converse(result)
            except _Stop as stop:
                result.stop_reason, result.error, result.refusal = stop.reason, stop.error, stop.refusal
        result.finished_naturally = result.stop_reason is StopReason.FINISHED
        if hasattr(self.server, "get_state"):
            result.managed_state = self.server.get_state()
        return result

    async def _converse(self, result: AgentResult) -> StopReason:
        budget = TokenBudget(self.max_rollout_tokens, self.max_tokens)
        budget.add_prompt(result.messages, self.tool_schemas)
        for _ in range(self.max_turns):
            reply = await self._ask(result, budget)
            if reply.cut:
                return StopReason.LENGTH
            if not reply.requests:
                return StopReason.FINISHED
            await self._run_calls(reply.requests, result, budget)
        return StopReason.MAX_TURNS

    async def _ask(self, result: AgentResult, budget: TokenBudget) -> Reply:
        """Get one reply and add it to the conversation. Raises: _Stop."""
        try:
            request = self._request(result.messages, budget.next_reply_limit())
            with _clock(result.timings, "engine_s"):
                response = await self.server.chat_completion(**request)
            reply = read_reply(response, self.tool_call_parser, self.tool_schemas)
        except Exception as error:
            raise _engine_stop(error, result.turns_used) from error
        result.turns_used += 1
        budget.add_reply(reply.prompt_tokens, reply.completion_tokens, reply.content)
        _record(reply, result)
        return reply

    def _request(self, messages: list[Message], reply_limit: int | None) -> dict[str, Any]:
        managed = hasattr(self.server, "get_state")
        request: dict[str, Any] = {
            "messages": messages if managed else _well_formed(messages),
            "n": 1,
            "temperature": self.temperature,
        }
        if self.tool_schemas:
            request["tools"] = self.tool_schemas
        if reply_limit is not None:
            request["max_tokens"] = reply_limit
        if self.extra_body:
            request["extra_body"] = self.extra_body
        if self.split != "train":
            request["split"] = self.split
        return request

    async def _run_calls(self, requests: Sequence[ToolRequest], result: AgentResult, budget: TokenBudget) -> None:
        try:
            with _clock(result.timings, "tools_s"):
                outcomes = await self._calls.run(requests)
        except IMAGE_FAULTS:
            raise
        except (SandboxError, WorkspaceError) as error:
            raise _Stop(StopReason.SANDBOX_ERROR, f"{type(error).__name__}: {error}") from error
        for outcome in outcomes:
            result.messages.append(outcome.as_message())
            budget.add_text(outcome.text)
            if (tool_error := outcome.as_error(result.turns_used)) is not None:
                result.tool_errors.append(tool_error)


def _record(reply: Reply, result: AgentResult) -> None:
    result.messages.append(reply.as_message())
    result.reasoning_per_turn.append(reply.reasoning)
    result.finish_reasons.append(reply.finish_reason)
    result.usage.requests += 1
    result.usage.prompt_tokens += reply.prompt_tokens
    result.usage.completion_tokens += reply.completion_tokens


def _engine_stop(error: Exception, turns_before: int) -> _Stop:
    """A context that the conversation filled is the rollout's own end; one that the prompt fills is a failure."""
    if isinstance(error, RolloutInvalid):
        return _Stop(StopReason.ENGINE_ERROR, error.detail, error.reason)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, EmptyReply):
        return _Stop(StopReason.EMPTY_REPLY, text)
    if isinstance(error, ContextFull) and turns_before > 0:
        return _Stop(StopReason.CONTEXT_FULL, text)
    return _Stop(StopReason.ENGINE_ERROR, text)


def _well_formed(messages: list[Message]) -> list[Message]:
    """The messages for an engine that renders them anew: it refuses calls whose arguments are no JSON object."""
    return [_with_readable_calls(message) if message.get("tool_calls") else message for message in messages]


def _with_readable_calls(message: Message) -> Message:
    calls = [call if _is_readable(call) else _without_arguments(call) for call in message["tool_calls"]]
    return message | {"tool_calls": calls}


def _is_readable(call: dict[str, Any]) -> bool:
    try:
        parse_arguments(call["function"]["arguments"])
    except ToolFailure:
        return False
    return True


def _without_arguments(call: dict[str, Any]) -> dict[str, Any]:
    return call | {"function": call["function"] | {"arguments": "{}"}}


@contextmanager
def _clock(timings: Timings, name: str) -> Iterator[None]:
    """Add the seconds of the block to one of the timings, however it ends."""
    started = time.monotonic()
    try:
        yield
    finally:
        setattr(timings, name, getattr(timings, name) + time.monotonic() - started)
