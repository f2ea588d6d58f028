"""Where the trajectory server's queue outlives its process."""

from __future__ import annotations

from pathlib import Path

from atroposlib.api.store.base import Record, Store, StoredBatch, StoredGroup, StoredState
from atroposlib.api.store.memory import MemoryStore

__all__ = ["MemoryStore", "Record", "Store", "StoredBatch", "StoredGroup", "StoredState", "open_store"]


def open_store(path: str | Path | None) -> Store:
    """Open the journal at ``path``; without one, everything ends with the process. Raises: StoreError."""
    if path is None:
        return MemoryStore()
    from atroposlib.api.store.sqlite import SqliteStore

    return SqliteStore(path)
