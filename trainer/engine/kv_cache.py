"""Keys and values of many sequences, one row each, written at positions of their own.

A row starts at position 0 whatever its neighbours do, so sequences join and leave a batch without moving one another,
and a row that has ended keeps its keys and values until somebody needs the room: the next turn of a conversation
continues where the last one stopped.

Shapes: rows ``B``, new tokens ``T``, cached tokens ``L``, heads ``H``, head size ``D``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class Window:
    """The part of the cache that one forward pass reads and writes."""

    first_row: int
    positions_B_T: torch.Tensor
    """Where each new token is written; a padding token goes to the spare column behind the last."""
    length: int
    """How many columns the pass attends to."""

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.positions_B_T.shape[0])


class _RowLayer(CacheLayerMixin):
    """One layer's keys and values: ``[rows, heads, capacity + 1, head size]``, the last column being the spare one."""

    is_sliding = False

    def __init__(self, cache: RowCache) -> None:
        super().__init__()
        self._cache = cache
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def lazy_initialization(self, *_: torch.Tensor) -> None:
        """Nothing to prepare: ``update`` takes the memory it needs."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        window = self._cache.window
        if self.keys is None or self.values is None:
            self.keys, self.values = self._zeros_like(key_states), self._zeros_like(value_states)
        rows_B_1 = torch.arange(window.rows.start, window.rows.stop, device=key_states.device)[:, None]
        self.keys[rows_B_1, :, window.positions_B_T] = key_states.transpose(1, 2)
        self.values[rows_B_1, :, window.positions_B_T] = value_states.transpose(1, 2)
        return self.keys[window.rows, :, : window.length], self.values[window.rows, :, : window.length]

    def fit_to_cache(self) -> None:
        """Take the cache's present shape, keeping what it still has room for."""
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self._resized(self.keys), self._resized(self.values)

    def _resized(self, stored: torch.Tensor) -> torch.Tensor:
        resized = self._zeros_like(stored)
        rows, columns = min(stored.shape[0], resized.shape[0]), min(stored.shape[2], resized.shape[2]) - 1
        resized[:rows, :, :columns] = stored[:rows, :, :columns]
        return resized

    def _zeros_like(self, states: torch.Tensor) -> torch.Tensor:
        """Zeros, never garbage: a masked NaN would still spoil the sum."""
        return states.new_zeros(self._cache.rows, states.shape[1], self._cache.capacity + 1, states.shape[3])

    def swap(self, a: int, b: int) -> None:
        for stored in (self.keys, self.values):
            if stored is not None:
                stored[[a, b]] = stored[[b, a]]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for stored in (self.keys, self.values):
            if stored is not None:
                stored[target, :, :length] = stored[source, :, :length]

    def bytes_per_token(self) -> int:
        stored = [tensor for tensor in (self.keys, self.values) if tensor is not None]
        return sum(tensor.shape[1] * tensor.shape[3] * tensor.element_size() for tensor in stored)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.window.length, 0

    def get_seq_length(self) -> int:
        return self._cache.window.length

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        """The same, under its name in transformers 4."""
        return -1


class RowCache(Cache):
    """The cache that is handed to the model's ``forward``; the first pass tells each layer its sizes."""

    def __init__(self, layers: int) -> None:
        self.rows = 0
        self.capacity = 0
        self.window = Window(0, torch.zeros(0, 0, dtype=torch.long), 0)
        super().__init__(layers=[_RowLayer(self) for _ in range(layers)])

    def resize(self, rows: int, capacity: int) -> None:
        """Hold ``rows`` sequences of ``capacity`` tokens; what lies beyond is lost."""
        self.rows, self.capacity = rows, capacity
        for layer in self.layers:
            layer.fit_to_cache()

    def swap(self, a: int, b: int) -> None:
        if a != b:
            for layer in self.layers:
                layer.swap(a, b)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for layer in self.layers:
            layer.copy_prefix(source, target, length)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one row takes; 0 before the first pass."""
        return sum(layer.bytes_per_token() for layer in self.layers)
