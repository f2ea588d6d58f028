"""A tokenizer's chat template, used so that a conversation is appended to and never rendered again.

The text that belongs between what was sampled and the next generation (the end of the turn, the new messages, the
header of the next answer) is the *bridge*. It is read off the template itself: a short stand-in conversation whose
answer ends in a mark is rendered together with the new messages, and what follows the mark is the bridge. This needs
no knowledge of any model's format, and costs as much as the new messages are long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from atroposlib.envs.server_handling.token_text import TokenText
from atroposlib.errors import RolloutInvalid

Message = Mapping[str, Any]
MARK, THOUGHT, NEWS, QUESTION = "zqAnswerqz", "zqThoughtqz", "zqNewsqz", "zqQuestionqz"
MOST_REMEMBERED = 256
"""Stand-in answers whose rendering is remembered: one for each combination of tools that are called."""
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_STAND_IN_CALL: dict[str, Any] = {"id": "callid000", "type": "function", "function": {"name": "tool", "arguments": {}}}


@dataclass(frozen=True)
class Bridge:
    """What the template writes after an answer: its end-of-turn token (empty if it has none), then the rest."""

    end_token: str
    rest: str

    def after(self, last_token: str | None) -> str:
        """What is still to be added to an answer that ended in the special token ``last_token`` (``None``: in none).

        The token that the engine sampled is not repeated, and the template's own end-of-turn token is left out where
        the engine ended the turn with another one.
        """
        whole = self.end_token + self.rest
        if last_token is None:
            return whole
        bare = whole.lstrip()
        return bare[len(last_token) :] if bare.startswith(last_token) else self.rest


@dataclass(frozen=True)
class Seam:
    """How a template is made to show what follows an answer."""

    content: str
    """Content of the stand-in answer: ``MARK``, or nothing where the content is written after the tools' results."""
    needs_tools: bool
    """Whether the template writes the tools after the answer, so that they belong to the bridge."""


