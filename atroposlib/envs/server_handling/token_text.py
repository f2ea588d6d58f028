"""Ids ↔ text of one tokenizer, exactly: nothing is added, nothing left out, special tokens known by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any


class TokenText:
    """Encodes and decodes with a Hugging Face tokenizer, or one with its methods. Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # a fast tokenizer's own methods set truncation and padding first, which threads must not do at once
        self._backend = getattr(tokenizer, "backend_tokenizer", None) if getattr(tokenizer, "is_fast", False) else None

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text. Special tokens written in it become their ids; none are added."""
        text = text.encode("utf-8", "replace").decode() if _has_surrogate(text) else text
        if self._backend is not None:
            # the quick one leaves out offsets, which nobody reads
            (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
            ids: list[int] = encoded.ids
            return ids
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a bare prompt, with the mark that the tokenizer puts at the beginning of a text, once."""
        bos = getattr(self._tokenizer, "bos_token", None)
        if bos and text.startswith(bos):
            return self.encode(text)
        return list(self._tokenizer.encode(text, add_special_tokens=True))

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Text of ids, exactly, or without special tokens."""
        if self._backend is not None:
            text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
            return text
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special))

    @cached_property
    def vocabulary(self) -> int | None:
        """Number of ids, where the tokenizer says so."""
        try:
            return len(self._tokenizer)
        except TypeError:
            return None

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of all special tokens: those that can end a turn are among them."""
        added = getattr(self._tokenizer, "added_tokens_decoder", {}) or {}
        return frozenset(self._tokenizer.all_special_ids) | {n for n, token in added.items() if token.special}

    def end_token(self, ids: Sequence[int]) -> str | None:
        """The special token that an answer ended in, or ``None``."""
        return self.decode(ids[-1:]) if ids and ids[-1] in self.special_ids else None

    def without_end_token(self, ids: Sequence[int]) -> Sequence[int]:
        """The ids of an answer without the special token that ended it, if one did."""
        return ids[:-1] if ids and ids[-1] in self.special_ids else ids

    def leading_special(self, text: str) -> str:
        """The special token that a text begins with, and blanks before it; empty if there is none."""
        found = self._specials.match(text, len(text) - len(text.lstrip()))
        return text[: found.end()] if found else ""

    def from_last_special(self, text: str) -> str:
        """The end of a text from its last special token on; empty if there is none."""
        starts = [found.start() for found in self._specials.finditer(text)]
        return text[starts[-1] :] if starts else ""

    def specials_in(self, text: str) -> set[str]:
        """The special tokens that stand in a text."""
        return set(self._specials.findall(text))

    @cached_property
    def _specials(self) -> re.Pattern[str]:
        texts = {self.decode([number]) for number in self.special_ids} - {""}
        longest_first = sorted(texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _has_surrogate(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
