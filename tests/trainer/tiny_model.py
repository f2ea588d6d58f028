"""A random model of two layers with a tokenizer of bytes: engine and trainer tests need no shipped weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests import byte_tokenizer

CONTEXT = 512


def make_tokenizer() -> PreTrainedTokenizerFast:
    """With the marks of tool calls as tokens of their own."""
    return byte_tokenizer.make_tokenizer("<tool_call>", "</tool_call>")


def make_model(*, seed: int = 0, tied: bool = False, vocab_size: int = 261, head_size: int = 16) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=2 * head_size,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config).eval()


def save_policy(folder: Path, *, seed: int = 0, tied: bool = False) -> Path:
    """A folder as ``--model`` takes it."""
    make_model(seed=seed, tied=tied).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder
