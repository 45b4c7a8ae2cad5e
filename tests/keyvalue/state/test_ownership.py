"""QUORATE.SLOTS: each step of a move, repeated, late, in the wrong order, and after restarts."""

from collections.abc import Generator
from pathlib import Path

import pytest
import trio

from quorate.errors import StorageError
from quorate.keyvalue.commands.table import lookup
from quorate.keyvalue.limits import MAX_VALUE_BYTES
from quorate.keyvalue.state.ownership import FOREIGN, FROZEN_SLOT, KEPT_MOVES, OWNED, Ownership
from quorate.keyvalue.state.ownership_note import SLOTS_NOTE
from quorate.storage.tables.tables import Tables
from tests.support.service_world import START_MS, Fed, open_service
from tests.support.slots_world import ALL, KEYS, Mover, PartitionFed, slot_of

A = slot_of("a")
ROW = ("a", "1", 0, 321, 1)


@pytest.fixture
def source(tmp_path: Path) -> Generator[PartitionFed]:
    fed = PartitionFed(tmp_path / "source")
    yield fed
    fed.close()


@pytest.fixture
def target(tmp_path: Path) -> Generator[PartitionFed]:
    fed = PartitionFed(tmp_path / "target", "")
    yield fed
    fed.close()


def note_of(fed: PartitionFed) -> bytes:
    return fed.service._tables.notes.rows[SLOTS_NOTE]  # pyright: ignore[reportPrivateUsage]


def test_without_partitions_the_commands_are_refused(tmp_path: Path) -> None:
    fed = Fed(open_service(tmp_path))
    assert fed.service.ownership is None
    for line in ("FOUND 0-1", "STATE", "PURGE 10"):
        assert fed.apply(f"QUORATE.SLOTS {line}").startswith(b"-ERR this cluster has no partitions")
    fed.service.close()


def test_only_administrators_may_move_slots() -> None:
    spec = lookup(b"quorate.slots")
    assert spec is not None
    for each in spec.subcommands.values():
        assert each.categories == ("@admin", "@slow", "@dangerous"), each.name


def test_first_slots_are_given_once(tmp_path: Path) -> None:
    fed = PartitionFed(tmp_path, None)
    assert not fed.ownership.founded
    assert fed.facts()["owned"] == []
    assert fed.slots("FOUND", "0-99") == b"OK"
    assert fed.slots("FOUND", ALL) == b"FOUNDED"
    fed.restart()
    assert fed.slots("FOUND", ALL) == b"FOUNDED"
    assert fed.facts()["owned"] == [{"slots": "0-99", "epoch": 1, "since": 0, "begun": 0}]
    assert [fed.ownership.states[slot] for slot in (0, 99, 100)] == [OWNED, OWNED, FOREIGN]
    assert (fed.ownership.epoch_of(99), fed.ownership.epoch_of(100)) == (1, 0)
    fed.close()


@pytest.mark.parametrize(
    "line",
    [
        "FOUND 0-16384",
        "FOUND 5-4",
        "IMPORT x 0-1",
        "IMPORT -1 0-1",
        "FREEZE 1 0-1,1 1",
        "OWN 1 2 3 -4",
        "OWN 1 4611686018427387904 3 4",
        "RELEASE 1 2 x",
        "CHUNK 1 1 a 1 0 321",
        "CHUNK 1 1 a 1 0 321 256",
        "CHUNK 1 1 a 1 0 321 x",
        "PURGE x",
        "NOSUCH",
        "THAW",
        "ROWS 0-1  x",
    ],
)
def test_malformed_commands_change_nothing(source: PartitionFed, line: str) -> None:
    source.apply("SET a 1")
    source.slots("FREEZE", 9, A, 7)
    before = source.facts()
    assert source.slots(*line.split(" ")) == "ERR"
    assert source.facts() == before


