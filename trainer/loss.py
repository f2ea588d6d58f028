"""The losses, as functions of tensors and nothing else.

Axes: ``B`` sequences of a micro-batch, ``T`` positions at which a token was predicted (one less than tokens),
``K`` alternatives that a teacher gave at a position.

Every function returns *sums* over the trained tokens. The caller divides them by the number of trained tokens of the
whole optimizer step, so that how a batch is cut into micro-batches changes nothing, and every token weighs the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ClipRange:
    """How far the ratio to the sampling policy counts: between ``1 - low`` and ``1 + high``."""

    low: float = 0.2
    high: float = 0.2


@dataclass(frozen=True)
class PolicyLoss:
    """The clipped loss and what it is made of, summed over the trained tokens."""

    loss: torch.Tensor
    """Scalar, to be differentiated."""
    clipped: float
    """Tokens whose gradient the clip took away."""
    ratio: float
    """Sum of the ratios; its mean is 1 on the policy that sampled."""
    abs_log_ratio: float
    """Sum of |log ratio|: how far the policy has moved from the one that sampled."""
    max_abs_log_ratio: float


def clipped_policy_loss(
    logprobs_B_T: torch.Tensor,
    sampled_logprobs_B_T: torch.Tensor,
    advantages_B_T: torch.Tensor,
    mask_B_T: torch.Tensor,
    clip: ClipRange,
) -> PolicyLoss:
    """Sum of ``-min(r * A, clip(r, 1 - low, 1 + high) * A)`` over the tokens where ``mask_B_T`` is true.

    r = exp(logprobs - sampled_logprobs). The minimum is taken of the two products, not of the ratios, and so holds for
    both signs: for A > 0 a token that became likely enough is left alone, for A < 0 one that became *unlikely* enough
    is, while a bad token that became likelier keeps its full gradient.

    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7; the token-level sum and the
    separate upper bound are those of DAPO (Yu et al. 2025), equations 8 and 10.
    """
    log_ratio_B_T = (logprobs_B_T - sampled_logprobs_B_T).masked_fill(~mask_B_T, 0.0)
    ratio_B_T = log_ratio_B_T.exp()
    full_B_T = ratio_B_T * advantages_B_T
    clipped_B_T = ratio_B_T.clamp(1 - clip.low, 1 + clip.high) * advantages_B_T
    loss = masked_sum(-torch.minimum(full_B_T, clipped_B_T), mask_B_T)
    with torch.no_grad():
        abs_B_T = log_ratio_B_T.abs()
        return PolicyLoss(
            loss=loss,
            clipped=float(masked_sum((clipped_B_T < full_B_T).float(), mask_B_T)),
            ratio=float(masked_sum(ratio_B_T, mask_B_T)),
            abs_log_ratio=float(abs_B_T.sum()),
            max_abs_log_ratio=float(abs_B_T.max()),
        )


def reference_kl(logprobs_B_T: torch.Tensor, ref_logprobs_B_T: torch.Tensor, mask_B_T: torch.Tensor) -> torch.Tensor:
    """Sum of the estimates ``exp(d) - d - 1`` with ``d = ref - new`` of KL(policy || reference) at the sampled tokens.

    Never negative, unbiased on policy, of low variance. Source: Schulman 2020, "Approximating KL Divergence", k3; used
    so by GRPO (Shao et al. 2024, DeepSeekMath, equation 4).
    """
    difference_B_T = (ref_logprobs_B_T - logprobs_B_T).masked_fill(~mask_B_T, 0.0)
    return masked_sum(difference_B_T.exp() - difference_B_T - 1, mask_B_T)


def distillation_loss(
    student_logprobs_B_T_K: torch.Tensor, teacher_logprobs_B_T_K: torch.Tensor, mask_B_T: torch.Tensor
) -> torch.Tensor:
    """Sum over positions of ``sum_k p_k * (log p_k - log q_k)``: the teacher's top K (p) against the student (q).

    Forward KL, cut off at the alternatives the teacher gave; those it did not give (``-inf``) count nothing.
    Source: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network", for sequences as in Kim & Rush 2016.
    """
    given_B_T_K = torch.isfinite(teacher_logprobs_B_T_K)
    teacher_B_T_K = teacher_logprobs_B_T_K.masked_fill(~given_B_T_K, 0.0)
    weights_B_T_K = teacher_B_T_K.exp() * given_B_T_K
    divergence_B_T = (weights_B_T_K * (teacher_B_T_K - student_logprobs_B_T_K)).sum(-1)
    return masked_sum(divergence_B_T, mask_B_T)


def masked_sum(values_B_T: torch.Tensor, mask_B_T: torch.Tensor) -> torch.Tensor:
    """Sum where the mask is true; what stands elsewhere, NaN included, changes neither value nor gradient."""
    return values_B_T.masked_fill(~mask_B_T, 0.0).sum()
