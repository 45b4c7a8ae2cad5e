"""Taken apart and applied by key, the commands make what a member makes of them, in one order."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.keyvalue.protocol.payload import IN_PARTS, TRANSACTION
from quorate.keyvalue.protocol.resp import encode_command
from quorate.keyvalue.service import KeyValueService
from quorate.node.state_machine.service import Command
from quorate.pipeline.jobs.replay import Machine, Sizes, keys_coupled, pieces, shard_of, sizes
from tests.pipeline.pipeline_world import pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.storage.tables.memtable import Record

Entry = tuple[bytes, int]
"""Payload and flags."""
SHARDS = 3
STEP_MS = 700

keys = st.sampled_from(["a", "b", "c", "d", "e"])
values = st.sampled_from(["1", "2", "x", "y" * 200])
commands = st.one_of(
    st.builds("SET {} {}".format, keys, values),
    st.builds("SET {} {} NX".format, keys, values),
    st.builds("SET {} {} XX KEEPTTL".format, keys, values),
    st.builds("SET {} {} PX 1500".format, keys, values),
    st.builds("PEXPIRE {} 900".format, keys),
    st.builds("PERSIST {}".format, keys),
    st.builds("GETDEL {}".format, keys),
    st.builds("INCR {}".format, keys),
    st.builds("INCRBYFLOAT {} 0.5".format, keys),
    st.builds("APPEND {} {}".format, keys, values),
    st.builds("SETRANGE {} 5 {}".format, keys, values),
    st.builds("DEL {} {}".format, keys, keys),
    st.builds("MSET {} 7 {} 8".format, keys, keys),
    st.builds("MSETNX {} 7 {} 8".format, keys, keys),
    st.builds("RENAME {} {}".format, keys, keys),
    st.builds("COPY {} {} REPLACE".format, keys, keys),
    st.builds("QUORATE.CAS {} ABSENT SET {} PX 1500".format, keys, values),
    st.builds("QUORATE.CAS {} EQUALS {} SET {} KEEPTTL".format, keys, values, values),
    st.builds("QUORATE.CAS {} EQUALS {} DELETE".format, keys, values),
    st.builds("QUORATE.RECORDS {} {}".format, keys, keys),
    st.sampled_from(
        ["FLUSHALL", "QUORATE.POSITION", "GET a", "DBSIZE", "SET a", "MSET a 1 b", "NOVEL a"]
    ),
)
payloads = st.lists(commands, min_size=1, max_size=4).map(lambda found: pipeline(*found))


def watch(key: str, revision: int, rest: list[str]) -> bytes:
    return pipeline(f"WATCH {key} {revision}", *rest)


watching = st.builds(
    watch, keys, st.sampled_from([0, 1, 33, 65, 97]), st.lists(commands, max_size=3)
)
entries = st.one_of(
    st.tuples(payloads, st.sampled_from([0, TRANSACTION, IN_PARTS])),
    st.tuples(watching, st.just(TRANSACTION)),
    st.tuples(st.sampled_from([b"", b"no RESP", b"*1\r\n$3\r\nGE"]), st.just(0)),
)


def command(at: int, payload: bytes, flags: int) -> Command:
    """The entry that a log holds at a place; each is alone in its batch, for simplicity."""
    return Command(payload, flags, 0, 0, 0, at * 32, 0, at * STEP_MS)


def by_a_member(log: Sequence[Entry]) -> list[dict[bytes, Record]]:
    """What a member's own tables hold behind each entry, without what has expired."""
    names = [name.encode() for name in ("a", "b", "c", "d", "e")]
    with TemporaryDirectory() as directory:
        service = KeyValueService.open(Path(directory) / "t", cluster="c", member_id=0)
        found: list[dict[bytes, Record]] = []
        for at, (payload, flags) in enumerate(log):
            service.apply(command(at, payload, flags))
            service.advance((at + 1) * 32, at * STEP_MS)
            tables = service._tables  # pyright: ignore[reportPrivateUsage]
            held = {name: record for name in names if (record := tables.get(name)) is not None}
            found.append(
                {name: one for name, one in held.items() if not one[1] or one[1] > at * STEP_MS}
            )
        service.close()
    return found


