"""Between text and tokens: chat templates, tokenization, and the tool calls in what a model wrote.

A fast tokenizer must not be used by two threads at once, and a long template must not hold up the event loop, so all
of it runs on one thread of its own (``Words``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from trainer.errors import InvalidRequest, UsageError

_T = TypeVar("_T")
JSON = dict[str, Any]


@dataclass(frozen=True)
class ToolMessage:
    """An assistant's message in OpenAI's shape, and whether it calls tools."""

    body: JSON
    calls_tools: bool


class Words:
    """Tokenizer, chat template and tool parser of one policy; ``close`` ends its thread."""

    def __init__(self, tokenizer: Any, tool_call_parser: str | None = "hermes") -> None:
        self._tokenizer = tokenizer
        self._parser = _parser(tool_call_parser)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="words")
        self._token_texts: dict[int, str] = {}

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[..., _T], *args: Any) -> _T:
        """Run one of the methods below on the thread that may use the tokenizer."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def token_text(self, token_id: int) -> str:
        """What one token looks like by itself; bytes that are no character by themselves show as U+FFFD."""
        if token_id not in self._token_texts:
            self._token_texts[token_id] = self.decode([token_id], skip_special_tokens=False)
        return self._token_texts[token_id]

    def render(
        self,
        messages: Sequence[JSON],
        tools: Sequence[JSON] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation by the tokenizer's own template.

        Raises: InvalidRequest, where there is no template or it refuses the messages.
        """
        from jinja2 import TemplateError

        if not self._tokenizer.chat_template:
            raise InvalidRequest("The served tokenizer has no chat template: use /v1/completions.", "messages")
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                [_for_template(message) for message in messages],
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                return_dict=False,
                **(template_kwargs or {}),
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise InvalidRequest(f"The chat template refused these messages: {error}", "messages") from error
        return ids

    def assistant_message(self, text: str, tools: Sequence[JSON] | None) -> ToolMessage:
        """The message that ``text`` says; a call that is no JSON keeps its text as arguments, for the caller to see."""
        if not tools or self._parser is None:
            return ToolMessage({"role": "assistant", "content": text}, calls_tools=False)
        parsed = self._parser.parse(text, tools)
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
        body = {"role": "assistant", "content": parsed.content}
        return ToolMessage({**body, "tool_calls": calls} if calls else body, calls_tools=bool(calls))


def _parser(name: str | None) -> Any:
    if name is None:
        return None
    from atroposlib.tool_call_parsers import get_parser, list_parsers

    if name not in list_parsers():
        raise UsageError(f"--tool-call-parser {name!r} is not one of {', '.join(sorted(list_parsers()))}.")
    return get_parser(name)


def _for_template(message: JSON) -> JSON:
    """A message as templates expect it: content as text, arguments of tool calls as objects."""
    shaped = dict(message)
    shaped["content"] = _as_text(message.get("content"))
    if calls := message.get("tool_calls"):
        shaped["tool_calls"] = [_with_object_arguments(call) for call in calls]
    else:
        shaped.pop("tool_calls", None)
    return shaped


def _as_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"A message's content is a text or a list of parts, not {type(content).__name__}.")
    parts = []
    for part in content:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise InvalidRequest("This engine reads text only: every part of a content must be a text part.")
        parts.append(part["text"])
    return "\n".join(parts)


def _with_object_arguments(call: JSON) -> JSON:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments)
        except ValueError:
            # a call that the model broke is shown to it again as it wrote it
            function["arguments"] = arguments
    return {**call, "function": function}
