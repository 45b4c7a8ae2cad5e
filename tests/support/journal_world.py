"""Stores with batches in their journal, and damage to it."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, cast

from quorate.storage import LogEnd, Store, Write, decode_header_untrusted
from quorate.storage.lmdb.checksum import crc32c
from quorate.storage.lmdb.environment import Environment
from quorate.storage.log.journal import JOURNAL_FILE, load_row, read_journal
from quorate.storage.rows.databases import MAX_DBS, Databases
from quorate.storage.testing import InlineExecutor
from tests.support.storage_world import batch_at, begin_term, open_store, running

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage.log.journal import JournalRow, JournalTail

at_once = partial(open_store, executor=InlineExecutor[Write])
BLOCK = 4096


async def append(store: Store, count: int, *, size: int = 100) -> list[bytes]:
    """Append small batches one after the other, each durable before the next."""
    made: list[bytes] = []
    for _ in range(count):
        made.append(batch_at(store.submitted_position, term=store.log_term, size=size))
        await store.append_durably(made[-1])
    return made


async def begin(store: Store) -> int:
    """Write the first batch of a term, and the one that creates the journal: both go to LMDB."""
    await begin_term(store, 0)
    await append(store, 1)
    return store.append_position


def cut_power(store: Store) -> None:
    """End without moving the journal's entries to LMDB, as an orderly end would."""
    cast("InlineExecutor[Write]", store.executor).cut_power()


async def make(directory: Path, count: int) -> list[bytes]:
    """Make a store of one term: two batches in LMDB, and this many more in the journal."""
    async with running(at_once(directory)) as store:
        await begin(store)
        await append(store, count)
        cut_power(store)
        return list(store.scan(0))


def in_lmdb(directory: Path) -> int:
    """Count the batches in LMDB alone."""
    environment = Environment.open_readonly(directory, max_dbs=MAX_DBS)
    dbs = environment.databases(Databases)
    try:
        return environment.read(lambda txn: txn.stat(dbs.log)["entries"])
    finally:
        environment.close()


def spoil(directory: Path, at: int) -> None:
    """Flip a bit of the journal."""
    path = directory / JOURNAL_FILE
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def row_in(directory: Path) -> JournalRow:
    """Return LMDB's row about the journal."""
    environment = Environment.open_readonly(directory, max_dbs=MAX_DBS)
    dbs = environment.databases(Databases)
    try:
        return environment.read(lambda txn: load_row(txn, dbs))
    finally:
        environment.close()


def group_of(row: JournalRow, batch: bytes) -> bytes:
    """Return a group of one batch, a block long, as the journal's own page describes it."""
    header = decode_header_untrusted(batch)
    facts = struct.pack("<QQQQQ", row.salt, row.generation, header.term, header.end, len(batch))
    return (struct.pack("<4sI", b"QJ01", crc32c(facts)) + facts + batch).ljust(BLOCK, b"\0")


def tail_of(directory: Path, whole: list[bytes]) -> JournalTail:
    """Scan the journal of a store whose LMDB has the first two batches."""
    return read_journal(directory).tail(
        1, row_in(directory), LogEnd(0, len(whole[0]) + len(whole[1]))
    )
