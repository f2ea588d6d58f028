"""From scored groups, as they come over the wire, to samples that can be trained on.

Promise: nothing is padded, cut or guessed. A sequence whose ids, mask and logprobs do not line up, or that the engine
did not sample as recorded, is refused under a reason; one that is too long is left out and counted. Both keep their
place in their group's mean and deviation, since their score is as good as any.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from atroposlib.wire import IGNORED_MASK, ScoredDataGroup
from trainer.advantages import group_advantages
from trainer.errors import BatchRefused

_ABOVE_ZERO = 1e-4
"""A logprob may exceed 0 by rounding alone; more than this is a mark, not a logprob."""


@dataclass(frozen=True)
class Sample:
    """One sequence of ``t`` tokens. Lists are aligned with ``tokens``: entry i is about predicting ``tokens[i]``."""

    tokens: Sequence[int]
    trained: Sequence[bool]
    sampled_logprobs: Sequence[float]
    """The engine's; meaningless where not trained."""
    advantages: Sequence[float]
    temperature: float = 1.0
    ref_logprobs: Sequence[float] | None = None
    distill_token_ids: Sequence[Sequence[int]] | None = None
    distill_logprobs: Sequence[Sequence[float]] | None = None
    policy_versions: tuple[str, ...] = ()
    """Weights it was sampled with, as far as the environment told."""

    @property
    def trained_count(self) -> int:
        return sum(self.trained)


@dataclass(frozen=True)
class BatchLimits:
    """What the trainer can take: ``seq_len`` tokens at most (0: no limit), ids below ``vocab_size``."""

    seq_len: int
    vocab_size: int
    temperature: float = 1.0
    """Of groups that tell none."""


@dataclass
class TrainingBatch:
    """All that came of one batch of groups."""

    samples: list[Sample] = field(default_factory=list)
    rollout_scores: list[float] = field(default_factory=list)
    """One for each rollout, those left out included."""
    groups: int = 0
    equal_groups: int = 0
    """Groups whose rollouts all scored the same: they teach nothing."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Sequences not trained on, by reason."""
    complaints: dict[str, str] = field(default_factory=dict)
    """For each reason, what was wrong with the first such sequence."""

    @property
    def trained_tokens(self) -> int:
        return sum(sample.trained_count for sample in self.samples)

    def leave_out(self, reason: str, why: str) -> None:
        self.complaints.setdefault(reason, why)
        self.left_out[reason] += 1


def make_batch(groups: Sequence[ScoredDataGroup], limits: BatchLimits) -> TrainingBatch:
    """Check every sequence, give each its advantages, and say what was left out and why."""
    batch = TrainingBatch(groups=len(groups))
    for group in groups:
        _add_group(batch, group, limits)
    return batch


def _add_group(batch: TrainingBatch, group: ScoredDataGroup, limits: BatchLimits) -> None:
    overrides = [dict(one or {}) for one in group.get("overrides") or [{}] * len(group["tokens"])]
    rollouts: list[Hashable] = [one.get("rollout_id", index) for index, one in enumerate(overrides)]
    scores = group["scores"]
    advantages = group_advantages(scores, rollouts)
    by_rollout = dict(zip(rollouts, scores, strict=True))
    batch.rollout_scores += by_rollout.values()
    batch.equal_groups += len(by_rollout) > 1 and max(by_rollout.values()) == min(by_rollout.values())
    for index, (own, advantage) in enumerate(zip(overrides, advantages, strict=True)):
        try:
            sample = _sample(group, index, own, advantage, limits.temperature)
            _check(sample, limits)
        except _LeftOut as refusal:
            batch.leave_out(refusal.reason, f"env {group.get('env_id')}: {refusal}")
        else:
            batch.samples.append(sample)


