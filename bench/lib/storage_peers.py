"""The contestants of the storage bench: the store, a raw file, SQLite, RocksDB.

All of them store the same record batches under their log positions, and every append is durable
when it returns. A raw file has no index, so it cannot prune its beginning or find its last batch;
these tests leave it out.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

import trio
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from quorate.storage import HEADER_BYTES, Store, check_batch_untrusted
from quorate.storage.log.batch import check_sum_untrusted, decode_header_untrusted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

REPLAY_BYTES: Final = 1 << 20


class Contestant(Protocol):
    """A log under test; positions are byte offsets, the log begins at 0."""

    async def append(self, position: int, batch: bytes) -> None:
        """Append a batch, durably."""
        ...

    async def load(self, batches: Sequence[tuple[int, bytes]]) -> None:
        """Append many batches in the fastest way; they are durable at the end."""
        ...

    async def replay(self) -> int:
        """Read everything in order, verify every checksum, and return the number of bytes."""
        ...

    async def truncate(self, position: int) -> None:
        """Drop the batches from `position` on, durably."""
        ...

    async def prune(self, position: int) -> bool:
        """Drop the batches before `position`, durably; False if not supported."""
        ...

    def last(self) -> bool:
        """Find and verify the last batch; False if not supported."""
        ...


class Opener(Protocol):
    """Opens or creates a contestant in a directory."""

    def __call__(self, directory: Path) -> AbstractAsyncContextManager[Contestant]:
        """Return a context manager."""
        ...


class _StoreLog:
    """Our store, with its writer thread."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def append(self, position: int, batch: bytes) -> None:
        assert position == self.store.append_position
        await self.store.append_durably(batch)

    async def load(self, batches: Sequence[tuple[int, bytes]]) -> None:
        for _, batch in batches[:-1]:
            self.store.append(batch)
        await self.store.append_durably(batches[-1][1])

    async def replay(self) -> int:
        position = self.store.start_position
        while batches := await self.store.read(position, limit_bytes=REPLAY_BYTES):
            position += sum(map(len, batches))
        return position - self.store.start_position

    async def truncate(self, position: int) -> None:
        await self.store.truncate(position)

    async def prune(self, position: int) -> bool:
        await self.store.drop_prefix(position)
        return True

    def last(self) -> bool:
        return True  # opening has read and verified it


@asynccontextmanager
async def open_store(directory: Path) -> AsyncGenerator[Contestant]:
    """Open our store."""
    store = Store.open(directory, cluster="bench", member_id=0, rng=Random(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield _StoreLog(store)
        nursery.cancel_scope.cancel()
    store.close()


class _FileLog:
    """A plain file with fdatasync: the limit of the disk and the kernel."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def write(self, batch: bytes) -> None:
        if os.write(self.fd, batch) != len(batch):
            raise OSError("a write was cut short")

    async def append(self, position: int, batch: bytes) -> None:
        del position
        self.write(batch)
        os.fdatasync(self.fd)

    async def load(self, batches: Sequence[tuple[int, bytes]]) -> None:
        for _, batch in batches:
            self.write(batch)
        os.fdatasync(self.fd)

    async def replay(self) -> int:
        position, rest = 0, b""
        while data := os.pread(self.fd, REPLAY_BYTES, position + len(rest)):
            data, at = rest + data, 0
            while at + HEADER_BYTES <= len(data):
                end = at + decode_header_untrusted(data[at : at + HEADER_BYTES]).length
                if end > len(data):
                    break
                check_sum_untrusted(data[at:end])
                at = end
            position, rest = position + at, data[at:]
        return position

    async def truncate(self, position: int) -> None:
        os.ftruncate(self.fd, position)
        os.fdatasync(self.fd)

    async def prune(self, position: int) -> bool:
        del position
        return False

    def last(self) -> bool:
        return False


@asynccontextmanager
async def open_file(directory: Path) -> AsyncGenerator[Contestant]:
    """Open a raw file."""
    contestant = _FileLog(directory / "log")
    yield contestant
    os.close(contestant.fd)


class _SqliteLog:
    """SQLite in WAL mode, synchronous=FULL: an fsync of the WAL for each commit."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")
        self.db.execute("CREATE TABLE IF NOT EXISTS log (position INTEGER PRIMARY KEY, batch BLOB)")

    async def append(self, position: int, batch: bytes) -> None:
        self.db.execute("INSERT INTO log VALUES (?, ?)", (position, batch))

    async def load(self, batches: Sequence[tuple[int, bytes]]) -> None:
        self.db.execute("BEGIN")
        self.db.executemany("INSERT INTO log VALUES (?, ?)", batches)
        self.db.execute("COMMIT")

    async def replay(self) -> int:
        size = 0
        for (batch,) in self.db.execute("SELECT batch FROM log ORDER BY position"):
            size += check_sum_untrusted(batch).length
        return size

    async def truncate(self, position: int) -> None:
        self.db.execute("DELETE FROM log WHERE position >= ?", (position,))

    async def prune(self, position: int) -> bool:
        self.db.execute("DELETE FROM log WHERE position < ?", (position,))
        return True

    def last(self) -> bool:
        query = "SELECT batch FROM log ORDER BY position DESC LIMIT 1"
        (batch,) = self.db.execute(query).fetchone()
        return bool(check_batch_untrusted(batch).length)


@asynccontextmanager
async def open_sqlite(directory: Path) -> AsyncGenerator[Contestant]:
    """Open SQLite."""
    contestant = _SqliteLog(directory / "log.sqlite")
    yield contestant
    contestant.db.close()


class _RocksLog:
    """RocksDB, each write synced to its WAL."""

    def __init__(self, path: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self.db = Rdict(str(path), options)
        self.sync = WriteOptions()
        self.sync.sync = True

    @staticmethod
    def key(position: int) -> bytes:
        return position.to_bytes(8)

    async def append(self, position: int, batch: bytes) -> None:
        self.db.put(self.key(position), batch, write_opt=self.sync)

    async def load(self, batches: Sequence[tuple[int, bytes]]) -> None:
        group = WriteBatch(raw_mode=True)
        for position, batch in batches:
            group.put(self.key(position), batch)
        self.db.write(group, write_opt=self.sync)

    async def replay(self) -> int:
        return sum(check_sum_untrusted(batch).length for batch in self.db.values())

    async def truncate(self, position: int) -> None:
        self.db.delete_range(self.key(position), b"\xff" * 8, write_opt=self.sync)

    async def prune(self, position: int) -> bool:
        self.db.delete_range(self.key(0), self.key(position), write_opt=self.sync)
        return True

    def last(self) -> bool:
        batches = self.db.iter()
        batches.seek_to_last()
        return bool(check_batch_untrusted(batches.value()).length)


@asynccontextmanager
async def open_rocks(directory: Path) -> AsyncGenerator[Contestant]:
    """Open RocksDB."""
    contestant = _RocksLog(directory / "rocks")
    yield contestant
    contestant.db.close()


CONTESTANTS: Final[dict[str, Opener]] = {
    "raw file": open_file,
    "quorate": open_store,
    "SQLite": open_sqlite,
    "RocksDB": open_rocks,
}
