"""What a trainable sample says about itself, so that anyone can check later that nothing was changed."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence

from typing_extensions import TypedDict

DIGEST_NAME = "sha256:i64-ids|i64-mask|f64-logprobs"


class Certificate(TypedDict):
    """Stands in ``overrides[i]["certificate"]`` of a group."""

    rollout_id: str
    engine: str
    model: str
    policy_versions: list[str]
    """Weights of each sampled turn, in order, repeats left out; empty where the engine does not tell."""
    template: str
    """First 16 hex digits of the SHA-256 of the chat template."""
    turns: int
    sampled_tokens: int
    forks: int
    """How often a turn of this rollout did not continue an earlier one, over all its sequences."""
    digest: str


def digest(ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float]) -> str:
    """SHA-256 over ids, mask and logprobs as they stand on the wire, little-endian, with their common length first."""
    hasher = hashlib.sha256()
    hasher.update(_bytes("q", [len(ids)]))
    hasher.update(_bytes("q", ids))
    hasher.update(_bytes("q", mask))
    hasher.update(_bytes("d", logprobs))
    return hasher.hexdigest()


def _bytes(kind: str, values: Iterable[float]) -> bytes:
    packed = array(kind, values)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


_BIG_ENDIAN = array("H", [1]).tobytes() == b"\x00\x01"
