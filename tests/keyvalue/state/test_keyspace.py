"""A second keyspace in the log and the tables of the key-value store."""

# pyright: reportPrivateUsage=false

from pathlib import Path

import pytest
from trio.abc import Clock

from quorate.keyvalue.protocol.payload import ETCD
from quorate.keyvalue.service import KeyValueService
from quorate.node.state_machine.service import Command
from quorate.storage.tables.tables import Tables
from tests.support.storage_world import running
from tests.support.tables_world import open_tables


class Noted:
    """Keeps the last payload as a row, and what it was told."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.deadline: int | None = None
        self.seen: list[tuple[str, object]] = []
        self.resumed_ms = 0

    def apply(self, command: Command, now_ms: int) -> bytes:
        self.seen.append(("apply", now_ms))
        self.tables.put_row(b"last", command.payload)
        return b"applied " + command.payload

    def query(self, payload: bytes, now_ms: int) -> bytes:
        return b"%b %d" % (self.tables.get_row(b"last") or b"", now_ms)

    def begin_term(self, now_ms: int) -> None:
        self.seen.append(("term", now_ms))

    def advance(self, now_ms: int) -> None:
        self.seen.append(("advance", now_ms))

    def next_deadline_ms(self) -> int | None:
        return self.deadline

    def halt(self) -> None:
        self.seen.append(("halt", self.tables.get_row(b"last")))

    def reload(self) -> None:
        self.seen.append(("reload", self.tables.get_row(b"last")))

    def resume(self, now_ms: int) -> None:
        self.resumed_ms = now_ms


def entry(payload: bytes, flags: int, position: int, timestamp_ms: int) -> Command:
    return Command(payload, flags, 0, 0, 1, position, 0, timestamp_ms)


@pytest.fixture
async def one(tmp_path: Path, autojump_clock: Clock) -> KeyValueService:
    return KeyValueService(open_tables(tmp_path / "one"), keyspace=Noted)


async def test_entries_with_the_flag_are_the_second_keyspaces(one: KeyValueService) -> None:
    assert isinstance(one.keyspace, Noted)
    async with running(one._tables):
        one.begin_term(4000)
        assert one.apply(entry(b"*1\r\n$4\r\nPING\r\n", ETCD, 0, 5000)).startswith(b"applied *1")
        assert one.apply(entry(b"\x02b", ETCD, 64, 4500)) == b"applied \x02b"
        one.advance(128, 6000)
        assert one.query(b"", ETCD) == b"\x02b 6000"
        # Log time never goes backwards, here neither.
        assert one.keyspace.seen == [
            ("term", 4000),
            ("apply", 5000),
            ("apply", 5000),
            ("advance", 6000),
        ]


async def test_its_deadline_counts_and_redis_keys_stay_apart(one: KeyValueService) -> None:
    assert isinstance(one.keyspace, Noted)
    async with running(one._tables):
        one.apply(entry(b"\x02b", ETCD, 0, 5000))
        one.advance(64, 5000)
        assert one.next_deadline_ms() is None
        one.keyspace.deadline = 5500
        assert one.next_deadline_ms() == 5500
        assert one.query(b"*1\r\n$6\r\nDBSIZE\r\n", 0) == b":0\r\n"


async def test_a_snapshot_has_both(one: KeyValueService, tmp_path: Path) -> None:
    other = KeyValueService(open_tables(tmp_path / "other"), keyspace=Noted)
    assert isinstance(other.keyspace, Noted)
    async with running(one._tables), running(other._tables):
        one.apply(entry(b"\x02b", ETCD, 0, 5000))
        one.apply(entry(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n", 0, 64, 5000))
        one.advance(128, 5000)
        await other.load(iter(list(await one.save())), 128, 5000)
        assert other.keyspace.seen == [("halt", None), ("reload", b"\x02b")]
        assert other.keyspace.resumed_ms == 5000
        assert other.query(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n", 0) == b"$1\r\n1\r\n"


async def test_a_reader_without_the_keyspace_skips_its_entries(tmp_path: Path) -> None:
    reader = KeyValueService(open_tables(tmp_path))
    async with running(reader._tables):
        assert reader.apply(entry(b"\x02b", ETCD, 0, 5000)) == b""
        assert reader.query(b"\x01b", ETCD) == b""
