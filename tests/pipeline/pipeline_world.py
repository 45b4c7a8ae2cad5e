"""Members' directories with logs that a test has written."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import attrs
import lmdb
import trio

from quorate.keyvalue.resp import encode_command
from quorate.keyvalue.service import KeyValueService
from quorate.node.service import Command
from quorate.node.term_event import TermEvent, encode_term_event
from quorate.storage import (
    BatchHeader,
    Entry,
    EntryKind,
    Store,
    TermRow,
    decode_entries_untrusted,
    decode_header_untrusted,
    encode_batch,
)
from quorate.storage.snapshot_file import head_of
from quorate.storage.snapshot_folder import SnapshotWriter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BEGAN_MS = 1_700_000_000_000
ELECTION_MS = 250


@attrs.frozen
class Batch:
    """A batch to be written: the payloads of its commands, their stamps if any, and when."""

    payloads: tuple[bytes, ...]
    timestamp_ms: int
    term: int = 0
    flags: int = 0
    stamps: tuple[tuple[int, int], ...] = ()


def pipeline(*commands: str) -> bytes:
    """A payload: commands with blanks between their words."""
    return b"".join(encode_command(command.split()) for command in commands)


def one_each(commands: Sequence[str], *, per_batch: int = 10, terms: int = 1) -> list[Batch]:
    """Batches of so many commands, each an entry, a second apart, over so many terms."""
    batches: list[Batch] = []
    count = -(-len(commands) // per_batch)
    for at in range(count):
        payloads = tuple(map(pipeline, commands[at * per_batch : (at + 1) * per_batch]))
        batches.append(Batch(payloads, BEGAN_MS + 1000 * at, at * terms // count))
    return batches


def encoded(batches: Sequence[Batch]) -> list[tuple[bytes, TermRow | None]]:
    """The batches as a leader encodes them, with the row of each term beside its first one."""
    position, term = 0, -1
    found: list[tuple[bytes, TermRow | None]] = []
    for batch in batches:
        row = None
        stamps = batch.stamps or ((0, 0),) * len(batch.payloads)
        entries = [
            Entry(EntryKind.COMMAND, payload, batch.flags, *stamp)
            for payload, stamp in zip(batch.payloads, stamps, strict=True)
        ]
        if batch.term != term:
            term = batch.term
            row = TermRow(term, position, None, batch.timestamp_ms)
            event = TermEvent(term % 3, 7, position, 1, "a test", ELECTION_MS, 2)
            entries.insert(0, Entry(EntryKind.NEW_LEADERSHIP_TERM, encode_term_event(event)))
        data = encode_batch(
            entries,
            term=term,
            position=position,
            timestamp_ms=batch.timestamp_ms,
            commit_position=position,
        )
        found.append((data, row))
        position += len(data)
    return found


def write_log(directory: Path, batches: Sequence[Batch], *, member_id: int = 0) -> int:
    """Record batches in a member's directory, behind what is there; return where they end."""
    return trio.run(_write, directory / "log", encoded(batches), member_id)


async def _write(
    directory: Path, batches: Sequence[tuple[bytes, TermRow | None]], member_id: int
) -> int:
    store = Store.open(directory, cluster="testing", member_id=member_id, rng=Random(member_id))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            written = [one for one in batches if not _recorded(store, one[0])]
            for data, row in written[:-1]:
                store.append(data, term_row=row)
            for data, row in written[-1:]:
                await store.append_durably(data, term_row=row)
            nursery.cancel_scope.cancel()
        return store.append_position
    finally:
        store.close()


def _recorded(store: Store, data: bytes) -> bool:
    """Whether a batch lies in front of where the log ended when the store was opened."""
    return int.from_bytes(data[24:32], "little") < store.append_position


def shorten_log(directory: Path, batches: Sequence[Batch], count: int) -> int:
    """Take a snapshot behind the first `count` batches, as a member does, and drop these.

    Returns:
        The position of the snapshot.
    """
    return trio.run(_shorten, directory, encoded(batches)[:count])


async def _shorten(directory: Path, batches: Sequence[tuple[bytes, TermRow | None]]) -> int:
    store = Store.open(directory / "log", cluster="testing", member_id=0, rng=Random(0))
    service = KeyValueService.open(directory / "tables", cluster="testing", member_id=0)
    header = apply(service, [data for data, _ in batches])
    head = head_of(
        "testing",
        store.terms,
        position=header.end,
        term=header.term,
        timestamp_ms=header.timestamp_ms,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        await nursery.start(service.run)
        (directory / "snapshots").mkdir()
        writer = SnapshotWriter(directory / "snapshots", head, await service.save())
        while writer.step():
            pass
        writer.finish()
        await store.add_snapshot(head.row)
        await store.drop_prefix(header.end)
        nursery.cancel_scope.cancel()
    service.close()
    store.close()
    return header.end


def apply(service: KeyValueService, batches: Sequence[bytes]) -> BatchHeader:
    """Apply batches as a member does; return the header of the last one."""
    for data in batches:
        header = decode_header_untrusted(data)
        for index, entry in enumerate(decode_entries_untrusted(data)):
            if entry.kind is EntryKind.COMMAND:
                place = (header.term, header.position, index, header.timestamp_ms)
                stamp = entry.session, entry.sequence
                service.apply(Command(entry.payload, entry.flags, *stamp, *place))
        service.advance(header.end, header.timestamp_ms)
    return decode_header_untrusted(batches[-1])


def damage(directory: Path, term: int, position: int) -> None:
    """Flip a bit of a recorded batch, behind the back of a closed store."""
    key = term.to_bytes(8, "big") + position.to_bytes(8, "big")
    with lmdb.open(str(directory / "log"), max_dbs=8) as environment:
        log = environment.open_db(b"log", create=False)
        with environment.begin(write=True) as txn:
            batch = txn.get(key, db=log)
            assert batch is not None
            txn.put(key, batch[:100] + bytes((batch[100] ^ 1,)) + batch[101:], db=log)
