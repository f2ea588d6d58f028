"""How many tokens a rollout has used and may still use.

Exact up to the last reply, where the engine counts; what was added since is estimated, on the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import ContextFull
from environments.tools.results import as_json

BYTES_PER_TOKEN = 3
MESSAGE_OVERHEAD_TOKENS = 8
SMALLEST_REPLY_TOKENS = 8


class TokenBudget:
    """``limit`` tokens for the whole rollout, ``per_reply`` for one reply; None where there is no such limit."""

    def __init__(self, limit: int | None, per_reply: int | None) -> None:
        self.limit = limit
        self.per_reply = per_reply
        self._used = 0

    def add_prompt(self, messages: Sequence[Mapping[str, Any]], tool_schemas: Sequence[Mapping[str, Any]]) -> None:
        """Count the messages that the rollout begins with."""
        self._used += sum(estimate_tokens(as_json(schema)) for schema in tool_schemas)
        for message in messages:
            self.add_text(str(message.get("content") or ""))

    def add_text(self, text: str) -> None:
        """Count a message that the engine has not seen yet."""
        self._used += estimate_tokens(text) + MESSAGE_OVERHEAD_TOKENS

    def add_reply(self, prompt_tokens: int, completion_tokens: int, text: str) -> None:
        """Take over the engine's count of the conversation so far; without one, estimate the reply."""
        if prompt_tokens:
            self._used = prompt_tokens + completion_tokens
        else:
            self.add_text(text)

    def next_reply_limit(self) -> int | None:
        """``max_tokens`` of the next request: the last reply's shrinks to what is left.

        Raises: ContextFull.
        """
        if self.limit is None:
            return self.per_reply
        left = self.limit - self._used
        if left < SMALLEST_REPLY_TOKENS:
            raise ContextFull(f"{self._used} of {self.limit} tokens are used")
        return left if self.per_reply is None else min(left, self.per_reply)


def estimate_tokens(text: str) -> int:
    """Hardly ever too low: tokenizers make about one token of four bytes of English, fewer of other scripts."""
    return len(text.encode("utf-8", errors="replace")) // BYTES_PER_TOKEN + 1