class ChatTemplate:
    """The chat template of one tokenizer. Safe to use from several threads.

    Every method raises ``RolloutInvalid`` with the reason ``chat_template`` where the template refuses the messages,
    and ``image_content`` where a message holds something other than text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokens = TokenText(tokenizer)
        self._tokenizer = tokenizer
        self._source = getattr(tokenizer, "chat_template", None)
        self._keeps: dict[tuple[Any, ...], bool] = {}
        self._seams: dict[tuple[Any, ...], Seam | None] = {}
        self._alone: dict[tuple[Any, ...], str] = {}

    def is_of(self, tokenizer: Any) -> bool:
        """Whether this is still the template of this tokenizer, so that what was found out holds."""
        return self._tokenizer is tokenizer and self._source == getattr(tokenizer, "chat_template", None)

    @property
    def _name(self) -> str:
        return getattr(self._tokenizer, "name_or_path", "") or type(self._tokenizer).__name__

    @cached_property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the template."""
        return hashlib.sha256(str(self._source).encode()).hexdigest()[:16]

    # rendering

    def prompt(self, messages: Sequence[Message], tools: Any, variables: Mapping[str, Any]) -> str:
        """A whole conversation up to the next answer; an answer that the caller began is left open."""
        opened = bool(messages) and messages[-1].get("role") == "assistant"
        try:
            return self._render(self._readable(messages), tools, variables, generate=not opened, go_on=opened)
        except RolloutInvalid:
            mapped = [_with_mapped_arguments(message) for message in messages]
            if mapped == list(messages):
                raise
        return self._render(self._readable(mapped), tools, variables, generate=not opened, go_on=opened)

    def bridge(
        self, answer: Message, new: Sequence[Message], tools: Any, variables: Mapping[str, Any]
    ) -> Bridge | None:
        """The bridge from ``answer`` over the messages ``new``; ``None`` where the template shows no seam."""
        roles, calls = tuple(str(message.get("role")) for message in new), answer.get("tool_calls") or []
        seam = self._seam(roles, bool(calls), tools, variables)
        if seam is None:
            return None
        shown = tools if seam.needs_tools or not tools else _stand_in_tools(calls)
        return self._bridge(_stand_in(calls, seam.content), new, shown, variables)

    def _seam(self, roles: tuple[str, ...], has_calls: bool, tools: Any, variables: Mapping[str, Any]) -> Seam | None:
        """How the template shows what follows an answer when messages of these roles do; ``None`` if it does not."""
        key = (roles, has_calls, bool(tools), _hashable(variables))
        if key not in self._seams:
            self._seams[key] = self._find_seam(roles, has_calls, tools, variables)
        return self._seams[key]

    def _find_seam(self, roles: Sequence[str], has_calls: bool, tools: Any, variables: Any) -> Seam | None:
        calls, new = [_STAND_IN_CALL] * has_calls, _news(roles)
        for content in (MARK, "")[: 1 + has_calls]:
            bridge = self._bridge(_stand_in(calls, content), new, tools, variables)
            if bridge is not None and bridge.rest.count(NEWS) == len(roles):
                shown = _stand_in_tools(calls) if tools else tools
                plain = self._bridge(_stand_in(calls, content), new, shown, variables)
                return Seam(content, needs_tools=plain != bridge)
        rendered = self._render(self._readable([*_stand_in(calls, MARK), *new]), tools, variables, generate=True)
        if rendered.count(NEWS) < len(roles):
            raise RolloutInvalid(
                "chat_template",
                f"the chat template of {self._name} leaves out messages of the roles {list(roles)}; choose another "
                "--env.tokenizer_name, or give the tokenizer another chat_template",
            )
        return None

    def _bridge(
        self, stand_in: list[dict[str, Any]], new: Sequence[Message], tools: Any, variables: Mapping[str, Any]
    ) -> Bridge | None:
        with_new = self._render(self._readable([*stand_in, *new]), tools, variables, generate=True)
        alone = self._rendered_alone(stand_in, tools, variables)
        if MARK in with_new and MARK in alone:
            with_new, alone = with_new.partition(MARK)[2], alone.partition(MARK)[2]
            if not stand_in[-1].get("tool_calls"):
                has_end = bool(self.tokens.leading_special(alone))
                return _split(with_new, self.tokens.leading_special(with_new) if has_end else "")
        calls = stand_in[-1].get("tool_calls")
        turn_end = self._turn_end(alone, calls[-1]["function"]["name"] if calls else MARK)
        said = alone[: len(alone) - len(turn_end)]
        if not with_new.startswith(said):
            return None
        rest, end_token = with_new[len(said) :], self.tokens.leading_special(turn_end)
        return _split(rest, end_token if rest.startswith(end_token) else "")

    def _rendered_alone(self, stand_in: list[dict[str, Any]], tools: Any, variables: Mapping[str, Any]) -> str:
        """The stand-in conversation with nothing after it; rendered once where the ids of calls do not show in it."""
        calls = stand_in[-1].get("tool_calls") or []
        if calls and self._writes_call_ids:
            return self._render(self._readable(stand_in), tools, variables, generate=False)
        names = tuple(call["function"]["name"] for call in calls)
        key = (names, stand_in[-1]["content"], _hashable({"tools": tools, **variables}))
        known = self._alone.get(key)
        if known is not None:
            return known
        text = self._render(self._readable(stand_in), tools, variables, generate=False)
        if MARK in text:  # what stands before the mark, such as today's date, is not looked at
            if len(self._alone) >= MOST_REMEMBERED:
                self._alone.clear()
            self._alone[key] = text
        return text

    @cached_property
    def _writes_call_ids(self) -> bool:
        """Whether the id of a call makes a difference to an answer that makes it."""
        for tools in (None, _stand_in_tools([_STAND_IN_CALL])):
            shown = set()
            for number in ("callid000", "zq9qz8qz7"):
                stand_in = _stand_in([{**_STAND_IN_CALL, "id": number}], MARK)
                try:
                    shown.add(self._render(self._readable(stand_in), tools, {}, generate=False))
                except RolloutInvalid:
                    return True
            if len(shown) > 1:
                return True
        return False

    def keeps_history(
        self, new: Sequence[Message], has_thoughts: bool, has_calls: bool, tools: Any, variables: Mapping[str, Any]
    ) -> bool:
        """Whether the template leaves what came before as it was when the messages ``new`` follow an answer.

        Templates that drop old thoughts, or move the tools to the last question, do not. Found out by rendering, once
        for each kind of seam.
        """
        roles = tuple(str(message.get("role")) for message in new)
        key = (roles, has_thoughts, has_calls, bool(tools), _hashable(variables))
        if key not in self._keeps:
            self._keeps[key] = self._renders_alike(roles, has_thoughts, has_calls, tools, variables)
        return self._keeps[key]

    def _renders_alike(self, roles: Any, has_thoughts: bool, has_calls: bool, tools: Any, variables: Any) -> bool:
        thoughts = f"<think>\n{THOUGHT}\n</think>\n\n" if has_thoughts else ""
        answer = _stand_in([_STAND_IN_CALL] * has_calls, thoughts + MARK)
        before = self._render(self._readable(answer[:1]), tools, variables, generate=False)
        now = self._render(self._readable([*answer, *_news(roles)]), tools, variables, generate=True)
        same_start = now.partition(QUESTION)[0] == before.partition(QUESTION)[0]
        return same_start and (not has_thoughts or THOUGHT in now)

    def _turn_end(self, alone: str, last_tool: str) -> str:
        """The end of the turn at the end of ``alone``, which holds an answer that calls ``last_tool`` last."""
        if alone.endswith(self._plain_turn_end):
            return self._plain_turn_end
        return self.tokens.from_last_special(alone[alone.rfind(last_tool) :])

    @cached_property
    def _plain_turn_end(self) -> str:
        return self._render(self._readable(_stand_in([], MARK)), None, {}, generate=False).partition(MARK)[2]

    def _render(
        self, messages: Any, tools: Any, variables: Mapping[str, Any], generate: bool, go_on: bool = False
    ) -> str:
        from jinja2 import TemplateError

        options = {"continue_final_message": True} if go_on else {}
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=generate, **options, **variables
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            roles = [message.get("role") for message in messages]
            raise RolloutInvalid(
                "chat_template",
                f"the chat template of {self._name} cannot render messages of the roles {roles}: {error}; choose "
                "another --env.tokenizer_name, or give the tokenizer another chat_template",
            ) from error
        return text

    # what this template wants to read

    def _readable(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [self._readable_message(index, message) for index, message in enumerate(messages)]

    def _readable_message(self, index: int, message: Message) -> dict[str, Any]:
        readable = {name: value for name, value in message.items() if value is not None}
        readable["content"] = self._readable_content(text_of(message, index))
        calls = message.get("tool_calls")
        if not calls:
            readable.pop("tool_calls", None)
            return readable
        if not readable["content"]:
            readable["content"] = self._no_content
        readable["tool_calls"] = [self._readable_call(call) for call in calls]
        return readable

    def _readable_content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self._content_as_parts else text

    def _readable_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        arguments = function.get("arguments")
        if self._arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        elif not self._arguments_as_text and isinstance(arguments, str):
            arguments = _object_or_text(arguments)
        return {**call, "type": "function", "function": {**function, "arguments": arguments}}

    @cached_property
    def _content_as_parts(self) -> bool:
        """Whether the template reads content as a list of parts only, as those of image models do."""
        try:
            text = self._render([{"role": "user", "content": QUESTION}], None, {}, generate=False)
        except RolloutInvalid:
            return True
        return QUESTION not in text

    @cached_property
    def _arguments_as_text(self) -> bool:
        """Whether the template wants the arguments of a call as JSON text rather than as an object."""
        text = self._try_call({"key": MARK}, "")
        return text is None or "{'key'" in text

    @cached_property
    def _no_content(self) -> str | None:
        """What stands for the content of an answer that only calls tools: ``None`` where the template takes it."""
        arguments = json.dumps({}) if self._arguments_as_text else {}
        text = self._try_call(arguments, None)
        return "" if text is None or "None" in text else None

    def _try_call(self, arguments: Any, content: str | None) -> str | None:
        call = {**_STAND_IN_CALL, "function": {"name": "tool", "arguments": arguments}}
        answer = {"role": "assistant", "content": content, "tool_calls": [call]}
        question = {"role": "user", "content": self._readable_content(QUESTION)}
        try:
            return self._render([question, answer], None, {}, generate=False)
        except RolloutInvalid:
            return None


def text_of(message: Message, index: int) -> str:
    """The content of a message as text; a list of text parts is joined.

    Raises:
        RolloutInvalid: (``image_content``) a part is not text.
    """
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.get("type") != "text":
            raise RolloutInvalid(
                "image_content",
                f"message {index} holds a part of type {part.get('type')!r}; a rollout that is recorded token by "
                "token takes text only",
            )
    return "".join(part["text"] for part in content)


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


def _stand_in(calls: Sequence[Mapping[str, Any]], content: str) -> list[dict[str, Any]]:
    """A conversation of one question and an answer of this content that makes these calls, their arguments left out."""
    bare = [
        {**_STAND_IN_CALL, "id": c.get("id"), "function": {"name": c["function"]["name"], "arguments": {}}}
        for c in calls
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": content}
    return [{"role": "user", "content": QUESTION}, answer | ({"tool_calls": bare} if bare else {})]


def _stand_in_tools(calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Bare tools of the names that are called, quicker to render than the real ones."""
    names = {call["function"]["name"] for call in calls} or {"tool"}
    return [
        {"type": "function", "function": {"name": name, "description": "", "parameters": _NO_PARAMETERS}}
        for name in sorted(names)
    ]


def _news(roles: Sequence[str]) -> list[dict[str, Any]]:
    """One stand-in message for each role."""
    return [{"role": role, "content": NEWS, "tool_call_id": _STAND_IN_CALL["id"], "name": "tool"} for role in roles]


def _split(text: str, end_token: str) -> Bridge:
    return Bridge(end_token, text[len(end_token) :])


def _object_or_text(arguments: str) -> Any:
    try:
        value = json.loads(arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _hashable(variables: Mapping[str, Any]) -> str:
    return repr(sorted(variables.items()))
