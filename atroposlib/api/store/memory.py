"""No journal: the queue ends with the process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atroposlib.api.store.base import Record, Store, StoredGroup, StoredState


class MemoryStore(Store):
    """Keeps nothing, since the queue itself is in memory."""

    def load(self) -> StoredState:
        return StoredState()

    def save_run(self, run: Record) -> None:
        pass

    def save_environment(self, env_id: int, environment: Record) -> None:
        pass

    def add(self, groups: Sequence[StoredGroup]) -> None:
        pass

    def save_batch(self, batch_id: int, numbers: Iterable[int]) -> None:
        pass

    def mark_sent(self, batch_id: int) -> None:
        pass

    def return_batch(self, batch_id: int) -> None:
        pass

    def remove_batch(self, batch_id: int) -> None:
        pass

    def remove(self, numbers: Iterable[int]) -> None:
        pass

    def forget_group_ids(self, group_ids: Sequence[str]) -> None:
        pass

    def clear(self) -> None:
        pass

    async def flushed(self) -> None:
        pass

    def close(self) -> None:
        pass
