"""QUORATE.SLOTS ROWS and CHANGES: reading the rows of slots for another partition."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from quorate.keyvalue.commands import slot_rows
from quorate.keyvalue.protocol.payload import TRANSACTION
from quorate.keyvalue.slots.hashing import key_slot
from tests.support.service_world import START_MS
from tests.support.slots_world import ALL, PartitionFed, slot_of

A = slot_of("a")


@pytest.fixture
def fed(tmp_path: Path) -> Generator[PartitionFed]:
    fed = PartitionFed(tmp_path)
    yield fed
    fed.close()


def all_rows(fed: PartitionFed, slots: object, count: int) -> list[list[Any]]:
    found: list[list[Any]] = []
    cursor = b""
    for _ in range(200):
        cursor, *some = fed.ask("ROWS", slots, cursor, count)
        found += some
        if not cursor:
            return found
    raise AssertionError("the rows have no end")


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_every_row_of_the_slots_is_read_once(fed: PartitionFed, count: int) -> None:
    for number in range(20):
        fed.apply(f"SET {{a}}{number} {number} PX 1000")
        fed.apply(f"SET {{b}}{number} {number}")
    fed.apply("DEL {a}3", "APPEND {a}4 x")
    fed.restart()
    fed.apply("SET {a}5 new", "DEL {a}6")
    found = {row[0]: row[1:] for row in all_rows(fed, A, count)}
    assert set(found) == {b"{a}%d" % number for number in range(20) if number not in (3, 6)}
    assert found[b"{a}7"] == [b"7", START_MS + 1000, 320 * 15 + 1, b"1"]
    assert found[b"{a}4"][0::3] == [b"4x", b"2"], "the tag comes along"
    assert found[b"{a}5"][:2] == [b"new", 0]
    assert all_rows(fed, "1", count) == []
    assert len(all_rows(fed, ALL, count)) == 38


def test_rows_that_have_expired_are_read_until_they_are_removed(fed: PartitionFed) -> None:
    fed.apply("SET a 1 PX 1000")
    fed.slots("FREEZE", 3, A, 7)
    fed.pass_time(5000)
    assert [row[0] for row in all_rows(fed, A, 10)] == [b"a"]


def test_a_page_of_rows_has_a_bounded_size(
    fed: PartitionFed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_rows, "PAGE_BYTES", 1000)
    for number in range(6):
        fed.apply(["SET", f"{{a}}{number}", "x" * (2000 if number == 3 else 400)])
    cursor, *some = fed.ask("ROWS", A, "", 100)
    assert (len(some), cursor) == (2, b"{a}1")
    assert [row[0] for row in all_rows(fed, A, 100)] == [b"{a}%d" % i for i in range(6)]
    assert fed.ask("ROWS", A, "x" * 481, 100) == "ERR"


def test_long_keys_are_read_too(fed: PartitionFed) -> None:
    keys = [b"{a}" + bytes([65 + number]) * 700 for number in range(5)]
    for key in [*keys, b""]:
        fed.apply(["SET", key, "1"])
    assert {row[0] for row in all_rows(fed, A, 2)} == set(keys)
    assert [row[0] for row in all_rows(fed, key_slot(b""), 2)] == [b""]


def test_changes_are_the_last_ones_of_each_key(fed: PartitionFed) -> None:
    fed.apply("SET a 1", "SET {a}1 1 PX 100")
    (after,) = fed.ask("CHANGES", A, -1)
    assert fed.ask("CHANGES", A, after) == [after]
    fed.apply("SET a 2", "SET b 2")
    fed.apply("APPEND a 3")
    fed.pass_time(1000)
    upto, *rows = fed.ask("CHANGES", A, after)
    assert upto == fed.service.changes.position
    assert rows == [
        [b"a", b"23", 0, fed.position - 640 + 1, b"2"],
        [b"{a}1", b"", 0, fed.position, b"-"],
    ]
    assert fed.ask("CHANGES", A, upto) == [upto]
    assert fed.ask("CHANGES", 1, after) == [upto]


def test_many_changes_take_several_pages(
    fed: PartitionFed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_rows, "PAGE_ROWS", 3)
    (after,) = fed.ask("CHANGES", ALL, -1)
    for number in range(10):
        fed.apply(f"SET {{a}}{number} 1", f"SET {{b}}{number} 1")
    found, pages = list[bytes](), 0
    while after < fed.service.changes.position:
        after, *rows = fed.ask("CHANGES", A, after)
        found += [row[0] for row in rows]
        pages += 1
    assert found == [b"{a}%d" % number for number in range(10)]
    assert pages == 5


def test_changes_that_are_gone_are_lost(fed: PartitionFed) -> None:
    fed.service.changes.rest()
    fed.apply("SET a 1")
    assert fed.ask("CHANGES", A, 0) == "LOST", "nothing was kept"
    (after,) = fed.ask("CHANGES", A, -1)
    fed.apply("SET a 2")
    assert fed.ask("CHANGES", A, after)[1][0] == b"a"
    assert fed.ask("CHANGES", A, 320) == "LOST"
    assert fed.ask("CHANGES", A, fed.position + 1) == "LOST"
    fed.restart()
    fed.apply("SET a 3")
    assert fed.ask("CHANGES", A, after) == "LOST", "this member did not see them"


def test_nothing_is_copied_over_a_flushall(fed: PartitionFed) -> None:
    (after,) = fed.ask("CHANGES", A, -1)
    fed.apply("FLUSHALL")
    fed.apply("SET a 1")
    assert fed.ask("CHANGES", A, after) == "LOST"


def test_an_entry_that_no_reply_can_hold_is_lost(
    fed: PartitionFed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_rows, "MAX_REPLY_BYTES", 1000)
    (after,) = fed.ask("CHANGES", A, -1)
    fed.apply(["SET", "a", "x" * 2000])
    assert fed.ask("CHANGES", A, after) == "LOST"


def test_other_slots_that_go_are_no_change(fed: PartitionFed) -> None:
    fed.apply(["SET", "", "1"])
    here = key_slot(b"")
    (after,) = fed.ask("CHANGES", here, -1)
    fed.slots("FREEZE", 3, A, 7)
    fed.slots("RELEASE", 3, 7, 0)
    assert fed.ask("CHANGES", here, after) == [fed.service.changes.position]


def test_rows_and_changes_are_not_read_in_the_log(fed: PartitionFed) -> None:
    assert fed.slots("ROWS", A, "", 10) == fed.slots("CHANGES", A, -1) == "ERR"
    assert fed.apply("QUORATE.SLOTS STATE", flags=TRANSACTION).startswith(b"*1\r\n$")
    assert fed.ask("PURGE", 1) == fed.ask("FREEZE", 3, A, 1) == "ERR", "a query can't write"


def test_changes_are_kept_as_long_as_somebody_asks_for_them(fed: PartitionFed) -> None:
    recent = fed.service.changes
    recent.rest()
    fed.pass_time(3_600_000)
    (after,) = fed.ask("CHANGES", A, -1)
    fed.pass_time(3_600_000)  # the log's time was old
    fed.apply("SET a 1")
    for _ in range(3):
        fed.pass_time(50_000)
        after = fed.ask("CHANGES", A, after)[0]
        fed.apply("SET a 1")
    assert recent.keeping
    fed.pass_time(60_001)
    assert not recent.keeping
    assert fed.ask("CHANGES", A, after) == "LOST"


def test_changes_that_a_watch_needs_are_kept(fed: PartitionFed) -> None:
    recent = fed.service.changes
    recent.rest()
    fed.ask("CHANGES", A, -1)
    recent.keep()  # as watches do
    fed.ask("CHANGES", A, -1)
    for _ in range(3):
        fed.pass_time(60_001)
    assert recent.keeping
