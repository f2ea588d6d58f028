"""Renders messages with a tokenizer's chat template, in the form that this template wants to read.

What a template wants is found out by rendering short stand-ins; nothing is known of any model's format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from atroposlib.errors import RolloutInvalid
from atroposlib.tool_call_parsers.base import THINK_CLOSE, THINK_OPEN, end_of_thoughts

Message = Mapping[str, Any]
MARK, THOUGHT, NEWS, QUESTION = "zqAnswerqz", "zqThoughtqz", "zqNewsqz", "zqQuestionqz"
SYSTEM, TOOL = "zqSystemqz", "zqToolqz"
STAND_IN_CALL: dict[str, Any] = {"id": "callid000", "type": "function", "function": {"name": TOOL, "arguments": {}}}
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class _Form:
    """What every conversation needs, so that a template takes it."""

    opening: list[dict[str, Any]]
    """Messages that have to stand before a question."""
    in_parts: bool
    """Whether content is a list of parts, as image models want it."""


class ChatRendering:
    """The chat template of one tokenizer. Safe to use from several threads.

    Every method raises ``RolloutInvalid`` with the reason ``chat_template`` where the template refuses the messages,
    and ``image_content`` where a message holds something other than text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._source = getattr(tokenizer, "chat_template", None)

    def is_of(self, tokenizer: Any) -> bool:
        """Whether this is still the template of this tokenizer, so that what was found out holds."""
        return self._tokenizer is tokenizer and self._source == getattr(tokenizer, "chat_template", None)

    @property
    def name(self) -> str:
        """The tokenizer's, for errors."""
        return getattr(self._tokenizer, "name_or_path", "") or type(self._tokenizer).__name__

    @cached_property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the template."""
        return hashlib.sha256(str(self._source).encode()).hexdigest()[:16]

    @property
    def eos_token(self) -> str:
        """The tokenizer's own end token; empty if it has none."""
        return getattr(self._tokenizer, "eos_token", None) or ""

    def conversation(self, messages: Sequence[Message], tools: Any, variables: Mapping[str, Any]) -> str:
        """A whole conversation up to the next answer; an answer that the caller began is left open."""
        if not self.writes_calls and any(message.get("tool_calls") for message in messages):
            raise RolloutInvalid(
                "chat_template",
                f"the chat template of {self.name} does not write tool calls, so that a conversation which holds some "
                "cannot be rendered; choose another --env.tokenizer_name, or give the tokenizer another chat_template",
            )
        try:
            return self.render(messages, tools, variables)
        except RolloutInvalid:
            mapped = [_with_mapped_arguments(message) for message in messages]
            if mapped == list(messages):
                raise
        return self.render(mapped, tools, variables)

    def render(
        self, messages: Sequence[Message], tools: Any, variables: Mapping[str, Any], generate: bool = True
    ) -> str:
        """Messages as text, up to the next answer if ``generate``; a last answer is left open then."""
        opened = generate and bool(messages) and messages[-1].get("role") == "assistant"
        readable = [self._readable_message(index, message) for index, message in enumerate(messages)]
        return self._apply(readable, tools, variables, generate=generate and not opened, go_on=opened)

    def question(self) -> list[dict[str, Any]]:
        """A conversation of one question that the template takes."""
        return [*self._form.opening, {"role": "user", "content": QUESTION}]

    def _apply(self, messages: Any, tools: Any, variables: Mapping[str, Any], generate: bool, go_on: bool) -> str:
        from jinja2 import TemplateError

        options = {"continue_final_message": True} if go_on else {}
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=generate, **options, **variables
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            roles = [message.get("role") for message in messages]
            raise RolloutInvalid(
                "chat_template",
                f"the chat template of {self.name} cannot render messages of the roles {roles}: {error}; choose "
                "another --env.tokenizer_name, or give the tokenizer another chat_template",
            ) from error
        return text

    def _try(self, messages: Any, tools: Any = None) -> str | None:
        """Messages that are readable as they are; ``None`` where the template refuses them."""
        try:
            return self._apply(messages, tools, {}, generate=False, go_on=False)
        except RolloutInvalid:
            return None

    # what this template wants to read

    def _readable_message(self, index: int, message: Message) -> dict[str, Any]:
        readable = {name: value for name, value in message.items() if value is not None}
        text, calls = text_of(message, index), message.get("tool_calls")
        thinks = message.get("role") == "assistant" and text.startswith(THINK_OPEN) and THINK_CLOSE in text
        if thinks and self.thinks_apart:
            end = end_of_thoughts(text)
            thoughts, text = text[len(THINK_OPEN) : end].removesuffix(THINK_CLOSE).strip(), text[end:].lstrip()
            if calls and text and not self._says_beside_calls:
                thoughts, text = f"{thoughts}\n\n{text}", ""
            readable.setdefault("thinking", thoughts)
        readable["content"] = self._readable_content(text)
        if not calls:
            readable.pop("tool_calls", None)
            return readable
        if not readable["content"]:
            readable["content"] = self._no_content
        readable["tool_calls"] = [self._readable_call(call) for call in calls]
        return readable

    def _readable_content(self, text: str) -> Any:
        return _as_parts(text) if self._form.in_parts else text

    def _readable_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        arguments = function.get("arguments")
        if self._arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        elif not self._arguments_as_text and isinstance(arguments, str):
            arguments = _object_or_text(arguments)
        return {**call, "type": "function", "function": {**function, "arguments": arguments}}

    @cached_property
    def _form(self) -> _Form:
        for roles in ([("user", QUESTION)], [("system", SYSTEM), ("user", QUESTION)]):
            for in_parts in (False, True):
                messages = [{"role": role, "content": _as_parts(text) if in_parts else text} for role, text in roles]
                if QUESTION in (self._try(messages) or ""):
                    return _Form([{"role": role, "content": text} for role, text in roles[:-1]], in_parts)
        return _Form([], in_parts=False)

    @cached_property
    def _arguments_as_text(self) -> bool:
        """Whether the template wants the arguments of a call as JSON text rather than as an object."""
        text = self._try_call({"key": MARK}, "")
        return text is None or "{'key'" in text

    @cached_property
    def _no_content(self) -> str | None:
        """What stands for the content of an answer that only calls tools: ``None`` where the template takes it."""
        text = self._try_call(json.dumps({}) if self._arguments_as_text else {}, None)
        return "" if text is None or "None" in text else None

    @cached_property
    def thinks_apart(self) -> bool:
        """Whether the template reads thoughts from a field ``thinking``, and not from marks in the content."""
        content = self._readable_content
        marked = f"{THINK_OPEN}\n{THOUGHT}\n{THINK_CLOSE}\n\n{MARK}"
        asked = self._readable_question()
        apart = self._try([*asked, {"role": "assistant", "content": content(MARK), "thinking": THOUGHT}]) or ""
        return THOUGHT in apart and self._try([*asked, {"role": "assistant", "content": content(marked)}]) != apart

    @cached_property
    def _says_beside_calls(self) -> bool:
        """Whether such a template writes what an answer says between its thoughts and its calls."""
        arguments: Any = json.dumps({}) if self._arguments_as_text else {}
        text = self._try_call(arguments, MARK, stand_in_tools([STAND_IN_CALL]), thinking=THOUGHT) or ""
        return THOUGHT in text and -1 < text.find(MARK) < text.rfind(TOOL)

    @cached_property
    def writes_calls(self) -> bool:
        """Whether the calls of an answer show in what the template makes of it."""
        arguments: Any = json.dumps({}) if self._arguments_as_text else {}
        for tools in (None, stand_in_tools([STAND_IN_CALL])):
            text, question = self._try_call(arguments, MARK, tools), self._try(self._readable_question(), tools)
            if text is None or text.count(TOOL) > (question or "").count(TOOL):
                return True  # one that raises is found out when it is to write something
        return False

    @cached_property
    def writes_call_ids(self) -> bool:
        """Whether the id of a call makes a difference to an answer that makes it."""
        for tools in (None, stand_in_tools([STAND_IN_CALL])):
            calls = [{**STAND_IN_CALL, "id": number} for number in ("callid000", "zq9qz8qz7")]
            shown = [self._try_call(json.dumps({}) if self._arguments_as_text else {}, MARK, tools, c) for c in calls]
            if None in shown or shown[0] != shown[1]:
                return True
        return False

    def _try_call(
        self,
        arguments: Any,
        content: str | None,
        tools: Any = None,
        call: Mapping[str, Any] = STAND_IN_CALL,
        **fields: str,
    ) -> str | None:
        calls = [{**call, "function": {"name": TOOL, "arguments": arguments}}]
        shown = None if content is None else self._readable_content(content)
        answer = {"role": "assistant", "content": shown, "tool_calls": calls, **fields}
        return self._try([*self._readable_question(), answer], tools)

    def _readable_question(self) -> list[dict[str, Any]]:
        return [{**message, "content": self._readable_content(message["content"])} for message in self.question()]


