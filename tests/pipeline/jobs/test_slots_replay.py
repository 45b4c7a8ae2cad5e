"""The log of a partition, applied in shards: which commands count depends on who owns a slot."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from quorate.keyvalue.protocol.payload import TRANSACTION
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.slots.hashing import key_slot
from quorate.node.state_machine.service import Command
from quorate.pipeline.jobs.once import partly_applied, unapplied
from quorate.pipeline.jobs.replay import Machine, pieces, shard_of
from quorate.pipeline.jobs.slots_note import note_at
from quorate.pipeline.source.logs import open_log
from quorate.storage import decode_header_untrusted
from quorate.storage.testing import InlineExecutor
from tests.pipeline.pipeline_world import BEGAN_MS, Batch, apply, encoded, pipeline, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage.tables.memtable import Record

SHARDS = 3
TAGS = {tag: key_slot(tag.encode()) for tag in "abc"}
KEYS = [f"{{{tag}}}{at}" for tag in TAGS for at in range(3)]


def lines(rng: random.Random) -> list[str]:
    """Writes of a partition that founds the slot of "a", gets that of "b", and gives "a" away."""
    a, b, _ = TAGS.values()
    found = [f"QUORATE.SLOTS FOUND {a}"]

    def write() -> None:
        for _ in range(rng.randrange(6)):
            key = rng.choice(KEYS)
            line = rng.choice([f"SET {key} {rng.randrange(9)}", f"INCR {key}", f"DEL {key}"])
            found.append(line)

    def copy(move: int) -> None:
        found.append(f"QUORATE.SLOTS IMPORT {move} {b}")
        for number in (1, 2, 2, 4):
            rows = [f"{{b}}{at} {number} 0 {rng.randrange(1 << 20)} 1" for at in range(2)]
            rows.append("{b}2 x 0 5 -")
            found.append(f"QUORATE.SLOTS CHUNK {move} {number} {' '.join(rows)}")
            write()
        found.append(f"QUORATE.SLOTS CHUNK {move} 3 {{b}}0 more 0 5 +")

    write()
    copy(1)
    found.append("QUORATE.SLOTS DROP 1")
    write()
    found.append("QUORATE.SLOTS PURGE 10000")
    copy(2)
    found.append(f"QUORATE.SLOTS OWN 2 {rng.choice([10, 1 << 30])} {BEGAN_MS} 4")
    write()
    found.append(f"QUORATE.SLOTS FREEZE 3 {a} 1")
    write()
    found.append(rng.choice(["QUORATE.SLOTS THAW 3", "QUORATE.SLOTS RELEASE 3 1 3"]))
    write()
    return found


def by_member(directory: Path, log: list[str]) -> dict[bytes, Record]:
    """Apply a log as a member does; return the rows of slots that are served."""
    service = KeyValueService.open(
        directory, cluster="orders.p0", member_id=0, executor=InlineExecutor, partition=True
    )
    try:
        for at, line in enumerate(log):
            service.apply(Command(pipeline(line), 0, 0, 0, 1, 1000 * at, 0, BEGAN_MS + at))
            service.advance(1000 * (at + 1), BEGAN_MS + at)
        keys = [key.encode() for key in KEYS]
        ownership, tables = service.ownership, service._tables  # pyright: ignore[reportPrivateUsage]
        assert ownership is not None
        rows = {key: tables.get(key) for key in keys if ownership.serves(key)}
        return {key: row for key, row in rows.items() if row is not None}
    finally:
        service.close()


@pytest.mark.parametrize("seed", range(6))
def test_shards_make_of_a_partition_s_log_what_its_members_do(seed: int, tmp_path: Path) -> None:
    log = lines(random.Random(seed))
    machines = [Machine(b"") for _ in range(SHARDS + 1)]
    for at, line in enumerate(log):
        for piece in pieces(pipeline(line), 0, 5000):
            own = machines
            if not piece.everywhere:
                own = [machines[0 if piece.key is None else shard_of(piece.key, SHARDS)]]
            for machine in own:
                machine.apply(
                    *(piece.payload, piece.flags),
                    term=1,
                    position=1000 * at,
                    index=0,
                    timestamp_ms=BEGAN_MS + at,
                )
    states = machines[0].states
    found = {
        version[0]: (version[3], version[5], version[1], version[4])
        for machine in machines
        for version in machine.still_open()
        if states[key_slot(version[0])]
    }
    assert found == by_member(tmp_path, log)
    assert len({machine.note for machine in machines}) == 1


def test_a_move_is_in_the_history_of_a_key_and_is_no_write() -> None:
    a, b, _ = TAGS.values()
    log = [
        f"QUORATE.SLOTS FOUND {a}",
        "SET {a}0 1",
        f"QUORATE.SLOTS IMPORT 1 {b}",
        "QUORATE.SLOTS CHUNK 1 1 {b}0 1 0 5 1",
        "QUORATE.SLOTS CHUNK 1 2 {b}0 2 0 6 1",
        f"QUORATE.SLOTS OWN 1 {1 << 20} {BEGAN_MS} 1",
        "SET {b}0 3",
        f"QUORATE.SLOTS FREEZE 2 {b} 1",
        "QUORATE.SLOTS RELEASE 2 1 1",
        f"QUORATE.SLOTS IMPORT 3 {b}",
        "QUORATE.SLOTS PURGE 100",
        f"QUORATE.SLOTS IMPORT 3 {b}",
        "QUORATE.SLOTS CHUNK 3 1 {b}0 4 0 9 1",
    ]
    machine = Machine(b"")
    for at, line in enumerate(log):
        for piece in pieces(pipeline(line), 0, 5000):
            place = {"term": 1, "position": 1000 * at, "index": 0, "timestamp_ms": BEGAN_MS + at}
            machine.apply(piece.payload, piece.flags, **place)
    found = [*machine.take_ended(), *machine.still_open()]
    shown = [(one[0], one[3], one[6], one[8], one[10:]) for one in found]
    assert shown == [
        (b"{b}0", b"2", 5000, 6000, (True, False, False)),  # an earlier copy was seen by nobody
        (b"{b}0", b"3", 6000, 8000, (False, True, False)),
        (b"{a}0", b"1", 1000, None, (False, False, False)),
        (b"{b}0", b"4", 12000, None, (True, False, True)),
    ]


def test_what_a_partition_knows_of_its_slots_is_read_from_its_log(tmp_path: Path) -> None:
    log = lines(random.Random(1))
    batches = [Batch((pipeline(line),), BEGAN_MS + at) for at, line in enumerate([*log, "GET x"])]
    end = write_log(tmp_path / "p", batches, cluster="orders.p0")
    write_log(tmp_path / "other", batches, cluster="orders")
    machine = Machine(note_at(tmp_path / "p", end))
    assert machine.states[TAGS["b"]]
    assert not machine.states[TAGS["c"]]
    assert note_at(tmp_path / "p", 0) == b""
    assert note_at(tmp_path / "other", end) is None


def test_a_command_of_a_session_that_came_to_a_frozen_slot_counts_when_it_comes_again(
    tmp_path: Path,
) -> None:
    slot, stamp = TAGS["a"], ((2, 1),)
    write, other = Batch((pipeline("INCR {a}0"),), BEGAN_MS, stamps=stamp), ((2, 2),)
    log = [
        Batch((pipeline("QUORATE.SESSION OPEN 60000"),), BEGAN_MS),
        Batch((pipeline(f"QUORATE.SLOTS FOUND {slot}"),), BEGAN_MS),
        Batch((pipeline(f"QUORATE.SLOTS FREEZE 1 {slot} 1"),), BEGAN_MS),
        write,
        Batch((pipeline("QUORATE.SLOTS THAW 1"),), BEGAN_MS),
        write,
        write,
        Batch((pipeline("GET {a}0"),), BEGAN_MS, stamps=other),
        Batch((pipeline("GET {a}0"),), BEGAN_MS),
    ]
    write_log(tmp_path, log, cluster="orders.p0")
    places = [decode_header_untrusted(data).position for data in encoded(log)]
    with open_log(tmp_path) as opened:
        found = unapplied(opened, 0, opened.facts.committed)
    assert [at for at, _ in found] == [places[3], places[6]]


def test_a_request_is_applied_as_far_as_its_slots_let_members_execute_it(tmp_path: Path) -> None:
    a, b, _ = TAGS.values()
    both = pipeline("INCR {a}0", "INCR {b}0", "INCR {a}1")
    stamps = [((2, number),) for number in range(1, 4)]
    founded, frozen, released = (
        Batch((pipeline(f"QUORATE.SLOTS {step}"),), BEGAN_MS)
        for step in (f"FOUND {min(a, b)},{max(a, b)}", f"FREEZE 1 {b} 1", "RELEASE 1 1 0")
    )
    log = [
        Batch((pipeline("QUORATE.SESSION OPEN 60000"),), BEGAN_MS),
        founded,
        Batch((both,), BEGAN_MS),
        Batch((both,), BEGAN_MS, flags=TRANSACTION),  # of two slots
        frozen,
        Batch((both,), BEGAN_MS),
        Batch((both,), BEGAN_MS, stamps=stamps[0]),
        released,
        Batch((both,), BEGAN_MS),
        Batch((both,), BEGAN_MS, stamps=stamps[0]),
        Batch((pipeline("INCR {a}0"),), BEGAN_MS, stamps=stamps[1]),
        Batch((b"",), BEGAN_MS),
    ]
    write_log(tmp_path / "log", log, cluster="orders.p0")
    places = [decode_header_untrusted(data).position for data in encoded(log)]
    with open_log(tmp_path / "log") as opened:
        found = partly_applied(opened, 0, opened.facts.committed)
    counts = {at: count for at, _, count in found}
    assert counts == {places[3]: 0, places[5]: 1, places[6]: 0, places[9]: 0}
    machine = Machine(b"")
    for batch, place in zip(log, places, strict=True):
        for piece in pieces(batch.payloads[0], batch.flags, 5000, counts.get(place)):
            machine.apply(
                piece.payload, piece.flags, term=0, position=place, index=0, timestamp_ms=BEGAN_MS
            )
    service = KeyValueService.open(
        tmp_path / "t", cluster="orders.p0", member_id=0, executor=InlineExecutor, partition=True
    )
    apply(service, encoded(log))
    rows = {version[0]: version[3] for version in machine.still_open()}
    for key, value in ((b"{a}0", b"4"), (b"{a}1", b"2")):
        record = service._tables.get(key)  # pyright: ignore[reportPrivateUsage]
        assert record is not None
        assert rows[key] == record[0] == value
    service.close()
