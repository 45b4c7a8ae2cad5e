"""Members' directories with logs that a test has written."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import attrs
import lmdb
import trio

from quorate.etcd.state.machine import EtcdState
from quorate.keyvalue.protocol.payload import TRANSACTION
from quorate.keyvalue.protocol.resp import encode_command
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.slots.cluster_map import partition_in
from quorate.node.leader.term_event import TermEvent, decode_term_event_untrusted, encode_term_event
from quorate.node.state_machine.service import Command
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
from quorate.storage.rows.term_table import encode_term
from quorate.storage.snapshots.file import head_of
from quorate.storage.snapshots.folder import SnapshotWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

BEGAN_MS = 1_700_000_000_000
ELECTION_MS = 250


@attrs.frozen
class Batch:
    """A batch to be written: the payloads of its entries, their stamps if any, and when.

    A stamp is session and sequence, and a principal if there is one.
    """

    payloads: tuple[bytes, ...]
    timestamp_ms: int
    term: int = 0
    flags: int = 0
    stamps: tuple[tuple[int, ...], ...] = ()
    kind: EntryKind = EntryKind.COMMAND


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


def mixed(count: int, seed: int = 1) -> list[Batch]:
    """Batches of all kinds of commands on few keys, half a second apart."""
    rng = Random(seed)
    batches: list[Batch] = []
    for at in range(count):
        payloads: list[bytes] = []
        for _ in range(rng.randint(1, 4)):
            commands = [one_of(rng) for _ in range(rng.choice((1, 1, 1, 5)))]
            payloads.append(pipeline(*commands))
        flags = TRANSACTION if rng.random() < 0.2 else 0
        batches.append(Batch(tuple(payloads), BEGAN_MS + 500 * at, at // 40, flags))
    return batches


def one_of(rng: Random) -> str:
    """A command; one in a hundred empties the store, one in twenty needs several keys at once."""
    key, other = (f"user:{rng.randrange(30)}" for _ in range(2))
    usual = [
        f"SET {key} {rng.randrange(1000)}",
        f"SET {key} x{rng.randrange(1000)} PX {rng.randrange(1, 9000)}",
        f"SET {key} only NX",
        f"INCR {key}",
        f"APPEND {key} tail",
        f"DEL {key} {other}",
        f"MSET {key} 1 {other} 2",
        f"PEXPIRE {key} 4000",
        f"GET {key}",
    ]
    if rng.random() < 0.01:
        return "FLUSHALL"
    return rng.choice(
        [f"RENAME {key} {other}", f"COPY {key} {other}"] if rng.random() < 0.05 else usual
    )


def encoded(batches: Sequence[Batch]) -> list[bytes]:
    """The batches as a leader encodes them."""
    position, term = 0, -1
    found: list[bytes] = []
    for batch in batches:
        stamps = batch.stamps or ((0, 0),) * len(batch.payloads)
        entries = [
            Entry(batch.kind, payload, batch.flags, *stamp)
            for payload, stamp in zip(batch.payloads, stamps, strict=True)
        ]
        if batch.term != term:
            term = batch.term
            event = TermEvent(term % 3, 7, position, 1, "a test", ELECTION_MS, 2)
            entries.insert(0, Entry(EntryKind.NEW_LEADERSHIP_TERM, encode_term_event(event)))
        data = encode_batch(
            entries,
            term=term,
            position=position,
            timestamp_ms=batch.timestamp_ms,
            commit_position=position,
        )
        found.append(data)
        position += len(data)
    return found


def write_log(
    directory: Path, batches: Sequence[Batch], *, member_id: int = 0, cluster: str = "testing"
) -> int:
    """Record batches in a member's directory, behind what is there; return where they end."""
    return trio.run(_write, directory / "log", encoded(batches), member_id, cluster)


async def _write(
    directory: Path, batches: Sequence[bytes], member_id: int, cluster: str = "testing"
) -> int:
    store = Store.open(directory, cluster=cluster, member_id=member_id, rng=Random(member_id))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            written = [one for one in batches if not _recorded(store, one)]
            for data in written[:-1]:
                store.append(data)
            for data in written[-1:]:
                await store.append_durably(data)
            nursery.cancel_scope.cancel()
        return store.append_position
    finally:
        store.close()


