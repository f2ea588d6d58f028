"""Which tokens each row of the cache holds, and how large the cache may be.

The first rows belong to running sequences. The rows behind them remember sequences that have ended, so that the next
turn of a conversation, or another sample of the same prompt, finds its prefix computed already.
"""

from __future__ import annotations

from trainer.engine.kv_cache import RowCache
from trainer.engine.sequence import longest_common_prefix

SHARED_AT_LEAST = 16
"""A shorter common prefix is computed again: finding and copying it would cost more."""
_GROWTH = 128
"""Rows grow in length by steps of this many tokens."""


class RowTable:
    """The rows of one cache. ``bytes_per_token`` is what the cache takes for one token of one row."""

    def __init__(self, cache: RowCache, *, max_rows: int, max_bytes: int, bytes_per_token: int) -> None:
        self._cache = cache
        self._max_rows = max_rows
        self._max_tokens = max_bytes // bytes_per_token
        self._held: list[list[int]] = [[] for _ in range(cache.rows)]
        self._used_at = [0] * cache.rows
        self._clock = 0

    def fits(self, rows: int, longest: int) -> bool:
        """Whether ``rows`` sequences, the longest of ``longest`` tokens, may be held at once."""
        return rows <= self._max_rows and rows * _rounded(longest) <= self._max_tokens

    def make_room(self, rows: int, longest: int) -> None:
        """Grow to what ``fits`` allowed; where both cannot grow, what ended sequences left is given up."""
        cache = self._cache
        if rows <= cache.rows and longest <= cache.capacity:
            return
        capacity = max(cache.capacity, _rounded(longest))
        room_for = max(rows, min(self._max_rows, 2 * cache.rows))
        if room_for * capacity > self._max_tokens:
            capacity = _rounded(longest)
            room_for = min(self._max_rows, self._max_tokens // capacity)
        cache.resize(room_for, capacity)
        self._held = [tokens[:capacity] for tokens in self._held[:room_for]]
        self._held += [[] for _ in range(room_for - len(self._held))]
        self._used_at = (self._used_at + [0] * room_for)[:room_for]

    def cached_prefix(self, ids: list[int], rows: int) -> tuple[int, int]:
        """``(length, row)`` of the longest prefix of ``ids`` that any row holds; length 0 where none is worth it.

        At least one token is always left to compute, since the last one's logits are wanted. ``rows`` is the number
        of rows in use: among equals a free row wins, because it need not be copied.
        """
        best, best_row = 0, -1
        for row, held in enumerate(self._held):
            if held[:SHARED_AT_LEAST] != ids[:SHARED_AT_LEAST]:
                continue
            shared = min(longest_common_prefix(held, ids), len(ids) - 1)
            if shared > best or (shared == best and row >= rows > best_row):
                best, best_row = shared, row
        return (best, best_row) if best >= SHARED_AT_LEAST else (0, -1)

    def seat(self, row: int, ids: list[int], cached: int, source: int) -> None:
        """Make ``row``, the first one free, hold ``ids[:cached]``, found in the row ``source``."""
        free = source if source >= row else min(range(row, self._cache.rows), key=self._used_at.__getitem__)
        if cached and free != source:
            self._cache.copy_prefix(source, free, cached)
        self._held[free] = ids[:cached]
        self._swap(free, row)

    def extend(self, row: int, ids: list[int]) -> None:
        """Note that the keys and values of ``ids`` were written behind what ``row`` held."""
        self._held[row] += ids

    def release(self, row: int, last: int) -> None:
        """Move the row of a sequence that ended behind ``last``, the last row in use; its tokens stay remembered."""
        self._swap(row, last)
        self._clock += 1
        self._used_at[last] = self._clock

    def clear(self) -> None:
        self._held = [[] for _ in self._held]

    def _swap(self, a: int, b: int) -> None:
        if a != b:
            self._cache.swap(a, b)
            self._held[a], self._held[b] = self._held[b], self._held[a]
            self._used_at[a], self._used_at[b] = self._used_at[b], self._used_at[a]


def _rounded(tokens: int) -> int:
    return -(-tokens // _GROWTH) * _GROWTH
