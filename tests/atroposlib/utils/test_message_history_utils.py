"""Histories are made to fit."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.utils.message_history_utils import ensure_trajectory_token_limit, strip_thinking, truncate_thinking
from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
from tests.atroposlib.utils.chatml import chatml_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return chatml_tokenizer()


def test_thoughts_are_stripped():
    assert strip_thinking("a<think>b</think>c") == "ac"
    assert strip_thinking("a<think>b") == "a<think>b"
    assert strip_thinking("a</think>b<think>c") == "a</think>b<think>c"


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("<think>short</think>done", 5, "<think>\nshort\n</think>done"),
        ("<think>one\n\ntwo</think>done", 4, "<think>\n... two\n</think>done"),
        ("<think>abcdefgh</think>done", 3, "<think>\n... fgh\n</think>done"),
        ("<think>abcdefgh</think>done", 0, "<think></think>done"),
        ("<think> \n </think>done", 9, "<think></think>done"),
        ("no thoughts", 1, "no thoughts"),
    ],
)
def test_thoughts_are_cut_to_their_end(tokenizer, text, limit, expected):
    assert truncate_thinking(text, tokenizer, limit) == expected


def step(tokenizer: Any, turns: int, answer: str = "last") -> dict[str, Any]:
    history = [
        message
        for i in range(turns)
        for message in ({"role": "environment", "content": f"see {i}"}, {"role": "agent", "content": f"do {i}"})
    ]
    chat = [
        {"role": "system", "content": "rules"},
        *history,
        {"role": "environment", "content": "now"},
        {"role": "agent", "content": answer},
    ]
    rendered = tokenize_for_trainer(tokenizer, chat)
    return {
        "messages": [chat],
        "tokens": [rendered["tokens"]],
        "masks": [rendered["masks"]],
        "scores": [1.0],
        "seed": 7,
        "inference_logprobs": [[0.0] * len(rendered["tokens"])],
    }


def test_the_oldest_turns_go_in_pairs(tokenizer):
    whole = step(tokenizer, turns=3)
    limit = len(whole["tokens"][0]) - 1
    (short,) = ensure_trajectory_token_limit([whole], tokenizer, limit)
    assert [message["content"] for message in short["messages"][0]] == [
        "rules",
        "see 1",
        "do 1",
        "see 2",
        "do 2",
        "now",
        "last",
    ]
    assert len(short["tokens"][0]) == len(short["masks"][0]) <= limit
    assert (short["scores"], short["seed"]) == ([1.0], 7)
    assert "inference_logprobs" not in short


def test_a_step_that_fits_stays_as_it_is(tokenizer):
    whole = step(tokenizer, turns=1)
    assert ensure_trajectory_token_limit([whole], tokenizer, 10_000) == [whole]


def test_a_step_that_cannot_fit_is_left_out(tokenizer):
    assert ensure_trajectory_token_limit([step(tokenizer, turns=2), {"scores": []}], tokenizer, 10) == []
