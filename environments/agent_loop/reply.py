"""One reply of an engine, read into what the loop needs, whatever shape the engine gave it."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.envs.server_handling.generation import BROKEN_OFF
from atroposlib.errors import InferenceError
from atroposlib.tool_call_parsers import get_parser
from atroposlib.tool_call_parsers.base import UNREADABLE_NAME
from environments.agent_loop.result import Message

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


class EmptyReply(InferenceError):
    """The engine answered without a message."""


class BrokenReply(InferenceError):
    """The engine broke off its answer; what there is of it is not the model's."""


@dataclass(frozen=True)
class ToolRequest:
    """A tool call as the model wrote it. ``arguments`` may be anything; ``problem`` says why it cannot be run."""

    call_id: str
    name: str
    arguments: object
    problem: str | None = None

    def as_message_part(self) -> dict[str, Any]:
        """The call in OpenAI's form, its arguments as text."""
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments or {})
        return {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": text}}


@dataclass(frozen=True)
class Reply:
    """What the model said and asked for."""

    content: str
    requests: tuple[ToolRequest, ...]
    reasoning: str | None
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    echo_reasoning: bool = False
    """Whether the engine gave the reasoning apart from the content, so that history has to carry it too."""

    @property
    def cut(self) -> bool:
        return self.finish_reason == "length"

    def as_message(self) -> Message:
        """The assistant message that goes into the history."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.requests:
            message["tool_calls"] = [request.as_message_part() for request in self.requests]
        if self.echo_reasoning:
            message["reasoning_content"] = self.reasoning
        return message


def read_reply(response: Any, parser_name: str, tool_schemas: Sequence[Mapping[str, Any]]) -> Reply:
    """Read the first choice. Calls that the engine left in the text are parsed here, where tools were offered.

    Raises: EmptyReply, BrokenReply.
    """
    choices = _field(response, "choices")
    message = _field(choices[0], "message") if choices else None
    if message is None:
        raise EmptyReply("The engine answered without a choice.")
    finish_reason = _field(choices[0], "finish_reason")
    if finish_reason in BROKEN_OFF:
        raise BrokenReply(f"The engine broke off its answer (finish_reason {finish_reason!r}); see its log.")
    content: str = _field(message, "content") or ""
    requests = tuple(_read_call(call) for call in _field(message, "tool_calls") or ())
    if tool_schemas and content and not requests:
        content, requests = _parse_calls(content, parser_name, tool_schemas)
    apart = _separate_reasoning(message)
    usage = _field(response, "usage")
    return Reply(
        content=content,
        requests=requests,
        reasoning=apart or _inline_reasoning(content),
        finish_reason=finish_reason,
        prompt_tokens=_field(usage, "prompt_tokens") or 0,
        completion_tokens=_field(usage, "completion_tokens") or 0,
        echo_reasoning=apart is not None,
    )


def _field(value: Any, name: str) -> Any:
    """A field of an object or of a dictionary; None where there is none."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _read_call(call: Any) -> ToolRequest:
    function = _field(call, "function") or call
    name = _field(function, "name") or UNREADABLE_NAME
    problem = _field(call, "error") or ("it names no tool" if name == UNREADABLE_NAME else None)
    return ToolRequest(_field(call, "id") or _new_call_id(), name, _field(function, "arguments"), problem)


def _parse_calls(
    content: str, parser_name: str, tool_schemas: Sequence[Mapping[str, Any]]
) -> tuple[str, tuple[ToolRequest, ...]]:
    parsed = get_parser(parser_name).parse(content, tools=list(tool_schemas))
    requests = tuple(
        ToolRequest(call.id or _new_call_id(), call.name, call.arguments, call.error) for call in parsed.tool_calls
    )
    return (parsed.content or "", requests) if requests else (content, ())


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:8]}"


def _separate_reasoning(message: Any) -> str | None:
    """What the engine put beside the content, under any of the names in use."""
    for name in ("reasoning_content", "reasoning"):
        text = _field(message, name)
        if isinstance(text, str) and text:
            return text
    details = _field(message, "reasoning_details") or ()
    return next((text for detail in details if (text := _field(detail, "text"))), None)


def _inline_reasoning(content: str) -> str | None:
    found = _THOUGHT.search(content)
    return found.group(1).strip() if found else None
