"""What a conversation of an agent came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Message = dict[str, Any]


class StopReason(StrEnum):
    """Why a conversation ended. The last four say that it is no sample of the policy: never score them."""

    FINISHED = "finished"
    """The model answered without calling a tool."""
    MAX_TURNS = "max_turns"
    LENGTH = "length"
    """A reply was cut by its token limit; what it called was not run."""
    CONTEXT_FULL = "context_full"
    """The token budget of the rollout is used up, or the engine's context is."""
    ENGINE_ERROR = "engine_error"
    EMPTY_REPLY = "empty_reply"
    """The engine answered without any choice."""
    SANDBOX_ERROR = "sandbox_error"
    NOTHING_ASKED = "nothing_asked"
    """The agent is a program of its own, and it ended without asking its model anything."""


_INVALID = {StopReason.ENGINE_ERROR, StopReason.EMPTY_REPLY, StopReason.SANDBOX_ERROR, StopReason.NOTHING_ASKED}


@dataclass(frozen=True)
class ToolError:
    """A tool call that was answered with an error."""

    turn: int
    """1 is the first reply of the model."""
    tool_name: str
    arguments: str
    error: str
    tool_result: str


@dataclass
class Usage:
    """Tokens and requests of all turns, as the engine counted them; the last two are 0 where it does not count."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Timings:
    """Seconds spent waiting for the engine and for tools, and in all."""

    engine_s: float = 0.0
    tools_s: float = 0.0
    total_s: float = 0.0


@dataclass
class AgentResult:
    """The conversation and how it went. ``messages`` is the list that was given to ``run``, grown in place."""

    messages: list[Message]
    managed_state: dict[str, Any] | None = None
    """``{"nodes": [...]}`` of a token-exact engine: every sequence with its ids, masks and logprobs."""
    turns_used: int = 0
    finished_naturally: bool = False
    reasoning_per_turn: list[str | None] = field(default_factory=list)
    tool_errors: list[ToolError] = field(default_factory=list)
    stop_reason: StopReason = StopReason.FINISHED
    error: str | None = None
    """What the engine or the box said, where one of them ended the conversation."""
    refusal: str | None = None
    """Why the record of a reply was refused, where that ended the conversation: ``RolloutInvalid.reason``."""
    finish_reasons: list[str | None] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)

    @property
    def valid(self) -> bool:
        """Whether the policy, and not an engine or a box that failed, brought this about."""
        return self.stop_reason not in _INVALID

    @property
    def invalid_reason(self) -> str | None:
        """The short word that a rollout which is not ``valid`` is counted under; None for one that is."""
        return None if self.valid else self.refusal or self.stop_reason.value

    @property
    def final_response(self) -> str:
        """The text of the last message of the model that has any; "" where none has."""
        replies = (m for m in reversed(self.messages) if m.get("role") == "assistant")
        return next((str(m["content"]) for m in replies if m.get("content")), "")

    @property
    def tools_used(self) -> list[str]:
        """The names of the tools that were called, in order, with repetitions."""
        calls = (call for m in self.messages if m.get("role") == "assistant" for call in m.get("tool_calls") or ())
        return [call["function"]["name"] for call in calls]
