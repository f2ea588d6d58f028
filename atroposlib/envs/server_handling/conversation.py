"""The turns of one rollout as messages: what a request adds to which of them, and why it forks where it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atroposlib.envs.server_handling.chat_request import ChatRequest, size_of
from atroposlib.envs.server_handling.chat_template import ChatTemplate
from atroposlib.envs.server_handling.generation import PromptIds
from atroposlib.envs.server_handling.history import (
    Continuation,
    Glance,
    MessageKey,
    Turn,
    find_continuation,
    glances_of,
    kept,
    keys_of,
)
from atroposlib.envs.server_handling.off_loop import CHARS_PER_ID, off_loop
from atroposlib.envs.server_handling.token_graph import Node, TokenGraph, prompt_after

HistoryPolicy = Literal["template", "keep"]
"""What happens where the template would change earlier answers: fork as it says, or keep them as they were sampled."""


@dataclass(frozen=True)
class ChatPrompt:
    """Where a request continues the rollout, and what it adds there."""

    parent: Node
    text: str
    ids: list[int]
    continued: Turn | None
    """The turn whose answer ``parent`` is, where the messages continue it."""
    history: tuple[MessageKey, ...]
    seen: list[Glance]
    why: str
    """What to say of it where it turns out to fork."""
    kept: str | None
    """What is kept though the template would now write it another way."""

    @property
    def whole(self) -> PromptIds:
        """All ids of the prompt, from the first."""
        return prompt_after(self.parent, self.ids)

    @property
    def whole_text(self) -> str:
        """The text of the whole prompt."""
        return "".join(node.text for node in self.parent.path()) + self.text


THOUGHT_MARKS = ("<think>", "</think>", "<|channel|>analysis")


class Conversation:
    """Finds the turn that a request continues, and renders and encodes only what is new after it."""

    def __init__(self, template: ChatTemplate, graph: TokenGraph, policy: HistoryPolicy) -> None:
        self._template, self._tokens = template, template.tokens
        self._graph = graph
        self._policy = policy
        self._turns: list[Turn] = []

    async def prompt(self, request: ChatRequest) -> ChatPrompt:
        """The prompt of a request.

        Raises: RolloutInvalid where the template refuses the messages.
        """
        found = find_continuation(self._turns, request.messages, request.setting)
        why, kept_back = self._reasons(found, request)
        appended = None
        if found is not None and why is None:
            new = request.messages[found.new :]
            appended = await off_loop(size_of(new), self._appended, found.turn, new, request)
        if found is not None and appended is not None:
            parent, (text, ids) = found.turn.node, appended
        else:
            parent, text, ids, kept_back = *await self._rendered(request), None
        continued = found.turn if found is not None and found.turn.node is parent else None
        known = continued.history if continued is not None else ()
        history = (*known, *keys_of(request.messages[len(known) :], len(known)))
        before = continued.seen if continued is not None else []
        seen = before + kept(glances_of(request.messages[len(before) :]))
        return ChatPrompt(parent, text, ids, continued, history, seen, why or self._why(found, appended), kept_back)

    def remember(self, prompt: ChatPrompt, request: ChatRequest, node: Node, message: Mapping[str, Any]) -> None:
        """Note an answer, so that later requests can continue it."""
        thoughts = any(mark in node.text for mark in THOUGHT_MARKS)
        turn = Turn(
            node=node,
            history=(*prompt.history, MessageKey.of(message, len(prompt.history), sampled=True)),
            seen=prompt.seen,
            answer=message,
            setting=request.setting,
            has_thoughts=thoughts or (prompt.continued is not None and prompt.continued.has_thoughts),
        )
        self._turns.append(turn)

    def _reasons(self, found: Continuation | None, request: ChatRequest) -> tuple[str | None, str | None]:
        """Why the turn that was found is not appended to, if so; else what is kept that the template would change."""
        if found is None:
            return None, None
        new, turn = request.messages[found.new :], found.turn
        if not new:
            return "answer_reopened", None
        has_calls = bool(turn.answer.get("tool_calls"))
        change = self._template.change(new, turn.has_thoughts, has_calls, request.tools, request.variables)
        if found.thoughts_dropped:
            reason: str | None = "thoughts_dropped_by_client"
        elif change == "header":  # such as an empty thought that only the last answer has
            return None, "header_changed_by_template"
        else:
            reason = "history_changed_by_template" if change == "history" else None
        holds_calls = any(key.calls for key in turn.history)
        if self._policy == "keep" or (holds_calls and not self._template.chat.writes_calls):
            return None, reason
        return reason, None

    @staticmethod
    def _why(found: Continuation | None, appended: object) -> str:
        if found is None:
            return "history_changed"
        return "no_seam_in_template" if appended is None else "answered_again"

    async def _rendered(self, request: ChatRequest) -> tuple[Node, str, list[int]]:
        """The node that the whole conversation, rendered anew, extends, and the text and ids to add to it."""
        whole, ids = await off_loop(size_of(request.messages) + len(request.setting), self._whole, request)
        parent = self._graph.longest_match(ids)
        if parent is self._graph.root:
            return parent, whole, ids
        added = ids[parent.end :]
        return parent, await off_loop(CHARS_PER_ID * len(added), self._tokens.decode, added), added

    def _whole(self, request: ChatRequest) -> tuple[str, list[int]]:
        text = self._template.prompt(request.messages, request.tools, request.variables)
        return text, self._tokens.encode(text)

    def _appended(
        self, turn: Turn, new: Sequence[Mapping[str, Any]], request: ChatRequest
    ) -> tuple[str, list[int]] | None:
        """What is added to an earlier turn as text and ids; ``None`` where the template shows no seam."""
        bridge = self._template.bridge(turn.answer, new, request.tools, request.variables)
        if bridge is None:
            return None
        text = bridge.after(self._template.end_of(turn.node.ids, turn.node.finish_reason))
        return text, self._tokens.encode(text)


def opened_thought(prompt: str) -> str:
    """The beginning of a thought that a prompt ends in, as templates of reasoning models write it; or nothing."""
    start = prompt.rfind("<think>")
    return prompt[start:] if start >= 0 and not prompt[start + len("<think>") :].strip() else ""