def test_frozen_slots_thaw(source: PartitionFed) -> None:
    frozen = source.slots("FREEZE", 3, A, 7)
    assert frozen == [source.position - 320 + 1, START_MS, 1]
    source.pass_time(10)
    assert source.slots("FREEZE", 3, A, 7) == frozen, "the same reply again"
    assert source.slots("FREEZE", 3, "1,2", 7) == "ERR", "the slots of a move never change"
    assert source.slots("FREEZE", 4, A, 7) == "NOTOWNED"
    assert source.ownership.states[A] == FROZEN_SLOT
    assert source.slots("THAW", 3) == b"OK"
    assert source.ownership.states[A] == OWNED
    assert source.slots("THAW", 3) == b"OK"
    assert source.slots("FREEZE", 3, A, 7) == "ENDED", "a late command"
    assert source.slots("RELEASE", 3, 1, 0) == "NOTFROZEN"


def test_a_move_that_was_thawed_before_it_froze_never_freezes(source: PartitionFed) -> None:
    assert source.slots("THAW", 3) == b"OK"
    assert source.slots("FREEZE", 3, A, 7) == "ENDED"
    assert source.ownership.states[A] == OWNED


def test_released_slots_are_stale_until_they_are_purged(source: PartitionFed) -> None:
    source.apply("SET a 1")
    source.apply("SET b 1")
    assert source.slots("RELEASE", 3, 7, 1) == "NOTFROZEN"
    source.slots("FREEZE", 3, A, 7)
    assert source.slots("RELEASE", 3, 7, 1) == b"OK"
    assert source.slots("RELEASE", 3, 7, 1) == b"OK"
    assert source.slots("THAW", 3) == "ENDED", "it has another owner now"
    assert source.slots("FREEZE", 3, A, 7) == "ENDED"
    assert source.slots("IMPORT", 4, A) == "NOTCLEAN"
    assert source.ownership.went_to(A) == 7
    assert source.ownership.went_to(slot_of("b")) is None
    assert source.ownership.epoch_of(A) == 2
    facts = source.facts()
    assert facts["stale"] == str(A)
    assert facts["keys"] == 1
    (moved,) = facts["moved"]
    assert (moved["slots"], moved["target"], moved["epoch"]) == (str(A), 7, 2)
    assert source.ownership.hides
    assert source.slots("PURGE", 100) == 0
    assert source.slots("PURGE", 100) == 0
    assert not source.ownership.hides
    assert source.facts()["stale"] == ""
    assert source.query("DBSIZE") == b":1\r\n"
    assert source.slots("IMPORT", 4, A) == b"OK"


def test_a_purge_goes_on_where_it_was_also_after_a_restart(source: PartitionFed) -> None:
    for number in range(20):
        source.apply(f"SET {{a}}{number} 1")
        source.apply(f"SET {{b}}{number} 1")
    source.slots("FREEZE", 3, A, 7)
    source.slots("RELEASE", 3, 7, 20)
    purges = 0
    while source.slots("PURGE", 7):
        purges += 1
        source.restart()
        assert source.query("DBSIZE") == b":20\r\n"
    assert purges == 5
    assert source.facts()["keys"] == 20


def test_a_purge_goes_as_far_on_every_member(tmp_path: Path) -> None:
    kept, flushed = PartitionFed(tmp_path / "kept"), PartitionFed(tmp_path / "flushed")
    for at in range(4):
        for fed in (kept, flushed):
            fed.apply(
                *(f"SET {tag}{number}{at} 1" for tag in ("{a}", "{b}") for number in range(6))
            )
            fed.apply(f"DEL {{a}}{at}{at}")
        flushed.restart()
        flushed.apply(f"SET {{a}}0{at} 2")
        kept.apply(f"SET {{a}}0{at} 2")
    for fed in (kept, flushed):
        fed.slots("FREEZE", 3, A, 7)
        fed.slots("RELEASE", 3, 7, 20)
    more = 1
    while more:
        more = kept.slots("PURGE", 5)
        assert flushed.slots("PURGE", 5) == more
        assert note_of(flushed) == note_of(kept)
    assert flushed.query("DBSIZE") == kept.query("DBSIZE") == b":24\r\n"
    kept.close()
    flushed.close()


