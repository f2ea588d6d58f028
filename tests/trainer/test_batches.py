"""What is trained on, what is left out, and under which reason."""

from __future__ import annotations

import math
from typing import Any

import pytest

from atroposlib.wire import ScoredDataGroup
from trainer.batches import BatchLimits, make_batch

LIMITS = BatchLimits(seq_len=10, vocab_size=100)


def _group(**changes: Any) -> ScoredDataGroup:
    """Two sequences of four tokens, of which the last two are trained."""
    group: dict[str, Any] = {
        "tokens": [[5, 6, 7, 8], [5, 6, 9, 8]],
        "masks": [[-100, -100, 7, 8], [-100, -100, 9, 8]],
        "scores": [1.0, 0.0],
        "inference_logprobs": [[1.0, 1.0, -0.5, -0.1], [1.0, 1.0, -2.0, -0.1]],
        "env_id": 0,
    }
    return ScoredDataGroup(**(group | changes))


def test_group_becomes_samples_with_masks_logprobs_and_advantages() -> None:
    batch = make_batch([_group()], LIMITS)
    first, second = batch.samples
    assert first.trained == [False, False, True, True]
    assert first.advantages == [1.0] * 4
    assert second.advantages == [-1.0] * 4
    assert second.sampled_logprobs == [1.0, 1.0, -2.0, -0.1]
    assert batch.trained_tokens == 4
    assert batch.rollout_scores == [1.0, 0.0]


def test_advantages_of_single_tokens_replace_those_of_the_scores() -> None:
    given = [[0.0, 0.0, 3.0, -3.0], [0.0, 0.0, 0.5, 0.25]]
    batch = make_batch([_group(advantages=given)], LIMITS)
    assert [sample.advantages for sample in batch.samples] == given


def test_override_sets_the_advantage_to_zero_even_where_tokens_have_their_own() -> None:
    overrides = [{"set_advantage_to_zero": True}, {}]
    batch = make_batch([_group(overrides=overrides, advantages=[[1.0] * 4] * 2)], LIMITS)
    assert [sample.advantages for sample in batch.samples] == [[0.0] * 4, [1.0] * 4]


def test_sequences_of_one_rollout_share_its_place_in_the_group() -> None:
    rows = _group()
    group = {key: [*value, value[0]] for key, value in rows.items() if isinstance(value, list)}
    overrides = [{"rollout_id": "a"}, {"rollout_id": "b"}, {"rollout_id": "a"}]
    batch = make_batch([ScoredDataGroup(**group, overrides=overrides)], LIMITS)
    assert [sample.advantages[0] for sample in batch.samples] == [1.0, -1.0, 1.0]
    assert batch.rollout_scores == [1.0, 0.0]


def test_reference_and_teacher_and_versions_are_carried() -> None:
    extra = {
        "ref_logprobs": [[0.0, -1.0, -1.0, -1.0]] * 2,
        "distill_token_ids": [[[], [1], [1, 2], [3]]] * 2,
        "distill_logprobs": [[[], [-0.1], [-0.5, -1.0], [-0.2]]] * 2,
        "overrides": [{"certificate": {"policy_versions": ["3", "4"]}}, {}],
    }
    first, second = make_batch([_group(**extra)], LIMITS).samples
    assert first.ref_logprobs == [0.0, -1.0, -1.0, -1.0]
    assert first.distill_token_ids == [[], [1], [1, 2], [3]]
    assert first.policy_versions == ("3", "4")
    assert second.policy_versions == ()


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({}, 0.9),
        ({"group_overrides": {"temperature": 0.5}}, 0.5),
        ({"generation_params": {"temperature": 0.6}, "group_overrides": {"temperature": 0.5}}, 0.6),
        ({"overrides": [{"temperature": 0.7}] * 2, "generation_params": {"temperature": 0.6}}, 0.7),
    ],
)
def test_temperature_is_taken_from_the_nearest_source(sources: dict[str, Any], expected: float) -> None:
    batch = make_batch([_group(**sources)], BatchLimits(10, 100, temperature=0.9))
    assert [sample.temperature for sample in batch.samples] == [expected, expected]


@pytest.mark.parametrize(
    ("changes", "reason", "says"),
    [
        ({"inference_logprobs": None}, "no_inference_logprobs", "managed_server"),
        ({"masks": [[-100, -100, 7], [-100, -100, 9]]}, "misaligned", "do not line up"),
        ({"inference_logprobs": [[-0.1], [-0.1]]}, "misaligned", "do not line up"),
        ({"masks": [[-100, -100, 8, 8], [-100, -100, 8, 8]]}, "misaligned", "neither -100"),
        ({"masks": [[-100] * 4] * 2}, "nothing_to_train", "no trained token"),
        ({"masks": [[5, -100, -100, -100]] * 2}, "nothing_to_train", "no trained token"),
        ({"inference_logprobs": [[1.0] * 4] * 2}, "bad_logprobs", "1.0 for a logprob"),
        ({"inference_logprobs": [[1.0, 1.0, math.nan, -1.0]] * 2}, "bad_logprobs", "nan"),
        ({"advantages": [[0.0] * 4, [math.inf] * 4]}, "bad_advantages", "finite"),
        ({"advantages": [[0.0] * 3] * 2}, "misaligned", "advantages has 3 positions"),
        ({"overrides": [{"trainable": False}] * 2}, "not_trainable", "not trainable"),
    ],
)
def test_what_was_not_sampled_as_recorded_is_left_out_under_a_reason(
    changes: dict[str, Any], reason: str, says: str
) -> None:
    batch = make_batch([_group(**changes)], LIMITS)
    assert batch.left_out[reason] >= 1
    assert len(batch.samples) + batch.left_out.total() == 2
    assert says in batch.complaints[reason]


def test_too_long_sequence_is_left_out_whole_but_keeps_its_place_in_the_baseline() -> None:
    group = _group()
    group["tokens"][0] += [7] * 7
    group["masks"][0] += [7] * 7
    group["inference_logprobs"][0] += [-1.0] * 7
    batch = make_batch([group], LIMITS)
    assert batch.left_out == {"too_long": 1}
    assert "--seq-len 10" in batch.complaints["too_long"]
    (kept,) = batch.samples
    assert kept.advantages == [-1.0] * 4
    assert make_batch([group], BatchLimits(0, 100)).left_out.total() == 0


def test_ids_of_another_tokenizer_are_left_out() -> None:
    batch = make_batch([_group()], BatchLimits(10, vocab_size=9))
    assert batch.left_out == {"out_of_vocabulary": 1}


def test_groups_that_teach_nothing_are_counted() -> None:
    batch = make_batch([_group(scores=[0.5, 0.5]), _group()], LIMITS)
    assert (batch.groups, batch.equal_groups) == (2, 1)