def text_of(message: Message, index: int) -> str:
    """The content of a message as text; a list of text parts is joined.

    Raises:
        RolloutInvalid: (``image_content``) a part is not text; (``message_content``) it is neither text nor parts.
    """
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        raise RolloutInvalid(
            "message_content",
            f"the content of message {index} is a {type(content).__name__}; it has to be text, or a list of parts: "
            "json.dumps what a tool returned",
        )
    for part in content:
        if part.get("type") != "text":
            raise RolloutInvalid(
                "image_content",
                f"message {index} holds a part of type {part.get('type')!r}; a rollout that is recorded token by "
                "token takes text only",
            )
    return "".join(str(part.get("text") or "") for part in content)


def stand_in_tools(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Bare tools of the names that are called, quicker to render than the real ones."""
    names = {call["function"]["name"] for call in calls} or {TOOL}
    return [
        {"type": "function", "function": {"name": name, "description": "", "parameters": _NO_PARAMETERS}}
        for name in sorted(names)
    ]


def _as_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _with_mapped_arguments(message: Message) -> Message:
    """The message with calls that many templates can write: arguments that are no object stand in one."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_with_mapping(call) for call in calls]}


def _with_mapping(call: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = call["function"].get("arguments")
    if not isinstance(arguments, str) or isinstance(_object_or_text(arguments), dict):
        return call
    return {**call, "function": {**call["function"], "arguments": {"unreadable": arguments}}}


def _object_or_text(arguments: str) -> Any:
    try:
        value = json.loads(arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
