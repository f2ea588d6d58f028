"""Thoughts and responses."""

from __future__ import annotations

from dataclasses import dataclass

from atroposlib.envs.reward_fns.answers.extraction import tagged


@dataclass(frozen=True)
class Parted:
    """The contents of all ``<think>`` blocks, and what follows the last one (everything where there is none)."""

    thoughts: tuple[str, ...]
    response: str


def parted(text: str) -> Parted:
    """Part a completion into thoughts and response. A block that does not close is no block."""
    thoughts = tuple(tagged(text, "think", case_sensitive=True))
    return Parted(thoughts, text.rpartition("</think>")[2] if thoughts else text)
