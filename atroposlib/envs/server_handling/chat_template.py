"""A tokenizer's chat template, used so that a conversation is appended to and never rendered again.

The text that belongs between what was sampled and the next generation (the end of the turn, the new messages, the
header of the next answer) is the *bridge*. It is read off the template itself: a short stand-in conversation whose
answer ends in a mark is rendered together with the new messages, and what follows the mark is the bridge. This needs
no knowledge of any model's format, and costs as much as the new messages are long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from atroposlib.envs.server_handling.chat_rendering import (
    MARK,
    NEWS,
    QUESTION,
    STAND_IN_CALL,
    THOUGHT,
    TOOL,
    ChatRendering,
    Message,
    stand_in_tools,
)
from atroposlib.envs.server_handling.token_text import TokenText
from atroposlib.errors import RolloutInvalid
from atroposlib.tool_call_parsers.base import THINK_CLOSE, THINK_OPEN

MOST_REMEMBERED = 256
"""So much of each kind that was found out by rendering is remembered: combinations of tools, of variables, of roles."""

Change = Literal["history", "header"]
"""How a template changes what came before: answers themselves, or only the header before them."""


@dataclass(frozen=True)
class Bridge:
    """What the template writes after an answer: its end-of-turn token (empty if it has none), then the rest."""

    end_token: str
    rest: str

    def after(self, last_token: str | None) -> str:
        """What is still to be added to an answer whose turn the special token ``last_token`` ended (``None``: none).

        The token that the engine sampled is not repeated, and the template's own end-of-turn token is left out where
        the engine ended the turn with another one.
        """
        whole = self.end_token + self.rest
        if last_token is None:
            return whole
        bare = whole.lstrip()
        if bare.startswith(last_token):
            return bare[len(last_token) :]
        return self.rest.removeprefix(last_token)  # the second of two that end a turn


@dataclass(frozen=True)
class Seam:
    """How a template is made to show what follows an answer."""

    content: str
    """Content of the stand-in answer: ``MARK``, or nothing where the content is written after the tools' results."""
    turn_end: str | None
    """What the template writes after the calls of an answer; ``None`` for an answer without calls."""
    end_token: str
    """The special token at the beginning of it, if that ends the turn; one that opens a tool's result does not."""
    needs_tools: bool = True
    """Whether the template writes the tools after the answer, so that they belong to the bridge."""


