"""The words environments use for what they play with: items, messages, game and evaluation records."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from typing_extensions import TypedDict

Item: TypeAlias = Any
"""One task of an environment: whatever ``get_next_item`` returns. ``None`` means there is no more now."""

number: TypeAlias = int | float
UUID: TypeAlias = str

Content: TypeAlias = str | list[dict[str, Any]]
"""Text, or the parts of a multimodal message in the chat-completions form."""


class _MessageBase(TypedDict):
    role: Literal["system", "user", "assistant", "tool"]


class Message(_MessageBase, total=False):
    """A chat message. Only ``role`` must be there: an assistant message of tool calls has no content."""

    content: Content | None
    reward: float | None
    name: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str
    reasoning_content: str | None


class AgentStep(TypedDict, total=False):
    """One step of one agent: the messages of the step and the reward received at it."""

    step: int
    messages: list[Message]
    reward: float


AgentHistory: TypeAlias = dict[str, list[AgentStep]]
"""The steps of each agent, by the agent's id."""


class Observation(TypedDict):
    """What an agent sees: the raw state, and the same rendered for a language model."""

    raw: dict[str, Any]
    rendered: Content


class GameStep(TypedDict):
    """One (state, action, reward) triple of a game; a reward may be one number or one per agent."""

    step: int
    agent_id: str
    observation: Observation
    action: str
    reward: float | dict[str, float]
    done: bool
    info: dict[str, Any]


GameHistory: TypeAlias = list[GameStep]


class EvaluationConfigGeneral(TypedDict):
    """What an evaluation was made with; the time is a text, in seconds."""

    total_evaluation_time_seconds: str
    model_name: str | None
    generation_parameters: dict[str, Any]


class EvaluationResults(TypedDict):
    """Metrics by task; ``all`` holds the aggregate."""

    all: dict[str, float]


class EvaluationMetrics(TypedDict):
    """The content of ``metrics.json``."""

    config_general: EvaluationConfigGeneral
    results: EvaluationResults


class EvaluationSample(TypedDict, total=False):
    """One line of ``samples.jsonl``; environments may add keys of their own."""

    messages: list[dict[str, Any]] | None
    question: str | None
    gold_answer: str | None
    gold_parsed: str | None
    model_parsed: str | None
    score: int | float | None
    correct: bool | None
    finish_reason: str | None
    response_after_think: str | None
