"""Batches, stores and damage for the tests of `quorate.storage`."""

from __future__ import annotations

import resource
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeVar

import lmdb
import trio

from quorate.storage import (
    BatchHeader,
    Entry,
    EntryKind,
    Store,
    Write,
    decode_header_untrusted,
    encode_batch,
)
from quorate.storage.testing import InlineExecutor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path
    from typing import Never

    from quorate.storage import ExecutorFactory
    from quorate.storage.log.state import Recorded

MAP_BYTES = 1 << 24
JOURNAL_BYTES = 1 << 15
"""Full after eight small groups, so that tests include its move to LMDB."""
virtual = partial(InlineExecutor[Write], latency=0.01)


def batch_at(
    position: int,
    *,
    term: int = 0,
    count: int = 1,
    size: int = 100,
    timestamp_ms: int = 0,
    commit_position: int = 0,
) -> bytes:
    """Return a batch of commands."""
    entries = [Entry(EntryKind.COMMAND, bytes(size), 0, 7, i) for i in range(count)]
    return encode_batch(
        entries,
        term=term,
        position=position,
        timestamp_ms=timestamp_ms,
        commit_position=commit_position,
    )


def configuration_at(
    position: int, payload: bytes, *, term: int = 0, timestamp_ms: int = 0
) -> bytes:
    """Return a batch that holds a configuration of the cluster."""
    return encode_batch(
        [Entry(EntryKind.MEMBERSHIP, payload)],
        term=term,
        position=position,
        timestamp_ms=timestamp_ms,
        commit_position=0,
    )


def open_store(
    directory: Path,
    executor: ExecutorFactory[Write] = virtual,
    *,
    cluster: str = "testing",
    member_id: int = 1,
    seed: int = 1,
    map_bytes: int = MAP_BYTES,
    journal_bytes: int = JOURNAL_BYTES,
    peers: bool = False,
) -> Store:
    """Open a store as member 1 of the cluster "testing"."""
    return Store.open(
        directory,
        cluster=cluster,
        member_id=member_id,
        rng=Random(seed),
        executor=executor,
        map_bytes=map_bytes,
        journal_bytes=journal_bytes,
        peers=peers,
    )


def recorded_in(directory: Path) -> Recorded:
    """Open the store again and return its contents."""
    store = open_store(directory)
    store.close()
    return store.recorded


@contextmanager
def files_limited_to(size: int) -> Generator[None]:
    """Let no file of this process grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Runs(Protocol):
    """A store, or tables."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> Never: ...

    def close(self) -> None: ...


R = TypeVar("R", bound=Runs)


@asynccontextmanager
async def running(what: R) -> AsyncGenerator[R]:
    """Run it for the duration of the block, stop it in order and close it."""
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(what.run)
            yield what
            nursery.cancel_scope.cancel()
    finally:
        what.close()


async def begin_term(store: Store, term: int, *, timestamp_ms: int = 0) -> int:
    """Append the first batch of a term, and return where it ends."""
    base = store.submitted_position
    await store.append_durably(
        batch_at(base, term=term, timestamp_ms=timestamp_ms),
    )
    return store.append_position


async def fill(store: Store, count: int, *, term: int = 0) -> list[bytes]:
    """Append batches to a term that has begun; return all of the term's batches in the store."""
    for _ in range(count):
        store.append(batch_at(store.submitted_position, term=term))
    await store.append_durably(batch_at(store.submitted_position, term=term))
    return list(store.scan(store.start_position))


def headers(batches: list[bytes]) -> list[BatchHeader]:
    """Decode the headers of batches."""
    return [decode_header_untrusted(batch) for batch in batches]


def tamper(directory: Path, database: bytes, key: bytes, value: bytes | None) -> None:
    """Write to the LMDB of a closed store, without the store; None deletes."""
    with lmdb.open(str(directory), max_dbs=8, map_size=MAP_BYTES) as environment:
        db = environment.open_db(database, create=False)
        with environment.begin(write=True) as txn:
            if value is None:
                assert txn.delete(key, db=db)
            else:
                txn.put(key, value, db=db)


def stored(directory: Path, database: bytes, key: bytes) -> bytes:
    """Read from the LMDB of a closed store, without the store."""
    with lmdb.open(str(directory), max_dbs=8, map_size=MAP_BYTES) as environment:
        db = environment.open_db(database, create=False)
        with environment.begin() as txn:
            value = txn.get(key, db=db)
    assert value is not None
    return value


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    """Return `data` with one bit flipped."""
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
