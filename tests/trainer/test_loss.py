"""The losses against numbers worked out by hand, and the direction of every gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.loss import ClipRange, clipped_policy_loss, distillation_loss, reference_kl

ON = torch.tensor([[True]])


def _gradient(ratio: float, advantage: float, clip: ClipRange | None = None) -> float:
    """d loss / d logprob of one token sampled at logprob -1, whose probability has changed by ``ratio``."""
    logprobs = torch.tensor([[-1.0 + math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    old, advantages = torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[advantage]], dtype=torch.float64)
    clipped_policy_loss(logprobs, old, advantages, ON, clip or ClipRange()).loss.backward()
    assert logprobs.grad is not None
    return float(logprobs.grad)


def test_loss_of_three_tokens_is_the_one_worked_out_by_hand() -> None:
    ratios, advantages = [1.0, 1.5, 0.5], [2.0, 1.0, -1.0]
    result = clipped_policy_loss(
        torch.tensor([[math.log(r) - 1 for r in ratios]]),
        torch.full((1, 3), -1.0),
        torch.tensor([advantages]),
        torch.ones(1, 3, dtype=torch.bool),
        ClipRange(0.2, 0.2),
    )
    # 1 * 2 = 2; min(1.5, 1.2) * 1 = 1.2; min(0.5 * -1, 0.8 * -1) = -0.8
    assert float(result.loss) == pytest.approx(-(2.0 + 1.2 - 0.8))
    assert result.clipped == 2
    assert result.ratio == pytest.approx(3.0)
    assert result.max_abs_log_ratio == pytest.approx(math.log(2))


def test_bad_token_that_became_likelier_is_still_pushed_down() -> None:
    assert _gradient(ratio=2.0, advantage=-1.0) == pytest.approx(2.0)


@pytest.mark.parametrize(("ratio", "advantage"), [(2.0, 1.0), (0.5, -1.0), (1.3, 0.1), (0.7, -3.0)])
def test_token_that_moved_far_enough_in_the_right_direction_is_left_alone(ratio: float, advantage: float) -> None:
    assert _gradient(ratio, advantage) == 0.0


@pytest.mark.parametrize(("ratio", "advantage"), [(0.5, 1.0), (2.0, -1.0), (1.0, 1.0), (1.0, -1.0), (1.1, 2.0)])
def test_token_that_has_not_is_moved_by_ratio_times_advantage(ratio: float, advantage: float) -> None:
    assert _gradient(ratio, advantage) == pytest.approx(-ratio * advantage)


@given(ratio=st.floats(0.05, 20.0), advantage=st.floats(-5.0, 5.0).filter(lambda a: abs(a) > 1e-3))
def test_gradient_never_points_away_from_the_advantage(ratio: float, advantage: float) -> None:
    gradient = _gradient(ratio, advantage)
    assert gradient * advantage <= 0
    moved_enough = ratio > 1.2 if advantage > 0 else ratio < 0.8
    assert (gradient == 0) == moved_enough


def test_upper_bound_of_the_clip_may_be_another_than_the_lower() -> None:
    assert _gradient(1.25, 1.0, ClipRange(0.2, 0.28)) == pytest.approx(-1.25)
    assert _gradient(1.25, 1.0, ClipRange(0.2, 0.2)) == 0.0
    assert _gradient(0.75, -1.0, ClipRange(0.2, 0.28)) == 0.0


def test_masked_tokens_change_neither_value_nor_gradient_whatever_stands_there() -> None:
    logprobs = torch.tensor([[-1.0, -50.0, -2.0]], requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    sampled = torch.tensor([[-1.0, 1.0, -2.0]])  # 1.0 is what the wire puts where nothing was sampled
    advantages = torch.tensor([[1.0, math.nan, 1.0]])
    result = clipped_policy_loss(logprobs, sampled, advantages, mask, ClipRange())
    result.loss.backward()
    assert float(result.loss.detach()) == pytest.approx(-2.0)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.0, 0.0, -1.0]]


def test_all_gradients_agree_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 5)
    logprobs = (-torch.rand(shape, generator=generator, dtype=torch.float64) * 3).requires_grad_()
    sampled = logprobs.detach() + 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
    advantages = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) > 0.3
    teacher = torch.log_softmax(torch.randn(*shape, 4, generator=generator, dtype=torch.float64), -1)
    students = torch.randn(*shape, 4, generator=generator, dtype=torch.float64).requires_grad_()

    assert torch.autograd.gradcheck(
        lambda new: clipped_policy_loss(new, sampled, advantages, mask, ClipRange()).loss, (logprobs,)
    )
    assert torch.autograd.gradcheck(lambda new: reference_kl(new, sampled, mask), (logprobs,))
    assert torch.autograd.gradcheck(lambda new: distillation_loss(new, teacher, mask), (students,))


def test_kl_to_the_reference_is_zero_on_it_and_as_computed_elsewhere() -> None:
    assert float(reference_kl(torch.tensor([[-1.0]]), torch.tensor([[-1.0]]), ON)) == 0.0
    expected = math.exp(-0.5) + 0.5 - 1
    assert float(reference_kl(torch.tensor([[-1.0]]), torch.tensor([[-1.5]]), ON)) == pytest.approx(expected)


@given(new=st.floats(-20, 0), ref=st.floats(-20, 0))
def test_kl_to_the_reference_is_never_negative(new: float, ref: float) -> None:
    assert float(reference_kl(torch.tensor([[new]]), torch.tensor([[ref]]), ON)) >= -1e-6


def test_distillation_is_the_forward_kl_over_the_alternatives_given() -> None:
    teacher = torch.tensor([[[math.log(0.75), math.log(0.25), -math.inf]]])
    student = torch.tensor([[[math.log(0.5), math.log(0.4), math.log(0.1)]]], requires_grad=True)
    loss = distillation_loss(student, teacher, ON)
    assert float(loss.detach()) == pytest.approx(0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.4))
    loss.backward()
    assert student.grad is not None
    assert student.grad[0, 0].tolist() == pytest.approx([-0.75, -0.25, 0.0])