def test_slots_that_become_stale_amid_a_purge_take_another_one(source: PartitionFed) -> None:
    for key in ("{a}1", "{a}2", "{b}1", "{b}2"):
        source.apply(f"SET {key} 1")
    for move, key in ((3, "a"), (4, "b")):
        source.slots("FREEZE", move, slot_of(key), 7)
    source.slots("RELEASE", 3, 7, 2)
    assert source.slots("PURGE", 1) == 1
    source.slots("RELEASE", 4, 7, 2)
    assert source.slots("PURGE", 10) == 1, "the slots of b are still stale"
    assert source.facts()["stale"] == str(slot_of("b"))
    assert source.slots("PURGE", 10) == 0
    assert source.facts()["keys"] == 0


def test_chunks_are_applied_once_and_in_order(target: PartitionFed) -> None:
    assert target.slots("CHUNK", 3, 1, *ROW) == "ENDED", "nothing is importing"
    assert target.slots("IMPORT", 3, A) == b"OK"
    assert target.slots("IMPORT", 3, A) == b"OK"
    assert target.slots("IMPORT", 3, "1") == "ERR"
    assert target.slots("IMPORT", 4, f"{A}-{A + 1}") == "NOTCLEAN"
    assert target.slots("IMPORT", 4, "") == "NOTCLEAN"
    assert target.slots("CHUNK", 3, 2, *ROW) == "GAP"
    assert target.slots("CHUNK", 3, 1, *ROW) == b"OK"
    assert target.slots("CHUNK", 3, 1, "a", "other", 0, 321, 1) == b"OK", "ignored"
    assert target.slots("CHUNK", 3, 2, "b", "1", 0, 321, 1) == "ERR", "b is of another slot"
    assert target.slots("CHUNK", 3, 2, "{a}1", "1", 0, 641, 2, "a", "", 0, 700, "-") == b"OK"
    assert target.ask("STATE")
    assert target.facts()["importing"] == [{"move": 3, "slots": str(A), "chunk": 2, "keys": 1}]
    assert target.query("DBSIZE", "KEYS *") == b":0\r\n*0\r\n", "they are hidden"
    target.restart()
    assert target.slots("CHUNK", 3, 2, *ROW) == b"OK"
    assert target.slots("OWN", 3, 9000, START_MS, 1) == 1
    assert target.query("KEYS *", "OBJECT ENCODING {a}1", "GET {a}1") == (
        b"*1\r\n$4\r\n{a}1\r\n$3\r\nraw\r\n$1\r\n1\r\n"
    )


def test_a_slot_is_taken_over_once(target: PartitionFed) -> None:
    assert target.slots("OWN", 3, 9000, START_MS, 1) == "ENDED", "it never began"
    target.slots("IMPORT", 3, A)
    target.slots("CHUNK", 3, 1, *ROW)
    assert target.slots("OWN", 3, 9000, START_MS, 4) == 1
    assert target.slots("OWN", 3, 9000, START_MS, 4) == 1
    target.restart()
    assert target.slots("OWN", 3, 9000, START_MS, 4) == 1
    assert target.slots("DROP", 3) == b"OWNED"
    assert target.slots("CHUNK", 3, 2, *ROW) == "ENDED"
    assert target.slots("IMPORT", 3, A) == "ENDED"
    assert (target.ownership.epoch_of(A), target.ownership.since_of(A)) == (5, 9000)
    assert target.apply("GET a") == b"$1\r\n1\r\n"


def test_a_dropped_move_stays_dropped(target: PartitionFed) -> None:
    target.slots("IMPORT", 3, A)
    target.slots("CHUNK", 3, 1, *ROW)
    assert target.slots("DROP", 3) == b"DROPPED"
    assert target.slots("DROP", 3) == b"DROPPED"
    target.restart()
    assert target.slots("OWN", 3, 9000, START_MS, 1) == "ENDED"
    assert target.slots("CHUNK", 3, 2, *ROW) == "ENDED"
    assert target.slots("IMPORT", 3, A) == "ENDED"
    assert target.slots("IMPORT", 4, A) == "NOTCLEAN", "its row is still here"
    assert target.facts()["stale"] == str(A)
    assert target.query("DBSIZE") == b":0\r\n"
    assert target.slots("PURGE", 10) == 0
    assert target.slots("IMPORT", 4, A) == b"OK"


