"""The turns of one rollout as messages: what a request adds to which of them, and why it forks where it does."""

from __future__ import annotations

from collections import Counter
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
from atroposlib.envs.server_handling.off_loop import off_loop
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

    @property
    def whole(self) -> PromptIds:
        """All ids of the prompt, from the first."""
        return prompt_after(self.parent, self.ids)

    @property
    def whole_text(self) -> str:
        """The text of the whole prompt."""
        return "".join(node.text for node in self.parent.path()) + self.text


class Conversation:
    """Finds the turn that a request continues, and renders and encodes only what is new after it."""

    def __init__(self, template: ChatTemplate, graph: TokenGraph, policy: HistoryPolicy) -> None:
        self._template, self._tokens = template, template.tokens
        self._graph = graph
        self._policy = policy
        self._turns: list[Turn] = []

    async def prompt(self, request: ChatRequest, forks: Counter[str]) -> ChatPrompt:
        """The prompt of a request; the reason of a fork is counted in ``forks``.

        Raises: RolloutInvalid where the template refuses the messages.
        """
        found = find_continuation(self._turns, request.messages, request.setting)
        parent, text, ids = await self._place(found, request, forks)
        continued = found.turn if found is not None and found.turn.node is parent else None
        # taken before the caller may change its messages
        known = continued.history if continued is not None else ()
        history = (*known, *keys_of(request.messages[len(known) :], len(known)))
        before = continued.seen if continued is not None else []
        seen = before + kept(glances_of(request.messages[len(before) :]))
        return ChatPrompt(parent, text, ids, continued, history, seen)

    def remember(self, prompt: ChatPrompt, request: ChatRequest, node: Node, message: Mapping[str, Any]) -> None:
        """Note an answer, so that later requests can continue it."""
        thoughts = "</think>" in node.text or "<think>" in node.text
        turn = Turn(
            node=node,
            history=(*prompt.history, MessageKey.of(message, len(prompt.history))),
            seen=prompt.seen,
            answer=message,
            setting=request.setting,
            has_thoughts=thoughts or (prompt.continued is not None and prompt.continued.has_thoughts),
        )
        self._turns.append(turn)

    async def _place(
        self, found: Continuation | None, request: ChatRequest, forks: Counter[str]
    ) -> tuple[Node, str, list[int]]:
        """The node to continue, and the text and ids to add to it."""
        if found is not None:
            new = request.messages[found.new :]
            added = await off_loop(size_of(new), self._appended, found, new, request, forks)
            if added is not None:
                return found.turn.node, *added
        whole, ids = await off_loop(size_of(request.messages), self._rendered, request)
        parent = self._graph.longest_match(ids)
        if found is None and self._turns and parent.end < len(ids):
            forks["history_changed"] += 1
        text = whole if parent is self._graph.root else self._tokens.decode(ids[parent.end :])
        return parent, text, ids[parent.end :]

    def _rendered(self, request: ChatRequest) -> tuple[str, list[int]]:
        """The whole conversation as text and ids."""
        text = self._template.prompt(request.messages, request.tools, request.variables)
        return text, self._tokens.encode(text)

    def _appended(
        self, found: Continuation, new: Sequence[Mapping[str, Any]], request: ChatRequest, forks: Counter[str]
    ) -> tuple[str, list[int]] | None:
        """What is added to an earlier turn as text and ids; ``None``, and the reason counted, where it forks."""
        turn, bridge = found.turn, None
        reason = self._reason_to_fork(found, new, request)
        if reason is None:
            bridge = self._template.bridge(turn.answer, new, request.tools, request.variables)
        if bridge is None:
            forks[reason or "no_seam_in_template"] += 1
            return None
        text = bridge.after(self._tokens.end_token(turn.node.ids))
        return text, self._tokens.encode(text)

    def _reason_to_fork(
        self, found: Continuation, new: Sequence[Mapping[str, Any]], request: ChatRequest
    ) -> str | None:
        if not new:
            return "answer_reopened"
        if self._policy == "keep":
            return None
        if found.thoughts_dropped:
            return "thoughts_dropped_by_client"
        turn, has_calls = found.turn, bool(found.turn.answer.get("tool_calls"))
        same = self._template.keeps_history(new, turn.has_thoughts, has_calls, request.tools, request.variables)
        return None if same else "history_changed_by_template"