def _recorded(store: Store, data: bytes) -> bool:
    """Whether a batch lies in front of where the log ended when the store was opened."""
    return int.from_bytes(data[24:32], "little") < store.append_position


def shorten_log(
    directory: Path,
    batches: Sequence[Batch],
    count: int,
    *,
    cluster: str = "testing",
    etcd: bool = False,
) -> int:
    """Take a snapshot behind the first `count` batches, as a member does, and drop these.

    With `etcd` it has the keys of etcd's clients, too.

    Returns:
        The position of the snapshot.
    """
    return trio.run(_shorten, directory, encoded(batches)[:count], 0, cluster, etcd)


def forgetful_snapshot(directory: Path, batches: Sequence[Batch], count: int, known: int) -> int:
    """Take a snapshot behind the first `count` batches that has only what the first `known` did.

    Nothing is dropped.

    Returns:
        The position of the snapshot.
    """
    return trio.run(_shorten, directory, encoded(batches)[:count], known, "testing", False)


async def _shorten(
    directory: Path, batches: Sequence[bytes], known: int, cluster: str, etcd: object
) -> int:
    store = Store.open(directory / "log", cluster=cluster, member_id=0, rng=Random(0))
    partition = partition_in(cluster) is not None
    service = KeyValueService.open(
        directory / "tables",
        cluster=cluster,
        member_id=0,
        partition=partition,
        keyspace=EtcdState if etcd else None,
    )
    apply(service, batches[: known or None])
    header = decode_header_untrusted(batches[-1])
    head = head_of(
        cluster,
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
        if not known:
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
            if entry.kind is EntryKind.NEW_LEADERSHIP_TERM:
                service.begin_term(header.timestamp_ms)
            if entry.kind is EntryKind.COMMAND:
                place = (header.term, header.position, index, header.timestamp_ms)
                stamp = entry.session, entry.sequence
                who = entry.principal
                service.apply(Command(entry.payload, entry.flags, *stamp, *place, principal=who))
        service.advance(header.end, header.timestamp_ms)
    return decode_header_untrusted(batches[-1])


def damage(directory: Path, term: int, position: int) -> None:
    """Flip a bit of a recorded batch, behind the back of a closed store."""
    rewrite(
        directory, term, position, lambda data: data[:100] + bytes((data[100] ^ 1,)) + data[101:]
    )


def rewrite(
    directory: Path, term: int, position: int, change: Callable[[bytes], bytes | None]
) -> None:
    """Change a recorded batch, or remove it, behind the back of a closed store."""
    key = term.to_bytes(8, "big") + position.to_bytes(8, "big")
    with lmdb.open(str(directory / "log"), max_dbs=8) as environment:
        log = environment.open_db(b"log", create=False)
        with environment.begin(write=True) as txn:
            batch = txn.get(key, db=log)
            assert batch is not None
            changed = change(batch)
            if changed is None:
                txn.delete(key, db=log)
            else:
                txn.put(key, changed, db=log)


def encoded_anew(data: bytes, **changes: int) -> bytes:
    """Encode a batch with another time or commit position, or with another leader who opens it."""
    header, entries = decode_header_untrusted(data), decode_entries_untrusted(data)
    if "leader" in changes:
        event = decode_term_event_untrusted(entries[0].payload)
        event = attrs.evolve(event, leader_member_id=changes["leader"])
        entries[0] = attrs.evolve(entries[0], payload=encode_term_event(event))
    return encode_batch(
        entries,
        term=header.term,
        position=header.position,
        timestamp_ms=changes.get("timestamp_ms", header.timestamp_ms),
        commit_position=changes.get("commit_position", header.commit_position),
    )


def move_term(directory: Path, rows: Sequence[TermRow]) -> None:
    """Write other rows into the recording log, behind the back of a closed store."""
    with lmdb.open(str(directory / "log"), max_dbs=8) as environment:
        terms = environment.open_db(b"terms", create=False)
        with environment.begin(write=True) as txn:
            for row in rows:
                key, value = encode_term(row)
                txn.put(key, value, db=terms)
