"""A journal in one SQLite file (WAL).

Every change is written by one thread, in the order it was handed over, as many in one transaction as have gathered.
A transaction survives ``kill -9`` of the server; after a power failure the file is sound, but the last moments may be
missing. One server at a time may use a file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from atroposlib.api.store.base import Record, Store, StoredBatch, StoredGroup, StoredState
from atroposlib.errors import StoreError

logger = logging.getLogger(__name__)

_FORMAT: Final = 1
_SCHEMA: Final = """
CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 0), record TEXT NOT NULL);
CREATE TABLE environment (id INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE scored_group (
    number INTEGER PRIMARY KEY, sequences INTEGER NOT NULL, env_id INTEGER, group_id TEXT, batch INTEGER,
    body BLOB NOT NULL
);
CREATE INDEX group_of_batch ON scored_group (batch) WHERE batch IS NOT NULL;
CREATE TABLE batch (id INTEGER PRIMARY KEY, sent INTEGER NOT NULL);
CREATE TABLE group_id (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
"""

_T = TypeVar("_T")
_Change = Callable[[sqlite3.Connection], object]


class SqliteStore(Store):
    """The journal at ``path``, made if it is not there. Raises: StoreError if it is in use or not a journal."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._lock = threading.Lock()
        self._gathered: list[_Change] = []
        self._next_write: Future[None] | None = None
        self._last_write: Future[None] | None = None
        self._failure: StoreError | None = None
        self._connection = self._in_writer(self._open)

    def load(self) -> StoredState:
        try:
            return self._in_writer(self._read_all)
        except (sqlite3.Error, ValueError) as error:
            raise StoreError(f"store {self.path}: {error}; it is damaged, move it away to begin anew") from error

    def save_run(self, run: Record) -> None:
        text = json.dumps(run)
        self._change(lambda db: db.execute("INSERT OR REPLACE INTO run VALUES (0, ?)", (text,)))

    def save_environment(self, env_id: int, environment: Record) -> None:
        text = json.dumps(environment)
        self._change(lambda db: db.execute("INSERT OR REPLACE INTO environment VALUES (?, ?)", (env_id, text)))

    def add(self, groups: Sequence[StoredGroup]) -> None:
        rows = [(g.number, g.sequences, g.env_id, g.group_id, g.body) for g in groups]
        ids = [(g.group_id,) for g in groups if g.group_id is not None]

        def change(db: sqlite3.Connection) -> None:
            db.executemany("INSERT INTO scored_group VALUES (?, ?, ?, ?, NULL, ?)", rows)
            db.executemany("INSERT OR IGNORE INTO group_id (id) VALUES (?)", ids)

        self._change(change)

    def save_batch(self, batch_id: int, numbers: Iterable[int]) -> None:
        rows = [(batch_id, number) for number in numbers]

        def change(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO batch VALUES (?, 0)", (batch_id,))
            db.executemany("UPDATE scored_group SET batch = ? WHERE number = ?", rows)

        self._change(change)

    def mark_sent(self, batch_id: int) -> None:
        self._change(lambda db: db.execute("UPDATE batch SET sent = 1 WHERE id = ?", (batch_id,)))

    def return_batch(self, batch_id: int) -> None:
        def change(db: sqlite3.Connection) -> None:
            db.execute("UPDATE scored_group SET batch = NULL WHERE batch = ?", (batch_id,))
            db.execute("DELETE FROM batch WHERE id = ?", (batch_id,))

        self._change(change)

    def remove_batch(self, batch_id: int) -> None:
        def change(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM scored_group WHERE batch = ?", (batch_id,))
            db.execute("DELETE FROM batch WHERE id = ?", (batch_id,))

        self._change(change)

    def remove(self, numbers: Iterable[int]) -> None:
        rows = [(number,) for number in numbers]
        self._change(lambda db: db.executemany("DELETE FROM scored_group WHERE number = ?", rows))

    def forget_group_ids(self, group_ids: Sequence[str]) -> None:
        rows = [(group_id,) for group_id in group_ids]
        self._change(lambda db: db.executemany("DELETE FROM group_id WHERE id = ?", rows))

    def clear(self) -> None:
        def change(db: sqlite3.Connection) -> None:
            for table in ("run", "environment", "scored_group", "batch", "group_id"):
                db.execute(f"DELETE FROM {table}")

        self._change(change)

    async def flushed(self) -> None:
        if self._last_write is not None:
            # Shielded: a request that is given up must not take back the changes of others.
            await asyncio.shield(asyncio.wrap_future(self._last_write))

    def close(self) -> None:
        self._writer.submit(self._connection.close)
        self._writer.shutdown(wait=True)

    def _in_writer(self, job: Callable[[], _T]) -> _T:
        return self._writer.submit(job).result()

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, isolation_level=None, timeout=0.5)
            # Exclusive: a second server on the same file would deliver every group twice.
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("BEGIN IMMEDIATE")
            self._make_or_check_tables(db)
            db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            self._writer.shutdown(wait=False)
            raise StoreError(f"store {self.path}: {error}; is it in use by another server, or not a store?") from error
        return db

    def _make_or_check_tables(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version == 0 and tables == 0:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_FORMAT}")
        elif version != _FORMAT:
            raise sqlite3.DatabaseError(f"is of format {version}, this server reads {_FORMAT}")

    def _read_all(self) -> StoredState:
        db = self._connection
        run = db.execute("SELECT record FROM run").fetchone()
        groups = db.execute("SELECT number, sequences, env_id, group_id, body FROM scored_group ORDER BY number")
        return StoredState(
            run=None if run is None else json.loads(run[0]),
            environments=[json.loads(text) for (text,) in db.execute("SELECT record FROM environment ORDER BY id")],
            groups=[StoredGroup(*row) for row in groups],
            batches=self._read_batches(),
            group_ids=[text for (text,) in db.execute("SELECT id FROM group_id ORDER BY position")],
        )

    def _read_batches(self) -> dict[int, StoredBatch]:
        members = "SELECT number FROM scored_group WHERE batch = ? ORDER BY number"
        return {
            batch: StoredBatch([number for (number,) in self._connection.execute(members, (batch,))], bool(sent))
            for batch, sent in self._connection.execute("SELECT id, sent FROM batch ORDER BY id").fetchall()
        }

    def _change(self, change: _Change) -> None:
        with self._lock:
            self._gathered.append(change)
            if self._next_write is None:
                self._next_write = self._last_write = self._writer.submit(self._write_gathered)

    def _write_gathered(self) -> None:
        with self._lock:
            changes, self._gathered = self._gathered, []
            self._next_write = None
        if self._failure is not None:
            raise self._failure
        db = self._connection
        try:
            db.execute("BEGIN")
            for change in changes:
                change(db)
            db.execute("COMMIT")
        except (sqlite3.Error, ValueError, OverflowError) as error:
            # The queue in memory is ahead of the file now: nothing more may be acknowledged.
            self._failure = StoreError(f"store {self.path}: {error}; free space or repair it, then restart the server")
            logger.critical("%s", self._failure)
            raise self._failure from error
