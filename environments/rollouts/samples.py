"""From a conversation to what is trained on: every sequence that the engine recorded, token for token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import RolloutInvalid
from atroposlib.wire import IGNORED_MASK, ScoredDataItem
from environments.agent_loop import AgentResult


def trained_sequences(result: AgentResult, reward: float, rollout_id: str) -> list[ScoredDataItem]:
    """One item per sequence in which the policy sampled anything; a history that changed made several.

    They share the reward and, in ``overrides``, the ``rollout_id`` by which a trainer knows that they are one
    rollout. Raises: RolloutInvalid where a sequence does not line up, or none was sampled.
    """
    return [_sequence(node, result, reward, rollout_id) for node in _sampled_nodes(result)]


def check_sequences(result: AgentResult) -> None:
    """See before the grade that the record can be trained on. Raises: RolloutInvalid as ``trained_sequences`` does."""
    _sampled_nodes(result)


def longest_sequence(sequences: Sequence[ScoredDataItem]) -> ScoredDataItem:
    """Of the sequences of a rollout the one in which most was sampled; of several, the last."""

    def sampled(sequence: ScoredDataItem) -> int:
        return sum(mask != IGNORED_MASK for mask in sequence["masks"])

    longest: ScoredDataItem = max(reversed(sequences), key=sampled)
    return longest


def untrained_sequence(result: AgentResult, reward: float, rollout_id: str) -> ScoredDataItem:
    """A rollout of an engine that tells no token ids: its messages and its score, marked as not trainable."""
    overrides = {"rollout_id": rollout_id, "trainable": False}
    return ScoredDataItem(tokens=[], masks=[], scores=reward, messages=result.messages, overrides=overrides)


def _sampled_nodes(result: AgentResult) -> list[Any]:
    nodes = [node for node in (result.managed_state or {}).get("nodes", ()) if _was_sampled(node)]
    if not nodes:
        raise RolloutInvalid("no_tokens", "the engine recorded no sampled token")
    for node in nodes:
        if not len(node.tokens) == len(node.masked_tokens) == len(node.logprobs):
            lengths = f"{len(node.tokens)} tokens, {len(node.masked_tokens)} masks, {len(node.logprobs)} logprobs"
            raise RolloutInvalid("misaligned_tokens", lengths)
    return nodes


def _was_sampled(node: Any) -> bool:
    return any(mask != IGNORED_MASK for mask in node.masked_tokens)


def _sequence(node: Any, result: AgentResult, reward: float, rollout_id: str) -> ScoredDataItem:
    return ScoredDataItem(
        tokens=list(node.tokens),
        masks=list(node.masked_tokens),
        scores=reward,
        inference_logprobs=list(node.logprobs),
        messages=result.messages,
        overrides={"rollout_id": rollout_id} | _certificate(node.metadata),
    )


def certify(managed: Any, result: AgentResult) -> None:
    """Let the engine's record say of each sequence where its tokens come from, while the record is still open."""
    for node in (result.managed_state or {}).get("nodes", ()):
        node.metadata = {**(node.metadata or {}), "certificate": managed.certificate(node)}


def _certificate(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    certificate = (metadata or {}).get("certificate")
    return {} if certificate is None else {"certificate": certificate}