def test_a_move_that_was_dropped_before_it_began_never_begins(target: PartitionFed) -> None:
    assert target.slots("DROP", 3) == b"DROPPED"
    assert target.slots("IMPORT", 3, A) == "ENDED"


def test_a_late_founding_does_not_claim_what_has_moved(tmp_path: Path) -> None:
    fed = PartitionFed(tmp_path, None)
    fed.slots("IMPORT", 3, A)
    assert fed.slots("FOUND", ALL) == b"FOUNDED"
    fed.close()


def test_moves_that_ended_long_ago_are_still_refused(target: PartitionFed) -> None:
    target.slots("IMPORT", 5, A)
    for move in range(10, 12 + KEPT_MOVES):
        target.slots("DROP", move)
    assert target.slots("IMPORT", 4, "1") == "ENDED", "it is older than one that is forgotten"
    assert target.slots("DROP", 10) == "ENDED", "nobody knows how it ended"
    assert target.slots("THAW", 10) == b"OK", "it has not frozen anything"
    assert target.slots("OWN", 5, 9000, START_MS, 1) == 0, "this one has not ended"
    assert target.slots("OWN", 5, 9000, START_MS, 1) == 0
    assert len(target.facts()["ended"]) == KEPT_MOVES


def test_a_release_of_a_move_that_ended_long_ago_is_done(source: PartitionFed) -> None:
    source.slots("FREEZE", 3, A, 7)
    assert source.slots("RELEASE", 3, 7, 0) == b"OK"
    for move in range(10, 12 + KEPT_MOVES):
        source.slots("DROP", move)
    before = source.facts()
    assert "3" not in before["ended"]
    assert source.slots("RELEASE", 3, 7, 0) == b"OK", "or its director sends it for ever"
    assert source.facts() == before
    assert source.slots("RELEASE", 1000, 7, 0) == "NOTFROZEN"


def test_revisions_and_time_rise_over_a_move(source: PartitionFed, target: PartitionFed) -> None:
    for _ in range(30):
        source.apply("INCR a")
    source.pass_time(900)
    old = source.query("QUORATE.RECORDS a")
    move = Mover(3, str(A), source, target)
    move.run()
    assert target.query("QUORATE.RECORDS a") == old, "value and revision have come along"
    assert target.query("TTL a", "QUORATE.POSITION").startswith(b":-1")
    before = target.service.changes.position
    assert before > move.frozen[0] > target.position
    target.apply("SET a 1 PX 100")
    record = target.query("QUORATE.RECORDS a")
    revision, expires_at_ms = (int(line[1:]) for line in record.split(b"\r\n")[4:6])
    assert revision > before
    assert expires_at_ms == source.now + 100, "log time is not behind that of the source"
    target.restart()
    assert target.query("QUORATE.POSITION") == b":%d\r\n" % (before + 320)
    target.apply("SET a 2")
    assert target.service.changes.position == before + 640


def test_commands_behind_an_own_in_one_entry_have_revisions_above_it(target: PartitionFed) -> None:
    target.slots("IMPORT", 3, A)
    target.slots("CHUNK", 3, 1, *ROW)
    reply = target.apply("QUORATE.SLOTS OWN 3 9000 1 1", "SET a 2", "QUORATE.POSITION")
    assert int(reply.split(b":")[-1]) > 9000
    assert target.service.changes.position > 9000


def test_a_slot_may_come_back(source: PartitionFed, target: PartitionFed) -> None:
    source.apply("SET a 1")
    Mover(3, str(A), source, target).run()
    assert source.slots("PURGE", 10) == 0
    target.apply("APPEND a 2")
    Mover(4, str(A), target, source).run()
    assert source.apply("GET a") == b"$2\r\n12\r\n"
    assert source.ownership.epoch_of(A) == target.ownership.epoch_of(A) == 3
    assert source.ownership.went_to(A) is None
    assert target.ownership.went_to(A) == 1


