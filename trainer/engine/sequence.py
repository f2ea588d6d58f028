"""One completion in the making: its tokens, its logprobs, and when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from trainer.engine.sampling import Draw, SamplingParams

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class VersionSpan:
    """Output tokens ``[start, end)`` were sampled with the weights called ``version``."""

    version: str
    start: int
    end: int


@dataclass(frozen=True)
class Completion:
    """A finished sequence. ``token_ids`` holds what ended it too: the end token, or the whole stop string."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    stop_reason: int | str | None
    """The stop token or string that ended it; None for the end of the sequence, as in vLLM."""
    versions: tuple[VersionSpan, ...]
    top_logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float] | None] | None = None
    text: str | None = None
    """The text as far as a stop string let it go; None where no stop string ended it: then all tokens count."""


@dataclass
class _StopStrings:
    """Decodes as tokens come and finds the first stop string."""

    stops: tuple[str, ...]
    tokenizer: Tokenizer
    stream: DecodeStream
    text: str = ""

    def feed(self, token_id: int) -> tuple[str, str] | None:
        """The stop string that this token completed, and the text before it."""
        piece = self.stream.step(self.tokenizer, token_id)
        if not piece:
            return None
        searched_from = max(0, len(self.text) - max(map(len, self.stops)) + 1)
        self.text += piece
        found = [(self.text.find(stop, searched_from), stop) for stop in self.stops]
        hits = [(start, stop) for start, stop in found if start >= 0]
        if not hits:
            return None
        start, stop = min(hits)
        return stop, self.text[:start]


@dataclass(eq=False)
class Sequence:
    """A request for one completion, from the waiting line to its end. Owned by the engine's thread once submitted."""

    prompt: list[int]
    params: SamplingParams
    end_ids: frozenset[int]
    tokenizer: Tokenizer | None = None
    """Needed for stop strings only."""
    future: Future[Completion] = field(default_factory=Future)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, float] | None] | None = None
    generator: torch.Generator | None = None
    _spans: list[VersionSpan] = field(default_factory=list)
    _watch: _StopStrings | None = None

    def __post_init__(self) -> None:
        if self.params.stop and self.tokenizer is not None:
            stream = DecodeStream(skip_special_tokens=self.params.skip_special_tokens)
            self._watch = _StopStrings(self.params.stop, self.tokenizer, stream)

    @property
    def all_ids(self) -> list[int]:
        return self.prompt + self.token_ids

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.token_ids)

    @property
    def ended(self) -> bool:
        """Whether it is finished, has failed, or whoever asked for it went away."""
        return self.future.done()

    def append(self, drawn: Draw, row: int, version: str) -> None:
        """Take the token drawn for ``row``; finishes the sequence where it ends it."""
        token_id = drawn.ids[row]
        self.token_ids.append(token_id)
        self.logprobs.append(drawn.logprobs[row])
        if self.params.top_logprobs:
            self.top_logprobs.append(drawn.top(row, self.params.top_logprobs))
        self._stamp(version)
        self._finish_if_ended(token_id)

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None, text: str | None = None) -> None:
        completion = Completion(
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish_reason=reason,
            stop_reason=stop_reason,
            versions=tuple(self._spans),
            top_logprobs=self.top_logprobs if self.params.top_logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
            text=text,
        )
        if not self.ended and self.future.set_running_or_notify_cancel():
            self.future.set_result(completion)

    def fail(self, error: Exception) -> None:
        if not self.ended and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _stamp(self, version: str) -> None:
        count = len(self.token_ids)
        if self._spans and self._spans[-1].version == version:
            self._spans[-1] = VersionSpan(version, self._spans[-1].start, count)
        else:
            self._spans.append(VersionSpan(version, count - 1, count))

    def _finish_if_ended(self, token_id: int) -> None:
        if not self.params.ignore_eos and token_id in self.end_ids:
            self.finish("stop")
        elif token_id in self.params.stop_token_ids:
            self.finish("stop", stop_reason=token_id)
        elif (hit := self._watch.feed(token_id) if self._watch else None) is not None:
            stop, text = hit
            self.finish("stop", stop_reason=stop, text=text + stop * self.params.include_stop_str_in_output)
        elif len(self.token_ids) >= self.params.max_tokens:
            self.finish("length")


def longest_common_prefix(a: list[int], b: list[int]) -> int:
    """How many tokens two lists share from the start; slices compare in C, so a binary search beats a loop."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low


def end_token_ids(*sources: int | Iterable[int] | None) -> frozenset[int]:
    """All ids that end a sequence, from configs that name one, several or none."""
    ids: set[int] = set()
    for source in sources:
        if isinstance(source, int):
            ids.add(source)
        elif source is not None:
            ids.update(source)
    return frozenset(ids)