class ChatTemplate:
    """The bridges of one template. Safe to use from several threads. Methods raise as those of ``ChatRendering``."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokens = TokenText(tokenizer)
        self.chat = ChatRendering(tokenizer)
        self._changes: dict[tuple[Any, ...], Change | None] = {}
        self._seams: dict[tuple[Any, ...], Seam | None] = {}
        self._alone: dict[tuple[Any, ...], str] = {}

    def is_of(self, tokenizer: Any) -> bool:
        """Whether this is still the template of this tokenizer, so that what was found out holds."""
        return self.chat.is_of(tokenizer)

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the template."""
        return self.chat.digest

    def prompt(self, messages: Sequence[Message], tools: Any, variables: Mapping[str, Any]) -> str:
        """A whole conversation up to the next answer; an answer that the caller began is left open."""
        return self.chat.conversation(messages, tools, variables)

    def end_of(self, ids: Sequence[int], finish_reason: str | None) -> str | None:
        """The special token that ended the turn of an answer; ``None`` where it ended in none.

        A special token that is part of an answer, such as the end of its calls, ends no turn, and an answer that was
        cut at the limit ends in none but the template's.
        """
        last = self.tokens.end_token(ids)
        if last is None or last in self._ends:
            return last
        return None if finish_reason == "length" or last in self._inner else last

    def bridge(
        self, answer: Message, new: Sequence[Message], tools: Any, variables: Mapping[str, Any]
    ) -> Bridge | None:
        """The bridge from ``answer`` over the messages ``new``; ``None`` where the template shows no seam."""
        roles, calls = tuple(str(message.get("role")) for message in new), answer.get("tool_calls") or []
        seam = self._seam(roles, bool(calls), tools, variables)
        if seam is None:
            return None
        try:
            return self._bridge(seam, calls, new, tools, variables)
        except RolloutInvalid:
            if len(calls) < 2:
                raise
        # a template that refuses several calls in one answer can write the last of them
        return self._bridge(seam, calls[-1:], new, tools, variables)

    def change(
        self, new: Sequence[Message], has_thoughts: bool, has_calls: bool, tools: Any, variables: Mapping[str, Any]
    ) -> Change | None:
        """How the template would write what came before another way when the messages ``new`` follow an answer.

        Templates that drop old thoughts, or move the tools to the last question, change the history. Found out by
        rendering, once for each kind of seam.
        """
        roles = tuple(str(message.get("role")) for message in new)
        key = (roles, has_thoughts, has_calls, bool(tools), _hashable(variables))
        if key not in self._changes:
            _make_room(self._changes)
            self._changes[key] = self._find_change(roles, has_thoughts, has_calls, tools, variables)
        return self._changes[key]

    def _find_change(
        self, roles: Any, has_thoughts: bool, has_calls: bool, tools: Any, variables: Any
    ) -> Change | None:
        answer = self._stand_in([STAND_IN_CALL] * has_calls, MARK)
        if has_thoughts:
            thoughts = {"content": f"{THINK_OPEN}\n{THOUGHT}\n{THINK_CLOSE}\n\n{MARK}"}
            answer[-1] |= thoughts
        before = self.chat.render(answer[:-1], tools, variables)
        now = self.chat.render([*answer, *_news(roles)], tools, variables)
        start, _, header = before.partition(QUESTION)
        start_now, _, rest = now.partition(QUESTION)
        if start_now != start or (has_thoughts and THOUGHT not in now):
            return "history"
        kept = rest.startswith(header.rstrip()) or (MARK not in rest and THOUGHT not in rest)
        return None if kept else "header"

    # how the seam is found

    def _seam(self, roles: tuple[str, ...], has_calls: bool, tools: Any, variables: Mapping[str, Any]) -> Seam | None:
        """How the template shows what follows an answer when messages of these roles do; ``None`` if it does not."""
        key = (roles, has_calls, bool(tools), _hashable(variables))
        if key not in self._seams:
            _make_room(self._seams)
            self._seams[key] = self._find_seam(roles, has_calls, tools, variables)
        return self._seams[key]

    def _find_seam(self, roles: Sequence[str], has_calls: bool, tools: Any, variables: Any) -> Seam | None:
        calls, new = [STAND_IN_CALL] * has_calls, _news(roles)
        for content in (MARK, "")[: 1 + has_calls]:
            seam = self._seam_with(content, calls, tools, variables)
            bridge = self._bridge(seam, calls, new, tools, variables)
            if bridge is not None and bridge.rest.count(NEWS) == len(roles):
                plain = self._bridge(seam, calls, new, stand_in_tools(calls) if tools else tools, variables)
                return Seam(seam.content, seam.turn_end, seam.end_token, needs_tools=plain != bridge)
        rendered = self.chat.render([*self._stand_in(calls, MARK), *new], tools, variables)
        if rendered.count(NEWS) < len(roles):
            raise RolloutInvalid(
                "chat_template",
                f"the chat template of {self.chat.name} leaves out messages of the roles {list(roles)}; choose another "
                "--env.tokenizer_name, or give the tokenizer another chat_template",
            )
        return None

    def _seam_with(self, content: str, calls: Sequence[Message], tools: Any, variables: Mapping[str, Any]) -> Seam:
        """What is known of a seam before it is tried."""
        if not calls:
            return Seam(content, None, self.tokens.leading_special(self._plain_turn_end))
        alone = self.chat.render(self._stand_in(calls, content), tools, variables, generate=False)
        turn_end = self._turn_end(alone)
        end_token = self.tokens.leading_special(turn_end)
        plain = self._first_special(self._plain_turn_end)
        opens = end_token.strip() not in ("", plain) and self._opens_a_result(
            end_token, content, calls, tools, variables
        )
        return Seam(content, turn_end, "" if opens else end_token)

    def _turn_end(self, alone: str) -> str:
        """The end of the turn at the end of ``alone``, which holds an answer that calls ``TOOL`` last."""
        if self._plain_turn_end and alone.endswith(self._plain_turn_end):
            return self._plain_turn_end
        return self.tokens.from_last_special(alone[max(0, alone.rfind(TOOL)) :])

    def _opens_a_result(
        self, token: str, content: str, calls: Sequence[Message], tools: Any, variables: Mapping[str, Any]
    ) -> bool:
        """Whether what follows a call is what a tool's result begins with: it then stands within two of them, too."""
        try:
            two = [*self._stand_in(calls, content), *_news(("tool", "tool"))]
            between = self.chat.render(two, tools, variables).split(NEWS)[1:-1]
        except RolloutInvalid:
            return False
        return bool(between) and token.strip() in between[0] and not between[0].lstrip().startswith(token.strip())

    @cached_property
    def _plain_turn_end(self) -> str:
        return self.chat.render(self._stand_in([], MARK), None, {}, generate=False).partition(MARK)[2]

    @cached_property
    def _ends(self) -> frozenset[str]:
        """Special tokens that end a turn, as far as the template and the tokenizer show."""
        turn_ends = [self._plain_turn_end]
        if self._with_call is not None:
            turn_ends.append(self._turn_end(self._with_call))
        return frozenset({self.chat.eos_token}.union(*map(self._leading_specials, turn_ends)) - {""})

    @cached_property
    def _inner(self) -> frozenset[str]:
        """Special tokens that stand in a conversation and end no turn."""
        return frozenset(self.tokens.specials_in(self._with_call or "")) - self._ends

    @cached_property
    def _with_call(self) -> str | None:
        """A stand-in answer that calls a tool, where the template takes one."""
        for tools in (stand_in_tools([STAND_IN_CALL]), None):
            try:
                return self.chat.render(self._stand_in([STAND_IN_CALL], MARK), tools, {}, generate=False)
            except RolloutInvalid:
                continue
        return None

    def _first_special(self, text: str) -> str:
        return self.tokens.leading_special(text).strip()

    def _leading_specials(self, text: str) -> set[str]:
        """The special tokens that a text begins with: some turns end in two."""
        found: set[str] = set()
        while special := self.tokens.leading_special(text):
            found.add(special.strip())
            text = text[len(special) :]
        return found

    # the bridge itself

    def _bridge(
        self, seam: Seam, calls: Sequence[Message], new: Sequence[Message], tools: Any, variables: Mapping[str, Any]
    ) -> Bridge | None:
        shown = tools if seam.needs_tools or not tools else stand_in_tools(calls)
        stand_in = self._stand_in(calls, seam.content)
        with_new = self.chat.render([*stand_in, *new], shown, variables)
        if seam.turn_end is None:
            if MARK not in with_new:
                return None
            after = with_new.partition(MARK)[2]
            return _split(after, self.tokens.leading_special(after) if seam.end_token else "")
        alone = self._rendered_alone(stand_in, shown, variables)
        if MARK in with_new and MARK in alone:
            with_new, alone = with_new.partition(MARK)[2], alone.partition(MARK)[2]
        said = alone.removesuffix(seam.turn_end)
        if not with_new.startswith(said):
            return None
        rest = with_new[len(said) :]
        return _split(rest, seam.end_token if rest.startswith(seam.end_token) else "")

    def _rendered_alone(self, stand_in: list[dict[str, Any]], tools: Any, variables: Mapping[str, Any]) -> str:
        """The stand-in conversation with nothing after it; rendered once where the ids of calls do not show in it."""
        if self.chat.writes_call_ids:
            return self.chat.render(stand_in, tools, variables, generate=False)
        names = tuple(call["function"]["name"] for call in stand_in[-1]["tool_calls"])
        key = (names, stand_in[-1]["content"], _hashable({"tools": tools, **variables}))
        known = self._alone.get(key)
        if known is not None:
            return known
        text = self.chat.render(stand_in, tools, variables, generate=False)
        if MARK in text:  # what stands before the mark, such as today's date, is not looked at
            _make_room(self._alone)
            self._alone[key] = text
        return text

    def _stand_in(self, calls: Sequence[Mapping[str, Any]], content: str) -> list[dict[str, Any]]:
        """A question and an answer of this content that makes these calls, their arguments left out."""
        bare = [
            {**STAND_IN_CALL, "id": c.get("id"), "function": {"name": c["function"]["name"], "arguments": {}}}
            for c in calls
        ]
        answer: dict[str, Any] = {"role": "assistant", "content": content}
        return [*self.chat.question(), answer | ({"tool_calls": bare} if bare else {})]


def _news(roles: Sequence[str]) -> list[dict[str, Any]]:
    """One stand-in message for each role."""
    return [{"role": role, "content": NEWS, "tool_call_id": STAND_IN_CALL["id"], "name": TOOL} for role in roles]


def _make_room(remembered: dict[Any, Any]) -> None:
    if len(remembered) >= MOST_REMEMBERED:
        remembered.clear()


def _split(text: str, end_token: str) -> Bridge:
    return Bridge(end_token, text[len(end_token) :])


def _hashable(variables: Mapping[str, Any]) -> str:
    return repr(sorted(variables.items()))
