"""One recorded sequence in the shape that environments read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class SequenceNode(BaseModel):
    """One sequence of a rollout. All three lists have one length and can be sent to the trainer as they are."""

    full_text: str
    tokens: list[int]
    masked_tokens: list[int]
    """The ids where they were sampled, -100 elsewhere."""
    logprobs: list[float]
    """The engine's logprobs where ids were sampled, 1.0 elsewhere."""
    metadata: dict[str, Any] | None = Field(default_factory=dict)
    """``finish_reason`` of the last turn, ``turns``, ``policy_versions``, ``trainable``."""