def test_what_waits_for_a_move_expires_behind_it(
    source: PartitionFed, target: PartitionFed
) -> None:
    source.apply("SET a 1 PX 100")
    source.apply("SET b 1 PX 100")
    move = Mover(3, str(A), source, target)
    move.begin()
    move.copy()
    move.freeze()
    source.pass_time(1000)
    source.pass_time(1000)
    changed = [(change.kind.value, change.key) for change in source.service.changes.after(0, b"")]
    assert ("expired", b"b") in changed
    assert ("expired", b"a") not in changed, "the target's watches will see it"
    target.now += 5000
    target.pass_time(0)
    assert target.service.changes.after(0, b"") == [], "nothing is seen before it is owned"
    move.run()
    (change,) = target.service.changes.after(0, b"")
    assert (change.kind.value, change.key) == ("expired", b"a")
    assert change.position > target.ownership.since_of(A)
    assert source.query("DBSIZE") == target.query("DBSIZE") == b":0\r\n"


def test_frozen_keys_expire_when_they_thaw(source: PartitionFed) -> None:
    source.apply("SET a 1 PX 100")
    source.slots("FREEZE", 3, A, 7)
    source.pass_time(1000)
    source.restart()
    source.pass_time(1000)
    source.slots("THAW", 3)
    assert source.query("GET a", "DBSIZE") == b"$-1\r\n:0\r\n"
    (change,) = source.service.changes.after(source.position - 320, b"")
    assert (change.kind.value, change.key) == ("expired", b"a")
    assert len(source.service._tables) == 0  # pyright: ignore[reportPrivateUsage]


def test_stale_rows_expire_unseen(source: PartitionFed) -> None:
    source.apply("SET a 1 PX 100")
    source.apply("SET {a}2 1")
    source.slots("FREEZE", 3, A, 7)
    source.slots("RELEASE", 3, 7, 2)
    source.pass_time(1000)
    assert source.query("DBSIZE", "QUORATE.EXPIRING") == b":0\r\n:0\r\n"
    kinds = {change.kind.value for change in source.service.changes.after(0, b"")}
    assert kinds == {"set", "moved"}


def test_changes_are_heard(source: PartitionFed) -> None:
    heard: list[int] = []
    source.ownership.listen(lambda: heard.append(source.ownership.version))
    source.slots("FREEZE", 3, A, 7)
    source.slots("FREEZE", 3, A, 7)
    source.slots("THAW", 3)
    assert len(heard) == 2
    assert heard == sorted(set(heard))


async def test_a_member_that_loads_a_snapshot_has_the_same_slots(tmp_path: Path) -> None:
    fed = PartitionFed(tmp_path / "one", "0-16000")
    other = PartitionFed(tmp_path / "other", "0-99")
    for key in KEYS:
        fed.apply(f"SET {key} 1 PX 1000")
    fed.slots("FREEZE", 3, A, 7)
    fed.slots("RELEASE", 3, 7, 2)
    fed.slots("PURGE", 1)
    fed.slots("FREEZE", 4, slot_of("b"), 7)
    assert fed.slots("IMPORT", 5, 16100) == b"OK"
    fed.slots("DROP", 6)
    fed.slots("FREEZE", 7, "1", 3)
    fed.slots("RELEASE", 7, 3, 0)
    heard: list[int] = []
    other.ownership.listen(lambda: heard.append(other.ownership.version))
    async with trio.open_nursery() as nursery:
        for each in (fed, other):
            await nursery.start(each.service.run)
        pieces = list(await fed.service.save())
        await other.service.load(iter(pieces), fed.position, fed.now)
        other.position = fed.position
        assert len(heard) == 1
        assert other.facts() == fed.facts()
        assert other.ownership.states == fed.ownership.states
        for each in (fed, other):
            each.now = fed.now
            each.pass_time(2000)
            each.slots("THAW", 4)
            while each.slots("PURGE", 2):
                pass
            each.apply("SET b 2")
        assert other.facts() == fed.facts()
        assert other.query("QUORATE.RECORDS b", "DBSIZE") == fed.query(
            "QUORATE.RECORDS b", "DBSIZE"
        )
        assert list(await fed.service.save()) == list(await other.service.save())
        nursery.cancel_scope.cancel()
    fed.close()
    other.close()


