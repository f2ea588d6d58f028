"""What an engine tells about the tokens it consumed and sampled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, overload

from atroposlib.errors import NotTokenExact

TokensAndLogprobs = tuple[list[int], list[list[int]], list[list[float | None]], list[str]]
"""Prompt ids; then per completion its ids, its logprobs and its finish reason."""

BROKEN_OFF = frozenset({"abort", "error"})
"""Finish reasons of what the engine, and not the model, ended: it is no answer."""


class Stretch(Protocol):
    """A part of a prompt."""

    ids: list[int]

    @property
    def json(self) -> bytes:
        """The ids as they stand inside a JSON list: ``1,2,3``."""


class PromptIds(Sequence[int]):
    """The ids of a prompt, held in the parts it consists of.

    A turn of a long rollout adds a little to much: what stays is neither copied nor written as JSON anew. As JSON this
    is a list (``encode_json``); who needs a list in Python calls ``tolist``.
    """

    def __init__(self, stretches: Sequence[Stretch], length: int) -> None:
        self._stretches = stretches
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(stretch.ids for stretch in self._stretches)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self.tolist()[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(other) == self._length and self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def tolist(self) -> list[int]:
        """The ids as one list, made anew."""
        ids: list[int] = []
        for stretch in self._stretches:
            ids += stretch.ids
        return ids

    @cached_property
    def json(self) -> bytes:
        """``[1,2,3]``, without blanks."""
        return b"[" + b",".join([stretch.json for stretch in self._stretches if stretch.ids]) + b"]"


@dataclass(frozen=True)
class SampledTokens:
    """One completion: the ids the engine sampled and the logprob of each, as the engine gave them, unchecked."""

    ids: list[int]
    logprobs: list[float | None]
    finish_reason: str
    policy_version: str | None = None
    """The weights that sampled it, where the engine says so; ``"a..b"`` if they changed on the way."""


@dataclass(frozen=True)
class Generation:
    """The answer to one prompt of ids: what was consumed and, per completion, what was sampled."""

    prompt_ids: Sequence[int]
    completions: tuple[SampledTokens, ...]
    prompt_ids_from_engine: bool = True
    """False where the engine does not echo the prompt, so that ``prompt_ids`` is only what was sent."""

    def as_lists(self) -> TokensAndLogprobs:
        """The answer in the shape of ``tokens_and_logprobs_completion``."""
        told = self.completions
        return list(self.prompt_ids), [c.ids for c in told], [c.logprobs for c in told], [c.finish_reason for c in told]

    def first(self, count: int) -> Generation:
        """The answer without choices that nobody asked for."""
        return replace(self, completions=self.completions[:count])

    def check_consumed(self, sent: Sequence[int]) -> None:
        """Raise ``NotTokenExact``, naming the first difference, where the engine consumed other ids than were sent."""
        consumed = self.prompt_ids
        if consumed is sent or list(consumed) == list(sent):
            return
        pairs = enumerate(zip(sent, consumed, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), min(len(sent), len(consumed)))
        raise NotTokenExact(
            f"the engine consumed {len(consumed)} ids where {len(sent)} were sent, other ones from position {first} "
            f"on: {list(consumed[first : first + 5])} instead of {list(sent[first : first + 5])}"
        )


def merge_generations(parts: Sequence[Generation]) -> Generation:
    """One answer that holds the completions of all parts, which were asked for with one prompt.

    Raises: NotTokenExact where they did not consume the same ids.
    """
    first, *others = parts
    for part in others:
        part.check_consumed(first.prompt_ids)
    if not others:
        return first
    completions = tuple(completion for part in parts for completion in part.completions)
    return Generation(first.prompt_ids, completions, all(part.prompt_ids_from_engine for part in parts))


@dataclass(frozen=True)
class EngineFacts:
    """What one probe found out about an engine."""

    token_exact: bool
    """It consumes ids and answers with the ids and logprobs it sampled."""
    reason: str = ""
    """Why it is not token-exact; empty if it is."""
    model_name: str = ""
    max_model_len: int | None = None
    """The longest sequence in tokens, prompt and completion together, where the engine says so."""
    model_root: str = ""
    """The folder or Hub name that the model was loaded from, where the engine says so; its tokenizer is there too."""
    engine: str = ""
    """The dialect that was spoken: ``openai``, ``vllm``, ``sglang``, ``trl`` or ``scripted``."""