def apart(log: Sequence[Entry]) -> list[dict[bytes, Record]]:
    """The same by shards, each on its own, and put together from the versions that come of it."""
    bound = Sizes()
    for payload, _ in log:
        bound |= sizes(payload)
    together: set[bytes] = set()
    for payload, flags in log:
        together |= keys_coupled(payload, flags, bound.bound)
    machines = [Machine() for _ in range(SHARDS + 1)]
    for at, (payload, flags) in enumerate(log):
        for piece in pieces(payload, flags, bound.bound):
            coupled = piece.key is None or piece.key in together
            own = 0 if coupled else shard_of(piece.key or b"", SHARDS)
            for shard in range(SHARDS + 1) if piece.everywhere else (own,):
                machines[shard].apply(
                    piece.payload,
                    piece.flags,
                    term=0,
                    position=at * 32,
                    index=0,
                    timestamp_ms=at * STEP_MS,
                )
    versions = [one for machine in machines for one in machine.take_ended()]
    versions += [one for machine in machines for one in machine.still_open()]
    found: list[dict[bytes, Record]] = []
    for at in range(len(log)):
        held: dict[bytes, Record] = {}
        for key, revision, _change, value, tag, expires_ms, begin, _, end, *_ in versions:
            assert begin is not None
            there = begin <= at * 32 and (end is None or end > at * 32)
            if there and (not expires_ms or expires_ms > at * STEP_MS):
                assert key not in held
                held[key] = (value, expires_ms, revision, tag)
        found.append(held)
    return found


@given(st.lists(entries, min_size=1, max_size=12))
@example([(pipeline("SET a 1", "DEL a", "SET a 2"), 0), (pipeline("RENAME a b"), 0)])
def test_what_is_applied_by_keys_is_what_a_member_makes(log: list[Entry]) -> None:
    assert apart(log) == by_a_member(log)


def test_versions_of_one_entry_are_told_apart() -> None:
    machine = Machine()
    machine.apply(
        pipeline("SET a 1", "SET a 2", "SET a 3"), 0, term=0, position=64, index=2, timestamp_ms=5
    )
    machine.apply(pipeline("SET a 4"), 0, term=0, position=64, index=3, timestamp_ms=5)
    found = [(one[1], one[2], one[3]) for one in (*machine.take_ended(), *machine.still_open())]
    assert found == [(67, 0, b"1"), (67, 1, b"2"), (67, 2, b"3"), (68, 0, b"4")]


def test_changes_for_watchers_are_not_kept() -> None:
    machine = Machine()
    for at in range(3):
        machine.apply(pipeline("SET a 1"), 0, term=0, position=at * 64, index=0, timestamp_ms=5)
    changes = machine._service.changes  # pyright: ignore[reportPrivateUsage]
    assert not changes._rows  # pyright: ignore[reportPrivateUsage]


def test_a_version_that_was_there_before_goes_on() -> None:
    machine = Machine()
    machine.load(b"a", (b"1", 0, 7, 1), change=0, position=None, timestamp_ms=None)
    machine.apply(pipeline("INCR a"), 0, term=0, position=64, index=0, timestamp_ms=5)
    assert machine.take_ended() == [
        (b"a", 7, 0, b"1", 1, 0, None, None, 64, 5, False, False, False)
    ]
    assert [one[3] for one in machine.still_open()] == [b"2"]


# Which entries hang together ----------------------------------------------------------------------

SMALL = 100


@pytest.mark.parametrize(
    ("payload", "flags"),
    [
        (pipeline("RENAME a b"), 0),
        (pipeline("SET a 1", "COPY a b"), 0),
        (pipeline("MSETNX a 1 b 2"), 0),
        (pipeline("WATCH a 0", "SET b 1"), TRANSACTION),
    ],
)
def test_what_must_see_several_keys_is_coupled(payload: bytes, flags: int) -> None:
    assert keys_coupled(payload, flags, SMALL) == {b"a", b"b"}
    assert [piece.key for piece in pieces(payload, flags, SMALL)] == [None]


def test_what_touches_each_key_alone_is_not_coupled() -> None:
    payload = pipeline("MSET a 1 b 2", "DEL c d", "INCR e", "GET f")
    assert keys_coupled(payload, TRANSACTION, SMALL) == set()
    assert [piece.key for piece in pieces(payload, TRANSACTION, SMALL)] == [
        *map(str.encode, "abcde")
    ]


def test_a_large_entry_is_coupled_for_a_member_may_do_it_in_part() -> None:
    payload = b"".join(encode_command(["APPEND", f"k{i}", "x"]) for i in range(1000))
    assert not keys_coupled(payload, IN_PARTS, SMALL)
    assert len(keys_coupled(payload, IN_PARTS, 100_000)) == 1000
    assert not keys_coupled(encode_command(["APPEND", "k", "x"]), IN_PARTS, 32 << 20)


def test_sets_that_travel_together_are_not_coupled_however_many() -> None:
    payload = b"".join(encode_command(["SET", f"k{i}", "x"]) for i in range(1000))
    assert keys_coupled(payload, IN_PARTS, 32 << 20) == set()
    assert len(pieces(payload, IN_PARTS, 32 << 20)) == 1000
    others = payload + encode_command(["SET", "k", "x", "GET"])
    assert keys_coupled(others, IN_PARTS, 32 << 20)


def test_the_length_of_values_is_bounded() -> None:
    found = sizes(pipeline("SET a " + "x" * 9000, "APPEND a yy", "APPEND b zzz"))
    assert found.bound == 9000 + 2 + 3
    assert sizes(pipeline("SETRANGE a 70000 x")).bound >= 70001
