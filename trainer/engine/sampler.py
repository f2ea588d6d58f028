"""Continuous batching: sequences join and leave between the steps of one running batch.

Nothing here knows of threads, HTTP or text.

Promise: every token is drawn from the weights it is stamped with, over keys and values of those same weights. When the
weights change, running sequences give up their rows and are computed again from their own tokens.

Shapes: sequences ``B``, vocabulary ``V``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from trainer.config import LogprobsMode
from trainer.engine.forward import CachedModel
from trainer.engine.rows import SHARED_AT_LEAST, RowTable
from trainer.engine.sampling import draw
from trainer.engine.sequence import Sequence, longest_common_prefix

_TOKENS_PER_PASS = 4096
"""How many prompt tokens one pass may compute, padding included, so that its memory stays bounded."""


@dataclass(frozen=True)
class _Newcomer:
    sequence: Sequence
    ids: list[int]
    cached: int
    """How many of ``ids`` the cache holds already."""


class BatchSampler:
    """Samples many sequences at once from one causal language model. Not for use by two threads at a time."""

    def __init__(
        self,
        model: Any,
        *,
        max_rows: int = 64,
        cache_bytes: int = 1 << 30,
        mode: LogprobsMode = "raw_logprobs",
        seed: int | None = None,
    ) -> None:
        self.version = "0"
        self.waiting: deque[Sequence] = deque()
        self._mode: LogprobsMode = mode
        self._model = CachedModel(model)
        per_token = self._model.cache.bytes_per_token
        self._rows = RowTable(self._model.cache, max_rows=max_rows, max_bytes=cache_bytes, bytes_per_token=per_token)
        self._active: list[Sequence] = []
        self._luck = torch.Generator(device=self._model.device)
        self._luck.manual_seed(seed if seed is not None else torch.seed())

    @property
    def active_count(self) -> int:
        return len(self._active)

    @property
    def busy(self) -> bool:
        return bool(self._active or self.waiting)

    @property
    def longest(self) -> int:
        """How long a sequence the model itself allows."""
        return self._model.longest

    def fits_alone(self, tokens: int) -> bool:
        """Whether one sequence of ``tokens`` tokens can be held at all."""
        return self._rows.fits(1, tokens)

    @torch.inference_mode()
    def step(self) -> None:
        """Let in who waits, then draw one token for every running sequence."""
        self._drop_ended()
        while newcomers := self._next_newcomers():
            self._prefill(newcomers)
            self._drop_ended()
        if self._active:
            self._make_room_for_next_tokens()
            last_tokens = [[sequence.token_ids[-1]] for sequence in self._active]
            lengths = [sequence.length - 1 for sequence in self._active]
            self._advance(0, self._active, last_tokens, lengths)

    def abort_all(self) -> None:
        """End every sequence as it stands."""
        for sequence in [*self._active, *self.waiting]:
            sequence.finish("abort")
        self._drop_ended()

    def fail_all(self, error: Exception) -> None:
        """Give every sequence ``error`` and start over with an empty cache."""
        for sequence in [*self._active, *self.waiting]:
            sequence.fail(error)
        self.waiting.clear()
        self._active.clear()
        self._rows.clear()

    def forget(self) -> None:
        """Drop all cached keys and values; running sequences go back to the line and lose no token."""
        self.waiting.extendleft(reversed(self._active))
        self._active.clear()
        self._rows.clear()

    # ---- joining and leaving ----

    def _next_newcomers(self) -> list[_Newcomer]:
        """Seat waiting sequences, as many as rows, memory and one pass allow.

        One that shares a prefix with another newcomer stays for the next round, when that prefix can be copied.
        """
        newcomers: list[_Newcomer] = []
        longest = max((sequence.length for sequence in self._active), default=0)
        width = 0
        for sequence in self.waiting:
            row, ids = len(self._active) + len(newcomers), sequence.all_ids
            longest = max(longest, len(ids) + 1)
            if not self._rows.fits(row + 1, longest):
                break
            self._rows.make_room(row + 1, longest)
            cached, source = self._rows.cached_prefix(ids, row)
            width = max(width, len(ids) - cached)
            if newcomers and width * (len(newcomers) + 1) > _TOKENS_PER_PASS:
                break
            if any(longest_common_prefix(other.ids, ids) >= cached + SHARED_AT_LEAST for other in newcomers):
                continue
            self._rows.seat(row, ids, cached, source)
            newcomers.append(_Newcomer(sequence, ids, cached))
        for newcomer in newcomers:
            self.waiting.remove(newcomer.sequence)
        return newcomers

    def _prefill(self, newcomers: list[_Newcomer]) -> None:
        """Compute the prompts of ``newcomers`` and draw the first token of each."""
        for newcomer in newcomers:
            self._score_prompt(newcomer.sequence)
        first_row = len(self._active)
        sequences = [newcomer.sequence for newcomer in newcomers]
        self._active += sequences
        new_tokens = [newcomer.ids[newcomer.cached :] for newcomer in newcomers]
        self._advance(first_row, sequences, new_tokens, [newcomer.cached for newcomer in newcomers])

    def _advance(
        self, first_row: int, sequences: list[Sequence], new_tokens: list[list[int]], starts: list[int]
    ) -> None:
        """Append ``new_tokens`` to the rows of ``sequences`` and draw the token that follows each."""
        logits_B_V = self._model.extend(first_row, new_tokens, starts)
        for offset, tokens in enumerate(new_tokens):
            self._rows.extend(first_row + offset, tokens)
        params = [sequence.params for sequence in sequences]
        drawn = draw(logits_B_V, params, [sequence.generator for sequence in sequences], self._luck, self._mode)
        for row, sequence in enumerate(sequences):
            sequence.append(drawn, row, self.version)

    def _drop_ended(self) -> None:
        for row in reversed(range(len(self._active))):
            if self._active[row].ended:
                last = len(self._active) - 1
                self._rows.release(row, last)
                self._active[row] = self._active[last]
                self._active.pop()
        if any(sequence.ended for sequence in self.waiting):
            self.waiting = deque(sequence for sequence in self.waiting if not sequence.ended)

    def _make_room_for_next_tokens(self) -> None:
        """Grow the rows by a token; where memory ends, the youngest sequences go back to the line."""
        while not self._rows.fits(len(self._active), longest := max(s.length for s in self._active) + 1):
            self.waiting.appendleft(self._active.pop())
        self._rows.make_room(len(self._active), longest)

    def _score_prompt(self, sequence: Sequence) -> None:
        """Report the logprob of each prompt token beside the likeliest ones; position 0 has none, as in vLLM."""
        count = sequence.params.prompt_logprobs
        if count is None or sequence.prompt_logprobs is not None:
            return
        logprobs_T_V = torch.log_softmax(self._model.all_logits(sequence.prompt)[:-1].float(), dim=-1)
        own_T = logprobs_T_V.gather(1, torch.tensor(sequence.prompt[1:], device=self._model.device)[:, None])[:, 0]
        top = logprobs_T_V.topk(min(count, logprobs_T_V.shape[1]))
        rows = zip(sequence.prompt[1:], own_T.tolist(), top.indices.tolist(), top.values.tolist(), strict=True)
        likeliest = [{token: own, **dict(zip(ids, values, strict=True))} for token, own, ids, values in rows]
        sequence.prompt_logprobs = [None, *likeliest]
