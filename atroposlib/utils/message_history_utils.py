"""Make histories fit: shorten thoughts, drop the oldest turns."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

from atroposlib.utils.tokenize_for_trainer import UNMASKED_ROLES, tokenize_for_trainer
from atroposlib.wire import ScoredDataGroup

logger = logging.getLogger(__name__)

_OPEN, _CLOSE = "<think>", "</think>"
_PER_TOKEN = ("advantages", "ref_logprobs", "inference_logprobs", "distill_token_ids", "distill_logprobs")


def strip_thinking(response_text: str) -> str:
    """Leave out the first ``<think>`` block; text without a whole one stays as it is."""
    before, thoughts, after = _split_thinking(response_text)
    return response_text if thoughts is None else before + after


def truncate_thinking(response_text: str, tokenizer: Any, max_think_tokens: int) -> str:
    """Shorten the first ``<think>`` block to at most ``max_think_tokens`` tokens of thought.

    What is kept is the end: the last paragraph if it fits, else the last tokens, after "...". Text without a whole
    block stays as it is.
    """
    before, thoughts, after = _split_thinking(response_text)
    if thoughts is None:
        return response_text
    kept = _last_thoughts(thoughts.strip(), tokenizer, max_think_tokens)
    inside = f"\n{kept}\n" if kept else ""
    return f"{before}{_OPEN}{inside}{_CLOSE}{after}"


def ensure_trajectory_token_limit(
    trajectory: Sequence[ScoredDataGroup], tokenizer: Any, max_trajectory_tokens: int
) -> list[ScoredDataGroup]:
    """Shorten every step (a group of alternatives) until its longest alternative has at most so many tokens.

    The oldest messages after the first go, as many in each alternative; the first message, the last answer and the
    observation that it answers stay. A step that cannot be made short enough, or has no ``messages``, ``tokens`` and
    ``masks``, is left out, and logged. A shortened step keeps no other key that has a value for each token.
    """
    kept = []
    for index, step in enumerate(trajectory):
        shortened = _shorten(step, tokenizer, max_trajectory_tokens)
        if shortened is None:
            logger.warning("step %d cannot be cut to %d tokens and is left out", index, max_trajectory_tokens)
        else:
            kept.append(shortened)
    return kept


def _split_thinking(text: str) -> tuple[str, str | None, str]:
    before, opened, rest = text.partition(_OPEN)
    thoughts, closed, after = rest.partition(_CLOSE)
    return (before, thoughts, after) if opened and closed else (text, None, "")


def _last_thoughts(thoughts: str, tokenizer: Any, limit: int) -> str:
    tokens = tokenizer.encode(thoughts, add_special_tokens=False)
    if len(tokens) <= limit:
        return thoughts
    last_paragraph = thoughts.rpartition("\n\n")[2].strip()
    if last_paragraph != thoughts and len(tokenizer.encode(last_paragraph, add_special_tokens=False)) <= limit:
        return f"... {last_paragraph}"
    ending = tokenizer.decode(tokens[len(tokens) - max(0, limit) :], skip_special_tokens=True).strip()
    return f"... {ending}" if ending else ""


def _shorten(step: ScoredDataGroup, tokenizer: Any, limit: int) -> ScoredDataGroup | None:
    messages, tokens, masks = step.get("messages"), step.get("tokens"), step.get("masks")
    if not messages or not tokens or not masks:
        return None
    if max(map(len, tokens)) <= limit:
        return step
    alternatives = [list(conversation) for conversation in messages]
    while max(map(len, tokens)) > limit:
        removable = min(map(_removable, alternatives))
        if removable == 0:
            return None
        for conversation in alternatives:
            del conversation[1 : 1 + removable]
        rendered = [tokenize_for_trainer(tokenizer, conversation) for conversation in alternatives]
        tokens, masks = [each["tokens"] for each in rendered], [each["masks"] for each in rendered]
    rest = {key: value for key, value in step.items() if key not in _PER_TOKEN}
    return cast("ScoredDataGroup", {**rest, "messages": alternatives, "tokens": tokens, "masks": masks})


def _removable(conversation: Sequence[Any]) -> int:
    """How many messages after the first may go next: an observation with its answer, one other message, or none."""
    kept_at_end = 0
    if len(conversation) > 1 and conversation[-1]["role"] in UNMASKED_ROLES:
        kept_at_end = 1 if len(conversation) == 2 or conversation[-2]["role"] in UNMASKED_ROLES else 2
    free = len(conversation) - 1 - kept_at_end
    if free >= 2 and conversation[1]["role"] not in UNMASKED_ROLES and conversation[2]["role"] in UNMASKED_ROLES:
        return 2
    return min(1, max(0, free))
