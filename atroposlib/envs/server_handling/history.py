"""Which turn a conversation continues: messages compared, so that their ids need not be rendered again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

from atroposlib.envs.server_handling.chat_rendering import text_of
from atroposlib.envs.server_handling.http_client import encode_json
from atroposlib.envs.server_handling.token_graph import Node
from atroposlib.tool_call_parsers.base import end_of_thoughts

BESIDE_CONTENT = ("name", "reasoning_content", "reasoning", "thinking")


class MessageKey(NamedTuple):
    """What makes two messages the same for the model."""

    role: str
    content: str
    calls: tuple[tuple[str, str, str], ...] = ()
    answers: str = ""
    beside: tuple[str, ...] | None = None
    """What templates read beside the content (``BESIDE_CONTENT``); ``None`` in an answer of this rollout, whose ids are
    known whatever a client shows beside it."""

    @classmethod
    def of(cls, message: Mapping[str, Any], index: int, sampled: bool = False) -> MessageKey:
        """The key of a message; ``index`` names it in errors. Copies, so that a later change in place is noticed."""
        return cls(
            role=str(message.get("role")),
            content=text_of(message, index),
            calls=tuple(_call_key(call) for call in message.get("tool_calls") or ()),
            answers=str(message.get("tool_call_id") or ""),
            beside=None if sampled else _beside(message),
        )

    def is_of(self, message: Mapping[str, Any], index: int) -> bool:
        """Whether a message has this key; quicker than making its key, since equal texts mostly are one object."""
        content = message.get("content")
        if not isinstance(content, str):
            content = text_of(message, index)
        return (
            content == self.content
            and message.get("role") == self.role
            and (message.get("tool_call_id") or "") == self.answers
            and tuple(_call_key(call) for call in message.get("tool_calls") or ()) == self.calls
            and (self.beside is None or self.beside == _beside(message))
        )

    def without_thoughts(self) -> MessageKey:
        """The same message as a client shows it that drops thoughts."""
        return self._replace(content=self.content[end_of_thoughts(self.content) :].strip())


Glance = tuple[Any, ...]
"""The fields of a message that count, just as they came. Equal ones are equal messages; unequal ones may still be."""


@dataclass(frozen=True)
class Turn:
    """One answer: the conversation up to and including it, and its place in the graph."""

    node: Node
    history: tuple[MessageKey, ...]
    seen: list[Glance]
    """The messages before the answer as the caller sent them, in copies of their own."""
    answer: Mapping[str, Any]
    setting: bytes
    """Tools and template variables in JSON: with other ones the same messages are another prompt."""
    has_thoughts: bool
    """Whether this answer, or an earlier one that it was appended to, holds thoughts."""


@dataclass(frozen=True)
class Continuation:
    """The turn that a conversation continues, the messages that came since, and whether its thoughts were dropped."""

    turn: Turn
    new: int
    thoughts_dropped: bool


def setting_of(tools: Any, variables: Mapping[str, Any]) -> bytes:
    """What beside the messages decides how a prompt is rendered."""
    return encode_json([tools or None, dict(variables)])


def keys_of(messages: Sequence[Mapping[str, Any]], first: int = 0) -> tuple[MessageKey, ...]:
    """The keys of messages, of which the first is the ``first`` of its conversation."""
    return tuple(MessageKey.of(message, index) for index, message in enumerate(messages, first))


def glances_of(messages: Sequence[Mapping[str, Any]]) -> list[Glance]:
    """A glance at each message. What can be changed in place is not copied; see ``kept``."""
    return [
        (m.get("role"), m.get("content"), m.get("tool_call_id"), m.get("tool_calls"), *map(m.get, BESIDE_CONTENT))
        for m in messages
    ]


def kept(glances: Sequence[Glance]) -> list[Glance]:
    """Glances that stay as they are, whatever the caller does to its messages later."""
    return [glance if isinstance(glance[1], str) and not glance[3] else deepcopy(glance) for glance in glances]


def find_continuation(
    turns: Sequence[Turn], messages: Sequence[Mapping[str, Any]], setting: bytes
) -> Continuation | None:
    """The longest earlier turn that this conversation begins with, or ``None``."""
    best: Continuation | None = None
    glances = glances_of(messages)
    for turn in reversed(turns):  # the latest is the likeliest
        length = len(turn.history)
        if turn.setting != setting or length > len(messages) or (best is not None and length <= best.new):
            continue
        last = length - 1
        # lists are compared in C, which matters in a long history; messages that only look different follow after
        alike = glances[:last] == turn.seen
        if not alike and not all(map(MessageKey.is_of, turn.history[:last], messages, range(last))):
            continue
        answer = turn.history[last]
        if answer.is_of(messages[last], last):
            best = Continuation(turn, length, thoughts_dropped=False)
        elif answer.without_thoughts().is_of(messages[last], last):
            best = Continuation(turn, length, thoughts_dropped=end_of_thoughts(answer.content) > 0)
    return best


def _beside(message: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(message.get(name) or "") for name in BESIDE_CONTENT)


def _call_key(call: Mapping[str, Any]) -> tuple[str, str, str]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else encode_json(arguments).decode()
    return call.get("id") or "", function.get("name") or "", text
