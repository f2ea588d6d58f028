"""The batch must never change what a sequence is: same logprobs as the model alone, whoever joins or leaves."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.tiny_model import make_model
from trainer.engine.sampler import BatchSampler
from trainer.engine.sampling import SamplingParams
from trainer.engine.sequence import Completion, Sequence

END = frozenset({2})
MODEL = make_model()


def _sequence(prompt: list[int], **params: object) -> Sequence:
    return Sequence(prompt, SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **params}), END)


def _run(sampler: BatchSampler, *sequences: Sequence) -> list[Completion]:
    sampler.waiting.extend(sequences)
    while sampler.busy:
        sampler.step()
    return [sequence.future.result(timeout=0) for sequence in sequences]


def _model_logprobs(model: torch.nn.Module, prompt: list[int], output: list[int]) -> list[float]:
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.float(), -1)
    return logprobs.gather(1, torch.tensor(output)[:, None])[:, 0].tolist()


def _widths_of_passes(model: torch.nn.Module) -> list[tuple[int, int]]:
    """Rows and new tokens of every pass over the cache from here on."""
    shapes: list[tuple[int, int]] = []

    def note(_module: object, _args: object, call: dict[str, Any]) -> None:
        if call.get("use_cache"):
            shapes.append(tuple(call["input_ids"].shape))

    model.register_forward_pre_hook(note, with_kwargs=True)
    return shapes


def _random_prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, 261) for _ in range(length)]


def test_logprobs_are_those_of_the_model_alone_for_prompts_of_all_lengths() -> None:
    model, rng = make_model(), random.Random(0)
    sampler = BatchSampler(model, seed=0)
    sequences = [_sequence(_random_prompt(rng, length), max_tokens=5 + length % 7) for length in range(1, 60, 3)]
    for sequence, done in zip(sequences, _run(sampler, *sequences), strict=True):
        assert done.logprobs == pytest.approx(_model_logprobs(model, sequence.prompt, done.token_ids), abs=2e-5)
        assert len(done.token_ids) == sequence.params.max_tokens


def test_sequences_that_join_in_mid_run_get_and_cause_no_change() -> None:
    model, rng = make_model(), random.Random(1)
    sampler = BatchSampler(model, max_rows=4, seed=0)
    sequences = [_sequence(_random_prompt(rng, 5 + i), max_tokens=3 + i) for i in range(12)]
    for sequence in sequences:
        sampler.waiting.append(sequence)
        sampler.step()
        assert sampler.active_count <= 4
    while sampler.busy:
        sampler.step()
    for sequence in sequences:
        done = sequence.future.result(timeout=0)
        assert done.logprobs == pytest.approx(_model_logprobs(model, sequence.prompt, done.token_ids), abs=2e-5)


def test_next_turn_of_a_conversation_reuses_the_prefix_and_stays_exact() -> None:
    model, rng = make_model(), random.Random(2)
    sampler = BatchSampler(model, seed=0)
    passes = _widths_of_passes(model)
    prompt = _random_prompt(rng, 100)
    for _ in range(3):
        sequence = _sequence(prompt)
        (done,) = _run(sampler, sequence)
        assert done.logprobs == pytest.approx(_model_logprobs(model, prompt, done.token_ids), abs=2e-5)
        prompt = prompt + done.token_ids + _random_prompt(rng, 10)
    prefills = [width for _, width in passes if width > 1]
    assert prefills == [100, 11, 11]  # the second and third turn compute what is new, and the last sampled token


def test_many_samples_of_one_prompt_compute_it_once() -> None:
    model = make_model()
    sampler = BatchSampler(model, seed=0)
    passes = _widths_of_passes(model)
    prompt = _random_prompt(random.Random(3), 64)
    sequences = [_sequence(prompt, max_tokens=4) for _ in range(8)]
    outputs = _run(sampler, *sequences)
    assert passes[:2] == [(1, 64), (7, 1)]
    assert len({tuple(done.token_ids) for done in outputs}) > 1
    for done in outputs:
        assert done.logprobs == pytest.approx(_model_logprobs(model, prompt, done.token_ids), abs=2e-5)


def test_memory_for_few_rows_is_shared_by_giving_rows_back() -> None:
    model, rng = make_model(), random.Random(4)
    sampler = BatchSampler(model, max_rows=8, cache_bytes=600 * 256, seed=0)
    assert not sampler.fits_alone(700)
    sequences = [_sequence(_random_prompt(rng, 100), max_tokens=60) for _ in range(8)]
    for sequence, done in zip(sequences, _run(sampler, *sequences), strict=True):
        assert len(done.token_ids) == 60
        assert done.logprobs == pytest.approx(_model_logprobs(model, sequence.prompt, done.token_ids), abs=2e-5)


def test_new_weights_apply_to_running_sequences_from_the_next_token() -> None:
    old, new = make_model(seed=0), make_model(seed=1)
    serving = make_model(seed=0)
    sampler = BatchSampler(serving, seed=0)
    sequence = _sequence([5, 6, 7, 8], max_tokens=10)
    sampler.waiting.append(sequence)
    for _ in range(3):
        sampler.step()
    serving.load_state_dict(new.state_dict())
    sampler.forget()
    sampler.version = "1"
    while sampler.busy:
        sampler.step()
    done = sequence.future.result(timeout=0)
    split = done.versions[0].end
    assert [(span.version, span.start, span.end) for span in done.versions] == [("0", 0, split), ("1", split, 10)]
    before = _model_logprobs(old, sequence.prompt, done.token_ids)[:split]
    after = _model_logprobs(new, sequence.prompt, done.token_ids)[split:]
    assert done.logprobs == pytest.approx(before + after, abs=2e-5)


def test_greedy_takes_the_likeliest_token_and_reports_its_raw_logprob() -> None:
    model = make_model()
    (done,) = _run(
        BatchSampler(model, mode="processed_logprobs"), _sequence([9, 8, 7], temperature=0.0, top_logprobs=3)
    )
    assert all(next(iter(top)) == token for top, token in zip(done.top_logprobs, done.token_ids, strict=True))
    assert done.logprobs == pytest.approx(_model_logprobs(model, [9, 8, 7], done.token_ids), abs=2e-5)


def test_a_cancelled_sequence_leaves_and_the_others_go_on() -> None:
    sampler = BatchSampler(make_model(), seed=0)
    leaving, staying = _sequence([4, 5], max_tokens=50), _sequence([6, 7], max_tokens=6)
    sampler.waiting.extend([leaving, staying])
    sampler.step()
    leaving.future.cancel()
    sampler.step()
    assert sampler.active_count == 1
    while sampler.busy:
        sampler.step()
    assert len(staying.future.result(timeout=0).token_ids) == 6


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
    cache_tokens=st.integers(256, 1024),
    arrivals=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 80), st.integers(1, 20), st.integers(0, 4), st.booleans()),
        min_size=1,
        max_size=12,
    ),
)
def test_whoever_comes_and_goes_every_logprob_is_the_models_own(
    seed: int, rows: int, cache_tokens: int, arrivals: list[tuple[int, int, int, int, bool]]
) -> None:
    """Prompts that share prefixes arrive between steps, some leave early, rows and memory are scarce."""
    rng = random.Random(seed)
    stems = [_random_prompt(rng, 40) for _ in range(4)]
    sampler = BatchSampler(MODEL, max_rows=rows, cache_bytes=cache_tokens * 256, seed=seed)
    sequences = []
    for stem, extra, wanted, steps, leaves in arrivals:
        sequence = _sequence(stems[stem][: rng.randrange(1, 40)] + _random_prompt(rng, extra), max_tokens=wanted)
        sequences.append(sequence)
        sampler.waiting.append(sequence)
        for _ in range(steps):
            sampler.step()
        if leaves:
            sequence.future.cancel()
    while sampler.busy:
        sampler.step()
    for sequence in sequences:
        if not sequence.future.cancelled():
            done = sequence.future.result(timeout=0)
            assert len(done.token_ids) == sequence.params.max_tokens
            assert done.logprobs == pytest.approx(_model_logprobs(MODEL, sequence.prompt, done.token_ids), abs=2e-5)