@pytest.mark.parametrize(
    "row", [b"", b"{", b'{"owned": 5}', b'{"stale": "x"}', b'{"stale": "99999"}', b"[1]"]
)
def test_a_note_that_cannot_be_read_is_refused(tmp_path: Path, row: bytes) -> None:
    fed = PartitionFed(tmp_path)
    tables: Tables = fed.service._tables  # pyright: ignore[reportPrivateUsage]
    tables.put_note(SLOTS_NOTE, row)
    with pytest.raises(StorageError, match="slots can't be read"):
        Ownership(tables)
    fed.close()


@pytest.mark.parametrize("wait", [0, 500])
def test_log_time_that_came_with_slots_is_in_a_snapshot(
    source: PartitionFed, target: PartitionFed, tmp_path: Path, wait: int
) -> None:
    """A member that loads it gives the same deadlines as one that has applied OWN."""
    source.pass_time(900)
    Mover(3, str(A), source, target).run()
    target.pass_time(wait)
    other = loaded_from(target, tmp_path / "other")
    deadlines = set[bytes]()
    for each in (target, other):
        each.apply("SET a 1 PX 100")
        deadlines.add(each.query("PEXPIRETIME a"))
        each.close()
    assert deadlines == {b":%d\r\n" % (source.now + 100)}


def test_slots_of_a_group_with_a_wrong_clock_are_not_taken_over(
    source: PartitionFed, target: PartitionFed
) -> None:
    """Else the leases of all other keys would end, and nothing would expire for long."""
    target.apply("SET b 1 PX 3000")
    source.pass_time(1001)
    move = Mover(3, str(A), source, target)
    while move.step != move.own:
        assert move.step()
    assert target.slots("OWN", 3, *move.frozen) == "EARLY"
    assert target.facts()["importing"], "nothing was done"
    target.pass_time(1)
    assert target.slots("OWN", 3, *move.frozen) == 0
    assert target.slots("TIME") == source.now
    target.pass_time(1)
    assert target.slots("TIME") == source.now, "log time never goes back"


def test_a_release_names_the_partition_that_the_freeze_has_named(source: PartitionFed) -> None:
    source.slots("FREEZE", 3, A, 7)
    assert source.slots("FREEZE", 3, A, 8) == "ERR"
    assert source.slots("RELEASE", 3, 8, 0) == "ERR"
    assert source.facts()["frozen"][0]["target"] == 7
    assert source.slots("RELEASE", 3, 7, 0) == b"OK"


def test_a_value_comes_in_pieces(target: PartitionFed) -> None:
    target.slots("IMPORT", 3, A)
    assert target.slots("CHUNK", 3, 1, "a", "more", 0, 5, "+") == "ERR", "of no row"
    assert target.slots("CHUNK", 3, 1, "a", "one", 0, 5, 1) == b"OK"
    for _ in range(2):
        assert target.slots("CHUNK", 3, 2, "a", " two", 0, 5, "+") == b"OK"
    assert target.slots("CHUNK", 3, 3, "a", b"x" * MAX_VALUE_BYTES, 0, 5, "+") == "ERR"
    assert target.slots("OWN", 3, 9, target.now, 1) == 1
    assert target.query("GET a") == b"$7\r\none two\r\n"


def loaded_from(fed: PartitionFed, directory: Path) -> PartitionFed:
    """Return another member, which has loaded a snapshot of the first one as of now."""
    other = PartitionFed(directory, None)

    async def copy() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(fed.service.run)
            await nursery.start(other.service.run)
            pieces = await fed.service.save()
            await other.service.load(pieces, fed.position, fed.now)
            nursery.cancel_scope.cancel()

    trio.run(copy)
    other.position, other.now = fed.position, fed.now
    return other
