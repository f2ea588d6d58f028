"""Which turn a conversation continues: messages compared, so that their ids need not be rendered again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from atroposlib.envs.server_handling.chat_template import text_of
from atroposlib.envs.server_handling.http_client import encode_json
from atroposlib.envs.server_handling.token_graph import Node
from atroposlib.tool_call_parsers.base import end_of_thoughts


class MessageKey(NamedTuple):
    """What makes two messages the same for the model. Fields that no template of ours reads are left out."""

    role: str
    content: str
    calls: tuple[tuple[str, str, str], ...] = ()
    answers: str = ""

    @classmethod
    def of(cls, message: Mapping[str, Any], index: int) -> MessageKey:
        """The key of a message; ``index`` names it in errors. Copies, so that a later change in place is noticed."""
        return cls(
            role=str(message.get("role")),
            content=text_of(message, index),
            calls=tuple(_call_key(call) for call in message.get("tool_calls") or ()),
            answers=str(message.get("tool_call_id") or ""),
        )

    def without_thoughts(self) -> MessageKey:
        """The same message as a client shows it that drops thoughts."""
        return self._replace(content=self.content[end_of_thoughts(self.content) :].strip())


@dataclass(frozen=True)
class Turn:
    """One answer: the conversation up to and including it, and its place in the graph."""

    node: Node
    history: tuple[MessageKey, ...]
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


def find_continuation(turns: Sequence[Turn], history: Sequence[MessageKey], setting: bytes) -> Continuation | None:
    """The longest earlier turn that this conversation begins with, or ``None``."""
    best: Continuation | None = None
    for turn in reversed(turns):  # the latest is the likeliest
        length = len(turn.history)
        if turn.setting != setting or length > len(history) or (best is not None and length <= best.new):
            continue
        if tuple(history[: length - 1]) != turn.history[:-1]:
            continue
        answer, given = turn.history[-1], history[length - 1]
        if given in (answer, answer.without_thoughts()):
            best = Continuation(turn, length, thoughts_dropped=given != answer)
    return best


def _call_key(call: Mapping[str, Any]) -> tuple[str, str, str]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else encode_json(arguments).decode()
    return str(call.get("id")), str(function.get("name")), text
