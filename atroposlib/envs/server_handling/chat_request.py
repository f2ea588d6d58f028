"""One chat request to a recorded rollout, taken apart: what the template reads, and what the engine gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from atroposlib.envs.server_handling.history import setting_of
from atroposlib.tool_call_parsers import ParsedMessage

NOT_FOR_TOKENS = ("tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs", "stream", "model")
"""Arguments of a chat that mean nothing to a completion from ids."""


@dataclass(frozen=True)
class ChatRequest:
    """The conversation, the tools that are offered, and the variables that the template is given."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None
    variables: Mapping[str, Any]
    logprobs: bool = False
    """Whether the answer is to tell the logprob of each token it consists of."""

    @classmethod
    def take(cls, arguments: dict[str, Any]) -> ChatRequest:
        """Take what belongs to the chat out of the arguments; what is left goes to the engine with the ids."""
        # in copies, since callers change their messages while a request is under way
        messages = [dict(_as_dict(message)) for message in arguments.pop("messages")]
        tools = arguments.pop("tools", None) or None
        if arguments.get("tool_choice") == "none":
            tools = None
        variables = _template_variables(arguments)
        logprobs = bool(arguments.get("logprobs"))
        for name in NOT_FOR_TOKENS:
            arguments.pop(name, None)
        return cls(messages, tools, variables, logprobs)

    @property
    def begins_answer(self) -> bool:
        """Whether the last message is the beginning of the answer that is asked for."""
        return bool(self.messages) and self.messages[-1].get("role") == "assistant"

    @cached_property
    def setting(self) -> bytes:
        """What beside the messages decides how the prompt is rendered."""
        return setting_of(self.tools, self.variables)


def size_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters of their contents and of the arguments of their calls, about."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    arguments = sum(len(str((call.get("function") or {}).get("arguments") or "")) for call in calls)
    return arguments + sum(len(str(message.get("content") or "")) for message in messages)


def message_of(parsed: ParsedMessage) -> dict[str, Any]:
    """An answer in OpenAI's shape; a call that could not be read says so in ``error``."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            | ({"error": call.error} if call.error else {})
            for call in parsed.tool_calls
        ]
    return message


def _template_variables(arguments: dict[str, Any]) -> dict[str, Any]:
    """Take ``chat_template_kwargs`` out of the arguments and of their ``extra_body``."""
    extra = dict(arguments.pop("extra_body", None) or {})
    variables = {**extra.pop("chat_template_kwargs", {}), **arguments.pop("chat_template_kwargs", {})}
    if extra:
        arguments["extra_body"] = extra
    return variables


def _as_dict(message: Any) -> Mapping[str, Any]:
    """A message as plain data; callers also give the objects of the ``openai`` package, or a dict that holds some."""
    if not _is_mapping(message):
        plain: dict[str, Any] = message.model_dump(exclude_none=True)
        return plain
    calls = message.get("tool_calls")
    if not calls or all(map(_is_mapping, calls)):
        return cast("Mapping[str, Any]", message)
    return {**message, "tool_calls": [_as_dict(call) for call in calls]}


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # the first is much quicker to tell
