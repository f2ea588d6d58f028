"""How tokens are drawn and which logprobs are reported for them."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.engine.sampling import Draw, SamplingParams, draw

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])) + 3.0  # logits need not be normalised


def _draw(params: SamplingParams, mode: str = "raw_logprobs", count: int = 1, seed: int = 0) -> Draw:
    shared = torch.Generator().manual_seed(seed)
    return draw(LOGITS.expand(count, -1), [params] * count, [None] * count, shared, mode)


def _shares(params: SamplingParams) -> list[float]:
    ids = _draw(params, count=20_000).ids
    return [ids.count(token) / len(ids) for token in range(4)]


def _with(**params: float) -> SamplingParams:
    return SamplingParams(max_tokens=1, **params)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (_with(), [0.5, 0.3, 0.15, 0.05]),
        (_with(top_k=2), [0.625, 0.375, 0.0, 0.0]),
        (_with(top_p=0.8), [0.625, 0.375, 0.0, 0.0]),
        (_with(top_p=0.81), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0]),
        (_with(top_p=0.01), [1.0, 0.0, 0.0, 0.0]),
        (_with(temperature=0.0), [1.0, 0.0, 0.0, 0.0]),
        (_with(temperature=0.5), [p**2 / 0.365 for p in (0.5, 0.3, 0.15, 0.05)]),
    ],
)
def test_tokens_are_drawn_in_the_shares_that_were_asked_for(params: SamplingParams, expected: list[float]) -> None:
    assert _shares(params) == pytest.approx(expected, abs=0.015)


def test_raw_logprobs_ignore_temperature_and_filters() -> None:
    drawn = _draw(_with(temperature=0.3, top_k=1))
    assert drawn.ids == [0]
    assert drawn.logprobs == pytest.approx([math.log(0.5)])


def test_processed_logprobs_are_those_of_the_distribution_that_was_sampled() -> None:
    drawn = _draw(_with(temperature=0.5), "processed_logprobs", count=64)
    expected = torch.log_softmax(LOGITS / 0.5, -1)
    assert drawn.logprobs == pytest.approx([float(expected[token]) for token in drawn.ids], abs=1e-5)
    assert _draw(_with(top_k=1), "processed_logprobs").logprobs == pytest.approx([0.0])


def test_greedy_tokens_are_reported_raw_in_both_modes() -> None:
    for mode in ("raw_logprobs", "processed_logprobs"):
        assert _draw(_with(temperature=0.0), mode).logprobs == pytest.approx([math.log(0.5)])


def test_rows_of_one_batch_are_drawn_each_by_its_own_params() -> None:
    params = [_with(temperature=0.0), _with(top_k=1), _with(temperature=50.0)]
    ids = [
        draw(LOGITS.expand(3, -1), params, [None] * 3, torch.Generator().manual_seed(seed)).ids for seed in range(50)
    ]
    assert {row[0] for row in ids} == {row[1] for row in ids} == {0}
    assert {row[2] for row in ids} == {0, 1, 2, 3}


def test_row_with_a_seed_draws_the_same_whatever_its_neighbours_do() -> None:
    def own_row(neighbours: int) -> list[int]:
        own, shared = torch.Generator().manual_seed(5), torch.Generator().manual_seed(neighbours)
        rows = neighbours + 1
        generators = [None] * neighbours + [own]
        return [draw(LOGITS.expand(rows, -1), [_with()] * rows, generators, shared).ids[-1] for _ in range(20)]

    assert own_row(0) == own_row(3)
    assert len(set(own_row(0))) > 1


def test_alternatives_are_the_likeliest_in_order() -> None:
    assert list(_draw(_with()).top(0, 3)) == [0, 1, 2]
    assert len(_draw(_with()).top(0, 99)) == 4
