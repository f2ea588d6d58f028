"""One optimizer over one policy: a batch of samples goes in, the policy has changed, and numbers say how."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from trainer.batches import Sample, TrainingBatch
from trainer.errors import UsageError
from trainer.loss import ClipRange, clipped_policy_loss, distillation_loss, reference_kl
from trainer.microbatches import MicroBatch, ModelScores, micro_batches, score, stack

logger = logging.getLogger(__name__)

Metrics = dict[str, float]


@dataclass(frozen=True)
class LearnerSettings:
    """How a policy learns. ``micro_batch_size`` in sequences; ``epochs`` passes over each batch, a step each."""

    lr: float = 1e-5
    warmup_steps: int = 0
    optimizer: str = "adamw"
    clip: ClipRange = field(default_factory=ClipRange)
    kl_coef: float = 0.0
    distill_coef: float = 1.0
    micro_batch_size: int = 2
    epochs: int = 1
    max_grad_norm: float = 1.0
    at_temperature: bool = False
    """Whether the engine's logprobs are those of the distribution after temperature (``processed_logprobs``)."""
    autocast: torch.dtype | None = None
    """Compute in this type; weights and optimizer stay in float32."""


class Learner:
    """Owns the optimizer of ``model`` and steps it."""

    def __init__(self, model: Any, settings: LearnerSettings) -> None:
        self.model = model
        self.settings = settings
        self.optimizer = _optimizer(model, settings)
        self.device = next(model.parameters()).device

    def update(self, batch: TrainingBatch, step: int) -> Metrics:
        """Take ``settings.epochs`` optimizer steps on ``batch``; none where it teaches nothing.

        Returns metrics without prefix: those of the policy before it changed, and how much was clipped at the end.
        """
        if not self._teaches(batch.samples):
            return {"skipped": 1.0}
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr(step)
        first = self._epoch(batch)
        last = first
        for _ in range(1, self.settings.epochs):
            last = self._epoch(batch)
        return {**first, "clip_fraction": last["clip_fraction"], "lr": self._lr(step), "skipped": 0.0}

    def largest_gap(self, sample: Sample) -> float:
        """Largest difference, over the trained tokens, between the engine's logprobs and this model's."""
        micro = stack([sample], self.device)
        with torch.no_grad(), self._computing():
            scores = score(self.model, micro)
        return float((scores.logprobs_B_T - micro.sampled_logprobs_B_T)[micro.mask_B_T].abs().max())

    def _teaches(self, samples: Sequence[Sample]) -> bool:
        """Whether a step would have a gradient; without one, momentum alone would move the weights."""
        if any(value != 0 for sample in samples for value in sample.advantages):
            return True
        settings = self.settings
        has_ref = any(sample.ref_logprobs is not None for sample in samples)
        has_teacher = any(sample.distill_logprobs is not None for sample in samples)
        return bool((settings.kl_coef and has_ref) or (settings.distill_coef and has_teacher))

    def _epoch(self, batch: TrainingBatch) -> Metrics:
        """One pass over the batch in micro-batches, one optimizer step at its end."""
        tokens = batch.trained_tokens
        sums: Counter[str] = Counter()
        largest = 0.0
        for micro in micro_batches(batch.samples, self.settings.micro_batch_size, self.device):
            with self._computing():
                scores = score(self.model, micro, at_temperature=self.settings.at_temperature)
            loss, own = self._loss(micro, scores)
            (loss / tokens).backward()
            largest = max(largest, own.pop("max_abs_log_ratio"))
            sums.update(own)
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm))
        if norm == norm and norm != float("inf"):
            self.optimizer.step()
        else:
            logger.error("The gradient is not finite (%s); this step leaves the weights alone.", norm)
        self.optimizer.zero_grad(set_to_none=True)
        means = {name: total / tokens for name, total in sums.items()}
        return {**means, "max_abs_log_ratio": largest, "grad_norm": norm}

    def _loss(self, micro: MicroBatch, scores: ModelScores) -> tuple[torch.Tensor, dict[str, float]]:
        """The sum to be differentiated for one micro-batch, and sums to be reported."""
        settings = self.settings
        policy = clipped_policy_loss(
            scores.logprobs_B_T, micro.sampled_logprobs_B_T, micro.advantages_B_T, micro.mask_B_T, settings.clip
        )
        loss = policy.loss
        sums = {
            "clip_fraction": policy.clipped,
            "ratio": policy.ratio,
            "abs_log_ratio": policy.abs_log_ratio,
            "max_abs_log_ratio": policy.max_abs_log_ratio,
            "entropy_estimate": -float(scores.logprobs_B_T.detach()[micro.mask_B_T].sum()),
        }
        if micro.ref_logprobs_B_T is not None and micro.ref_mask_B_T is not None:
            kl = reference_kl(scores.logprobs_B_T, micro.ref_logprobs_B_T, micro.ref_mask_B_T)
            loss = loss + settings.kl_coef * kl
            sums["reference_kl"] = float(kl.detach())
        if micro.distill_logprobs_B_T_K is not None and scores.alternatives_B_T_K is not None:
            divergence = distillation_loss(scores.alternatives_B_T_K, micro.distill_logprobs_B_T_K, micro.mask_B_T)
            loss = loss + settings.distill_coef * divergence
            sums["distillation"] = float(divergence.detach())
        sums["loss"] = float(loss.detach())
        return loss, sums

    def _lr(self, step: int) -> float:
        warmup = self.settings.warmup_steps
        return self.settings.lr * min(1.0, (step + 1) / warmup) if warmup > 0 else self.settings.lr

    @contextmanager
    def _computing(self) -> Iterator[None]:
        kind = self.settings.autocast
        with torch.autocast(self.device.type, dtype=kind or torch.bfloat16, enabled=kind is not None):
            yield


def _optimizer(model: Any, settings: LearnerSettings) -> torch.optim.Optimizer:
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=0.0)
    if settings.optimizer == "adafactor":
        return torch.optim.Adafactor(model.parameters(), lr=settings.lr)
    raise UsageError(f"--optimizer {settings.optimizer} is not here; there are adamw and adafactor.")
