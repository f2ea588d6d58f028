"""Conversations become tokens and masks, whatever form a tokenizer answers in."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer, tokenize_for_trainer_dpo
from tests.atroposlib.utils.chatml import OneAnswerForm, chatml_tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What's 1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2+2?"},
    {"role": "assistant", "content": "4 é"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return chatml_tokenizer()


def trained_text(tokenizer: Any, result: dict[str, Any]) -> list[str]:
    """The spans that are trained on, as text; also checks that masks repeat tokens."""
    spans, span = [], []
    for token, mask in zip(result["tokens"], result["masks"], strict=True):
        assert mask in (-100, token)
        if mask == -100 and span:
            spans.append(tokenizer.decode(span))
            span = []
        elif mask != -100:
            span.append(token)
    return [*spans, tokenizer.decode(span)] if span else spans


@pytest.mark.parametrize("form", ["list", "dict", "array", "batch"])
def test_tokens_are_the_template_and_masks_the_last_answer(tokenizer, form):
    result = tokenize_for_trainer(OneAnswerForm(tokenizer, form), CHAT)
    assert tokenizer.decode(result["tokens"]) == tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert type(result["tokens"]) is type(result["masks"]) is list
    assert trained_text(tokenizer, result) == ["4 é<|im_end|>\n"]


def test_the_tokenizer_of_the_installed_transformers_needs_no_preparation(tokenizer):
    assert trained_text(tokenizer, tokenize_for_trainer(tokenizer, CHAT)) == ["4 é<|im_end|>\n"]


def test_all_answers_can_be_trained_on(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT, train_on_all_assistant_turns=True)
    assert trained_text(tokenizer, result) == ["2<|im_end|>\n", "4 é<|im_end|>\n"]


GREETED = [{"role": "assistant", "content": "Hi! assistant\n?"}, *CHAT[1:]]
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "a system prompt of its own": "<|im_start|>system\nBe kind.<|im_end|>\n"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "a prompt that opens thoughts": "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
    "no generation prompt": "{% for m in messages %}{{ '[Q]' if m.role == 'user' }}"
    "{{ m.content }}<|im_end|>\n{% endfor %}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_conversation_may_begin_with_an_answer(template):
    tokenizer = chatml_tokenizer(template)
    first, *_ = trained_text(tokenizer, tokenize_for_trainer(tokenizer, GREETED, train_on_all_assistant_turns=True))
    assert first == "Hi! assistant\n?<|im_end|>\n"
    assert trained_text(tokenizer, tokenize_for_trainer(tokenizer, GREETED[:1])) == [first]


def test_an_answer_that_was_cut_off_ends_without_an_end_of_turn(tokenizer):
    result = tokenize_for_trainer(tokenizer, CHAT, finish_reason="length")
    assert trained_text(tokenizer, result) == ["4 é"]
    assert tokenizer.decode(result["tokens"]).endswith("4 é")


def test_a_template_that_closes_nothing_loses_nothing_when_cut_off():
    tokenizer = chatml_tokenizer("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    result = tokenize_for_trainer(tokenizer, CHAT, finish_reason="length")
    assert tokenizer.decode(result["tokens"]).endswith("assistant: 4 é\n")


def test_a_generation_prompt_that_says_more_than_the_answer_shifts_no_mask():
    opening = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer = chatml_tokenizer(opening + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}")
    assert trained_text(tokenizer, tokenize_for_trainer(tokenizer, CHAT)) == ["4 é<|im_end|>\n"]


def test_an_answer_that_the_template_rewrites_later_is_not_trained_on():
    drops_thoughts = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = chatml_tokenizer(drops_thoughts)
    chat = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "<think>hm</think>old"},
        {"role": "user", "content": "r"},
        {"role": "assistant", "content": "<think>oh</think>new"},
    ]
    result = tokenize_for_trainer(tokenizer, chat, train_on_all_assistant_turns=True)
    assert trained_text(tokenizer, result) == ["<think>oh</think>new<|im_end|>\n"]


def test_messages_are_included_where_asked(tokenizer):
    assert tokenize_for_trainer(tokenizer, CHAT, include_messages=True)["messages"] is CHAT
    assert "messages" not in tokenize_for_trainer(tokenizer, CHAT)


PAIR = {"prompt": "Hi?", "chosen": "Hello!", "rejected": "No."}


def test_a_preference_pair_of_texts_becomes_two_conversations(tokenizer):
    result = tokenize_for_trainer_dpo(tokenizer, PAIR, max_length=512)
    for key in ("chosen", "rejected"):
        ids, labels = result[f"{key}_input_ids"], result[f"{key}_labels"]
        assert trained_text(tokenizer, {"tokens": ids, "masks": labels}) == [f"{PAIR[key]}<|im_end|>\n"]
        assert result[f"{key}_attention_mask"] == [1] * len(ids)
        assert ids[: len(result["prompt_input_ids"])] == result["prompt_input_ids"]
    assert {key: result[key] for key in PAIR} == PAIR


def test_a_preference_pair_may_begin_with_messages(tokenizer):
    result = tokenize_for_trainer_dpo(tokenizer, {**PAIR, "prompt": CHAT[:2]})
    assert tokenizer.decode(result["prompt_input_ids"]).endswith("1+1?<|im_end|>\n<|im_start|>assistant\n")


def test_a_preference_pair_without_a_template_is_joined_as_it_stands():
    tokenizer = chatml_tokenizer(template="")
    result = tokenize_for_trainer_dpo(tokenizer, PAIR)
    assert tokenizer.decode(result["chosen_input_ids"]) == "Hi?Hello!<|im_end|>"
    assert trained_text(tokenizer, {"tokens": result["chosen_input_ids"], "masks": result["chosen_labels"]}) == [
        "Hello!<|im_end|>"
    ]


def test_a_preference_pair_is_cut_at_its_limit(tokenizer):
    result = tokenize_for_trainer_dpo(tokenizer, PAIR, max_length=5)
    lengths = {key: len(value) for key, value in result.items() if key.startswith(("chosen_", "rejected_"))}
    assert set(lengths.values()) == {5}