class _LeftOut(BatchRefused):
    """Why one sequence is not trained on; ``reason`` is the word it is counted under."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def _sample(
    group: ScoredDataGroup, index: int, overrides: Mapping[str, Any], advantage: float, temperature: float
) -> Sample:
    if overrides.get("trainable") is False:
        raise _LeftOut("not_trainable", "the environment marked the sequence as not trainable")
    all_logprobs = group.get("inference_logprobs")
    if all_logprobs is None:
        raise _LeftOut(
            "no_inference_logprobs",
            "a group came without inference_logprobs; the ratio to the sampling policy needs the engine's own. "
            "Let the environment sample from an engine that tells token ids and logprobs, through managed_server",
        )
    tokens, masks, logprobs = group["tokens"][index], group["masks"][index], all_logprobs[index]
    if not len(tokens) == len(masks) == len(logprobs):
        raise _LeftOut(
            "misaligned", f"{len(tokens)} tokens, {len(masks)} masks and {len(logprobs)} logprobs do not line up"
        )
    given = _row(group, "advantages", index)
    if overrides.get("set_advantage_to_zero"):
        given, advantage = None, 0.0
    return Sample(
        tokens=tokens,
        trained=_trained(tokens, masks),
        sampled_logprobs=logprobs,
        advantages=[advantage] * len(tokens) if given is None else given,
        temperature=_temperature(group, overrides, temperature),
        ref_logprobs=_row(group, "ref_logprobs", index),
        distill_token_ids=_row(group, "distill_token_ids", index),
        distill_logprobs=_row(group, "distill_logprobs", index),
        policy_versions=tuple((overrides.get("certificate") or {}).get("policy_versions") or ()),
    )


def _row(group: ScoredDataGroup, key: str, index: int) -> Any:
    rows: Any = group.get(key)
    if rows is None:
        return None
    if len(rows[index]) != len(group["tokens"][index]):
        raise _LeftOut("misaligned", f"{key} has {len(rows[index])} positions for {len(group['tokens'][index])} tokens")
    return rows[index]


def _trained(tokens: Sequence[int], masks: Sequence[int]) -> list[bool]:
    """Where the mask repeats the token. The first token has nothing before it to be predicted from."""
    trained = [mask != IGNORED_MASK for mask in masks]
    if any(on and mask != token for on, mask, token in zip(trained, masks, tokens, strict=True)):
        raise _LeftOut("misaligned", "a mask holds a value that is neither -100 nor its token's id")
    if trained:
        trained[0] = False
    return trained


def _temperature(group: ScoredDataGroup, overrides: Mapping[str, Any], default: float) -> float:
    """Of the sequence, else of the group's sampling, else of the group."""
    for source in (overrides, group.get("generation_params") or {}, group.get("group_overrides") or {}):
        if source.get("temperature") is not None:
            return float(source["temperature"])
    return default


def _check(sample: Sample, limits: BatchLimits) -> None:
    if not any(sample.trained):
        raise _LeftOut("nothing_to_train", "the sequence has no trained token")
    if limits.seq_len > 0 and len(sample.tokens) > limits.seq_len:
        raise _LeftOut(
            "too_long",
            f"a sequence of {len(sample.tokens)} tokens is longer than --seq-len {limits.seq_len}; raise it, or lower "
            "the environment's max_rollout_tokens",
        )
    largest = max(chain(sample.tokens, *(sample.distill_token_ids or ())))
    if largest >= limits.vocab_size:
        raise _LeftOut(
            "out_of_vocabulary",
            f"token id {largest} is not one of the model's {limits.vocab_size}: it comes from an engine with another "
            "tokenizer",
        )
    for logprob, on in zip(sample.sampled_logprobs, sample.trained, strict=True):
        if on and not (math.isfinite(logprob) and logprob <= _ABOVE_ZERO):
            raise _LeftOut("bad_logprobs", f"a trained token has {logprob} for a logprob: the engine reported none")
    if not all(math.isfinite(value) for value in sample.advantages):
        raise _LeftOut("bad_advantages", "an advantage is not a finite number")
