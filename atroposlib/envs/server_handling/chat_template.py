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

from atroposlib.errors import RolloutInvalid

Message = Mapping[str, Any]
MARK = "⟦answer⟧"
THOUGHT = "⟦thought⟧"
_STAND_IN = "."


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


class ChatTemplate:
    """The template and the encoder of one tokenizer. Safe to use from several threads.

    Every method raises ``RolloutInvalid`` with the reason ``chat_template`` where the template refuses the messages,
    and ``image_content`` where a message holds something other than text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._keeps: dict[tuple[Any, ...], bool] = {}
        backend = getattr(tokenizer, "backend_tokenizer", None) if getattr(tokenizer, "is_fast", False) else None
        self._backend = backend

    # ids and text

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text. Special tokens written in it become their ids; none are added."""
        text = text.encode("utf-8", "replace").decode() if _has_surrogate(text) else text
        if self._backend is not None:  # the tokenizer's own encode sets truncation first, which threads must not share
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a bare prompt, with the mark that the tokenizer puts at the beginning of a text, once."""
        bos = getattr(self._tokenizer, "bos_token", None)
        if bos and text.startswith(bos):
            return self.encode(text)
        return list(self._tokenizer.encode(text, add_special_tokens=True))

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Text of ids, exactly, or without special tokens."""
        if self._backend is not None:
            text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
            return text
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    def without_end_token(self, ids: Sequence[int]) -> Sequence[int]:
        """The ids of an answer without the special token that ended it, if one did."""
        return ids[:-1] if ids and ids[-1] in self.special_ids else ids

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens: those that can end a turn are among them."""
        added = getattr(self._tokenizer, "added_tokens_decoder", {}) or {}
        return frozenset(self._tokenizer.all_special_ids) | {n for n, token in added.items() if token.special}

    @cached_property
    def vocabulary(self) -> int | None:
        """Number of ids, where the tokenizer says so."""
        try:
            return len(self._tokenizer)
        except TypeError:
            return None

    @cached_property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the template."""
        return hashlib.sha256(str(getattr(self._tokenizer, "chat_template", None)).encode()).hexdigest()[:16]

    # rendering

    def prompt(self, messages: Sequence[Message], tools: Any, variables: Mapping[str, Any]) -> str:
        """A whole conversation up to the next answer; an answer that the caller began is left open."""
        opened = bool(messages) and messages[-1].get("role") == "assistant"
        return self._render(self._readable(messages), tools, variables, generate=not opened, go_on=opened)

    def bridge(
        self, answer: Message, new: Sequence[Message], tools: Any, variables: Mapping[str, Any]
    ) -> Bridge | None:
        """The bridge from ``answer`` over the messages ``new``; ``None`` where the template shows no seam."""
        stand_in = self._stand_in(answer)
        with_new = self._render([*stand_in, *self._readable(new)], tools, variables, generate=True)
        alone = self._render(stand_in, tools, variables, generate=False)
        if MARK in with_new and MARK in alone:
            with_new, alone = with_new.partition(MARK)[2], alone.partition(MARK)[2]
        if not stand_in[-1].get("tool_calls"):
            return self._split(with_new)
        if not with_new.startswith(alone):
            return None
        return self._split(self._turn_end(alone) + with_new[len(alone) :])

    def keeps_history(
        self, new: Sequence[Message], has_thoughts: bool, has_calls: bool, tools: Any, variables: Mapping[str, Any]
    ) -> bool:
        """Whether the template leaves an earlier answer (and its thoughts, if it has any) as it was before ``new``.

        Found out once per template, by rendering; templates that drop old thoughts, or move the tools, do not.
        """
        roles = tuple(message.get("role") for message in new)
        key = (roles, has_thoughts, has_calls, bool(tools), _hashable(variables))
        if key not in self._keeps:
            self._keeps[key] = self._renders_alike(roles, has_thoughts, has_calls, tools, variables)
        return self._keeps[key]

    def _renders_alike(self, roles: Any, has_thoughts: bool, has_calls: bool, tools: Any, variables: Any) -> bool:
        content = f"<think>\n{THOUGHT}\n</think>\n\n{MARK}" if has_thoughts else MARK
        calls = [{"id": "callid000", "type": "function", "function": {"name": "tool", "arguments": {}}}]
        answer = {"role": "assistant", "content": content} | ({"tool_calls": calls} if has_calls else {})
        stand_in = self._readable([{"role": "user", "content": _STAND_IN}, answer])
        new = [{"role": role, "content": _STAND_IN, "tool_call_id": "callid000", "name": "tool"} for role in roles]
        before, found, _ = self._render(stand_in, tools, variables, generate=False).partition(MARK)
        now, found_now, _ = self._render([*stand_in, *new], tools, variables, generate=True).partition(MARK)
        return bool(found and found_now) and before == now

    def _stand_in(self, answer: Message) -> list[dict[str, Any]]:
        """A conversation of one question and an answer that ends in ``MARK`` and calls the same tools."""
        calls = [
            {"id": call.get("id"), "type": "function", "function": {"name": call["function"]["name"], "arguments": {}}}
            for call in answer.get("tool_calls") or []
        ]
        spoken = {"role": "assistant", "content": MARK} | ({"tool_calls": calls} if calls else {})
        return self._readable([{"role": "user", "content": _STAND_IN}, spoken])

    def _split(self, after: str) -> Bridge:
        """Tell the end-of-turn token, if this template has one, from what follows."""
        end_token = self._leading_special(after) if self._leading_special(self._plain_turn_end) else ""
        return Bridge(end_token, after[len(end_token) :])

    def _turn_end(self, tail: str) -> str:
        """The end of the turn within ``tail``, which holds the tool calls of an answer and then the end of its turn."""
        if tail.endswith(self._plain_turn_end):
            return self._plain_turn_end
        start = max((tail.rfind(token) for token in self._special_texts), default=-1)
        return tail[start:] if start >= 0 else ""

    @cached_property
    def _plain_turn_end(self) -> str:
        stand_in = [{"role": "user", "content": _STAND_IN}, {"role": "assistant", "content": MARK}]
        return self._render(stand_in, None, {}, generate=False).partition(MARK)[2]

    @cached_property
    def _special_texts(self) -> tuple[str, ...]:
        texts = {self.decode([number]) for number in self.special_ids}
        return tuple(sorted((text for text in texts if text), key=len, reverse=True))

    def _leading_special(self, text: str) -> str:
        """The special token that a text begins with, and blanks before it; empty if there is none."""
        bare = text.lstrip()
        token = next((token for token in self._special_texts if bare.startswith(token)), "")
        return text[: len(text) - len(bare) + len(token)] if token else ""

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
            name = getattr(self._tokenizer, "name_or_path", "") or type(self._tokenizer).__name__
            roles = [message.get("role") for message in messages]
            raise RolloutInvalid(
                "chat_template",
                f"the chat template of {name} cannot render messages of the roles {roles}: {error}; choose another "
                "--env.tokenizer_name, or give the tokenizer another chat_template",
            ) from error
        return text

    # what this template wants to read

    def _readable(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [self._readable_message(index, message) for index, message in enumerate(messages)]

    def _readable_message(self, index: int, message: Message) -> dict[str, Any]:
        readable = {name: value for name, value in message.items() if value is not None}
        readable["content"] = text_of(message, index)
        calls = message.get("tool_calls")
        if not calls:
            readable.pop("tool_calls", None)
            return readable
        if not readable["content"]:
            readable["content"] = self._no_content
        readable["tool_calls"] = [self._readable_call(call) for call in calls]
        return readable

    def _readable_call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function") or {}
        arguments = function.get("arguments")
        if self._arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        elif not self._arguments_as_text and isinstance(arguments, str):
            arguments = _object_or_text(arguments)
        return {**call, "type": "function", "function": {**function, "arguments": arguments}}

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
        call = {"id": "callid000", "type": "function", "function": {"name": "tool", "arguments": arguments}}
        answer = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            return self._render([{"role": "user", "content": _STAND_IN}, answer], None, {}, generate=False)
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


def _object_or_text(arguments: str) -> Any:
    try:
        value = json.loads(arguments or "{}", strict=False)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _hashable(variables: Mapping[str, Any]) -> str:
    return repr(sorted(variables.items()))


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
