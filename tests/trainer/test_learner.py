"""From samples to a changed policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.trainer.tiny_model import make_model
from trainer.batches import Sample, TrainingBatch
from trainer.learner import Learner, LearnerSettings
from trainer.loss import ClipRange
from trainer.microbatches import score, stack

CPU = torch.device("cpu")


def _logprobs(model: torch.nn.Module, tokens: Sequence[int], temperature: float = 1.0) -> list[float]:
    """One per token by the plainest route; 0.0 for the first."""
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0, :-1] / temperature
    return [0.0, *torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()]


def _sample(model: torch.nn.Module, tokens: list[int], trained_from: int, advantage: float, **extra: Any) -> Sample:
    trained = [index >= trained_from for index in range(len(tokens))]
    return Sample(tokens, trained, _logprobs(model, tokens), [advantage] * len(tokens), **extra)


def _batch(*samples: Sample) -> TrainingBatch:
    return TrainingBatch(samples=list(samples), rollout_scores=[0.0], groups=1)


def test_scores_of_padded_rows_are_those_of_the_model_alone() -> None:
    model = make_model()
    rows = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [5, 9]]
    micro = stack([_sample(model, row, 1, 1.0) for row in rows], CPU)
    with torch.no_grad():
        scores = score(model, micro)
    for b, row in enumerate(rows):
        assert scores.logprobs_B_T[b, : len(row) - 1].tolist() == pytest.approx(_logprobs(model, row)[1:], abs=1e-5)
    assert micro.mask_B_T.sum(dim=1).tolist() == [5, 2, 1]


def test_scores_at_temperature_divide_the_logits() -> None:
    model = make_model()
    samples = [_sample(model, [5, 6, 7], 1, 1.0, temperature=0.5), _sample(model, [5, 6, 8], 1, 1.0)]
    with torch.no_grad():
        scores = score(model, stack(samples, CPU), at_temperature=True)
    assert scores.logprobs_B_T[0].tolist() == pytest.approx(_logprobs(model, [5, 6, 7], 0.5)[1:], abs=1e-5)
    assert scores.logprobs_B_T[1].tolist() == pytest.approx(_logprobs(model, [5, 6, 8])[1:], abs=1e-5)


def test_scores_of_a_teachers_alternatives_stand_at_their_positions() -> None:
    model = make_model()
    extra = {"distill_token_ids": [[], [], [9, 4], [3]], "distill_logprobs": [[], [], [-0.1, -3.0], [-0.2]]}
    micro = stack([_sample(model, [5, 6, 7, 8], 2, 1.0, **extra), _sample(model, [5, 6, 7], 1, 1.0)], CPU)
    with torch.no_grad():
        found = score(model, micro).alternatives_B_T_K
        expected = torch.log_softmax(model(torch.tensor([[5, 6, 7, 8]])).logits[0], -1)
    assert found is not None
    assert found[0, 1].tolist() == pytest.approx(expected[1, [9, 4]].tolist(), abs=1e-5)
    assert float(found[0, 2, 0]) == pytest.approx(float(expected[2, 3]), abs=1e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_update_moves_a_token_in_the_direction_of_its_advantage(advantage: float) -> None:
    model = make_model()
    learner = Learner(model, LearnerSettings(lr=1e-3))
    sample = _sample(model, [5, 6, 7, 8], 2, advantage)
    before = sum(_logprobs(model, sample.tokens)[2:])
    metrics = learner.update(_batch(sample), step=0)
    moved = sum(_logprobs(model, sample.tokens)[2:]) - before
    assert moved * advantage > 0
    assert metrics["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["max_abs_log_ratio"] < 1e-5
    assert metrics["loss"] == pytest.approx(-advantage, abs=1e-5)


def test_each_token_follows_its_own_advantage() -> None:
    model = make_model()
    tokens = [5, 6, 7, 8]
    sample = Sample(tokens, [False, True, True, True], _logprobs(model, tokens), [0.0, 2.0, 0.0, -2.0])
    before = _logprobs(model, tokens)
    learner = Learner(model, LearnerSettings(lr=1e-3))
    for _ in range(3):
        learner.update(_batch(sample), step=0)
    after = _logprobs(model, tokens)
    assert after[1] > before[1]
    assert after[3] < before[3]


def _weights_after_one_update(size: int) -> dict[str, torch.Tensor]:
    model = make_model()
    rows = [([5, 6, 7, 8, 9], 2, 1.0), ([5, 6, 7], 1, -0.5), ([9, 8, 7, 6], 3, 0.3), ([4, 4], 1, -2.0)]
    batch = _batch(*(_sample(model, *row) for row in rows))
    # plain gradient descent, so that the weights show the gradient itself
    learner = Learner(model, LearnerSettings(micro_batch_size=size))
    learner.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner.update(batch, step=0)
    return model.state_dict()


def test_how_a_batch_is_cut_into_micro_batches_changes_nothing() -> None:
    whole = _weights_after_one_update(4)
    for size in (1, 3):
        torch.testing.assert_close(_weights_after_one_update(size), whole, atol=1e-6, rtol=1e-5)


def test_batch_without_gradient_leaves_the_weights_to_no_momentum() -> None:
    model = make_model()
    learner = Learner(model, LearnerSettings(lr=1e-2))
    learner.update(_batch(_sample(model, [5, 6, 7], 1, 1.0)), step=0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert learner.update(_batch(_sample(model, [5, 6, 7], 1, 0.0)), step=1) == {"skipped": 1.0}
    torch.testing.assert_close(model.state_dict(), before)


def test_several_epochs_on_one_batch_reach_the_clip() -> None:
    model = make_model()
    learner = Learner(model, LearnerSettings(lr=2e-2, epochs=6, clip=ClipRange(0.1, 0.1)))
    metrics = learner.update(_batch(_sample(model, [5, 6, 7, 8], 1, 1.0)), step=0)
    assert metrics["clip_fraction"] > 0
    assert metrics["max_abs_log_ratio"] < 1e-5  # that of the policy before it changed


def test_warmup_raises_the_learning_rate_step_by_step() -> None:
    model = make_model()
    learner = Learner(model, LearnerSettings(lr=1.0, warmup_steps=4))
    batch = _batch(_sample(model, [5, 6], 1, 1.0))
    assert [learner.update(batch, step)["lr"] for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_kl_to_the_reference_pulls_towards_it() -> None:
    model, tokens = make_model(), [5, 6, 7]
    far = [value - 1.0 for value in _logprobs(model, tokens)]
    sample = _sample(model, tokens, 1, 0.0, ref_logprobs=far)
    before = sum(_logprobs(model, tokens))
    metrics = Learner(model, LearnerSettings(lr=1e-3, kl_coef=0.1)).update(_batch(sample), step=0)
    assert metrics["reference_kl"] == pytest.approx(math.exp(-1) + 1 - 1, abs=1e-4)
    assert sum(_logprobs(model, tokens)) < before


def test_teacher_pulls_towards_its_alternatives_without_any_advantage() -> None:
    model, tokens = make_model(), [5, 6, 7]
    extra = {"distill_token_ids": [[], [6], [9]], "distill_logprobs": [[], [-0.01], [-0.01]]}
    sample = _sample(model, tokens, 1, 0.0, **extra)
    with torch.no_grad():
        before = torch.log_softmax(model(torch.tensor([tokens])).logits[0, 1], -1)[9]
    Learner(model, LearnerSettings(lr=1e-3)).update(_batch(sample), step=0)
    with torch.no_grad():
        assert torch.log_softmax(model(torch.tensor([tokens])).logits[0, 1], -1)[9] > before


def test_gradient_that_is_not_finite_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    sample = Sample([5, 6], [False, True], [0.0, -500.0], [-1e30, -1e30])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    Learner(model, LearnerSettings(lr=1.0)).update(_batch(sample), step=0)
    torch.testing.assert_close(model.state_dict(), before)
    assert "not finite" in caplog.text


def test_bfloat16_computes_in_half_the_digits_and_keeps_the_weights_whole() -> None:
    model = make_model()
    learner = Learner(model, LearnerSettings(lr=1e-3, autocast=torch.bfloat16))
    sample = _sample(model, [5, 6, 7, 8], 2, 1.0)
    before = sum(_logprobs(model, sample.tokens)[2:])
    learner.update(_batch(sample), step=0)
    assert sum(_logprobs(model, sample.tokens)[2:]) > before
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert 0 < learner.largest_gap(_sample(model, [5, 6, 7, 8], 2, 1.0)) < 0.2
