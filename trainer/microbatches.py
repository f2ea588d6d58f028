"""Samples as tensors, and what the model says about them.

Axes: ``B`` sequences of a micro-batch, ``L`` tokens, ``T`` = L - 1 positions at which a token was predicted,
``K`` alternatives a teacher gave, ``V`` vocabulary. Entry ``[b, t]`` of a ``_B_T`` tensor is about token ``t + 1``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer.batches import Sample


@dataclass(frozen=True)
class MicroBatch:
    """What one forward and backward pass is computed from; padded on the right."""

    ids_B_L: torch.Tensor
    mask_B_T: torch.Tensor
    sampled_logprobs_B_T: torch.Tensor
    advantages_B_T: torch.Tensor
    temperature_B: torch.Tensor
    ref_logprobs_B_T: torch.Tensor | None
    ref_mask_B_T: torch.Tensor | None
    """Where a reference model's logprob stands: trained, in a sequence that came with them."""
    distill_ids_B_T_K: torch.Tensor | None
    distill_logprobs_B_T_K: torch.Tensor | None
    """``-inf`` where the teacher gave no alternative."""


def micro_batches(samples: Sequence[Sample], size: int, device: torch.device) -> Iterator[MicroBatch]:
    """Cut into pieces of at most ``size`` sequences, similar lengths together so that little is padded."""
    by_length = sorted(samples, key=lambda sample: len(sample.tokens))
    for start in range(0, len(by_length), size):
        yield stack(by_length[start : start + size], device)


def stack(samples: Sequence[Sample], device: torch.device) -> MicroBatch:
    """One micro-batch of all ``samples``."""
    length = max(len(sample.tokens) for sample in samples)
    has_ref = [sample.ref_logprobs is not None for sample in samples]
    mask_B_T = _padded([sample.trained for sample in samples], length, False, torch.bool, device)[:, 1:]
    ref_mask_B_T = mask_B_T & torch.tensor(has_ref, device=device)[:, None]
    distill_ids, distill_logprobs = _alternatives(samples, length, device)
    floats = (torch.float32, device)
    return MicroBatch(
        ids_B_L=_padded([sample.tokens for sample in samples], length, 0, torch.long, device),
        mask_B_T=mask_B_T,
        sampled_logprobs_B_T=_padded([s.sampled_logprobs for s in samples], length, 0.0, *floats)[:, 1:],
        advantages_B_T=_padded([s.advantages for s in samples], length, 0.0, *floats)[:, 1:],
        temperature_B=torch.tensor([sample.temperature or 1.0 for sample in samples], device=device),
        ref_logprobs_B_T=_padded([s.ref_logprobs or [] for s in samples], length, 0.0, *floats)[:, 1:]
        if any(has_ref)
        else None,
        ref_mask_B_T=ref_mask_B_T if any(has_ref) else None,
        distill_ids_B_T_K=distill_ids,
        distill_logprobs_B_T_K=distill_logprobs,
    )


@dataclass(frozen=True)
class ModelScores:
    """Logprobs of a model for one micro-batch, differentiable."""

    logprobs_B_T: torch.Tensor
    """Of the tokens that stand there."""
    alternatives_B_T_K: torch.Tensor | None
    """Of the teacher's alternatives."""


def score(model: Any, batch: MicroBatch, *, at_temperature: bool = False) -> ModelScores:
    """Run ``model`` over ``batch``: log_softmax of its logits, divided by each sequence's temperature where asked.

    Padding stands behind every token, and attention looks back only, so no mask is needed. Logits are computed from
    the first trained position on. Numbers before it are zeros.
    """
    skipped = _untrained_columns(batch)
    positions = batch.ids_B_L.shape[1] - 1
    logits_B_T_V = model(input_ids=batch.ids_B_L, logits_to_keep=positions - skipped + 1, use_cache=False).logits
    logits_B_T_V = logits_B_T_V[:, :-1].float()
    if at_temperature:
        logits_B_T_V = logits_B_T_V / batch.temperature_B[:, None, None]
    normalizer_B_T_1 = logits_B_T_V.logsumexp(-1, keepdim=True)
    targets_B_T_1 = batch.ids_B_L[:, 1 + skipped :, None]
    logprobs_B_T = (logits_B_T_V.gather(2, targets_B_T_1) - normalizer_B_T_1)[..., 0]
    logprobs_B_T = torch.nn.functional.pad(logprobs_B_T, (skipped, 0))
    alternatives_B_T_K = None
    if batch.distill_ids_B_T_K is not None:
        alternatives_B_T_K = logits_B_T_V.gather(2, batch.distill_ids_B_T_K[:, skipped:]) - normalizer_B_T_1
        alternatives_B_T_K = torch.nn.functional.pad(alternatives_B_T_K, (0, 0, skipped, 0))
    return ModelScores(logprobs_B_T, alternatives_B_T_K)


def _untrained_columns(batch: MicroBatch) -> int:
    """How many positions at the left no sequence is trained at."""
    used_T = batch.mask_B_T.any(dim=0)
    return int(used_T.int().argmax())


def _alternatives(
    samples: Sequence[Sample], length: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """Teachers' ids and logprobs, padded to the most alternatives that any position has."""
    rows = [(s.distill_token_ids or [], s.distill_logprobs or []) for s in samples]
    most = max((len(ids) for row, _ in rows for ids in row), default=0)
    if most == 0:
        return None, None
    ids_B_L_K = torch.zeros(len(samples), length, most, dtype=torch.long)
    logprobs_B_L_K = torch.full((len(samples), length, most), -torch.inf)
    for b, (id_row, logprob_row) in enumerate(rows):
        for t, (ids, logprobs) in enumerate(zip(id_row, logprob_row, strict=True)):
            ids_B_L_K[b, t, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            logprobs_B_L_K[b, t, : len(ids)] = torch.tensor(logprobs)
    return ids_B_L_K[:, 1:].to(device), logprobs_B_L_K[:, 1:].to(device)


def _padded(
    rows: Sequence[Sequence[Any]], length: int, fill: Any, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    padded = torch.full((len(rows), length), fill, dtype=dtype)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = torch.tensor(values, dtype=dtype)
    return padded.to(device)
