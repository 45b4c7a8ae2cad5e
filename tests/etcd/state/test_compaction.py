"""Compaction: what goes, when, and what is left; the replies are those of etcd 3.4.23."""

import pytest

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.keyspace import compaction, hashing
from quorate.etcd.keyspace.compaction import PACE_MS
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from tests.support.etcd_tables import Machine, delete_op, put_op


@pytest.fixture
def machine() -> Machine:
    """Revisions 2 to 8: a is put thrice, b put and deleted, c put once."""
    machine = Machine()
    for key in (b"a", b"b", b"a", b"c"):
        machine.put(key)
    machine.delete(b"b")
    machine.put(b"a")
    machine.put(b"d")
    return machine


def rows(machine: Machine) -> list[int]:
    """Return the revisions that have rows."""
    return [int.from_bytes(key[:8], "big") for key, _ in machine.tables.all_rows()]


def test_what_is_compacted_cannot_be_read(machine: Machine) -> None:
    machine.compact(6)
    assert machine.revision == 8
    assert machine.state.compacted == 6
    for read in (
        lambda: machine.range(b"a", revision=5),
        lambda: machine.state.changes_of(5),
        lambda: machine.compact(6),
    ):
        with pytest.raises(EtcdError) as caught:
            read()
        assert (caught.value.code, caught.value.text) == (
            Code.OUT_OF_RANGE,
            "etcdserver: mvcc: required revision has been compacted",
        )
    assert machine.keys(revision=6) == [b"a", b"c"]
    with pytest.raises(EtcdError, match="required revision is a future revision"):
        machine.compact(9)


def test_without_any_compaction_0_can_be_compacted_once(machine: Machine) -> None:
    machine.compact(0)
    with pytest.raises(EtcdError, match="has been compacted"):
        machine.compact(0)
    assert machine.state.compacted == 0


def test_superseded_rows_and_deletions_go(machine: Machine) -> None:
    before = [machine.keys(revision=revision) for revision in range(7, 9)]
    machine.compact_all(7)
    # 4 stays, as what the change of 7 has replaced; 5 is the version of c.
    assert rows(machine) == [4, 5, 7, 8]
    assert [machine.keys(revision=revision) for revision in range(7, 9)] == before
    machine.compact_all(8)
    assert rows(machine) == [5, 7, 8]
    assert machine.keys() == [b"a", b"c", b"d"]


def test_a_watch_can_start_at_the_compacted_revision(machine: Machine) -> None:
    machine.compact_all(6)
    (deletion,) = machine.state.changes_of(6)
    assert (deletion.key, deletion.deleted) == (b"b", True)
    assert machine.state.previous(deletion) is None  # as in etcd: it is compacted
    assert machine.state.previous(machine.state.changes_of(7)[0]) is not None


def test_rows_go_in_slices_that_are_paced_by_log_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SLICE_ROWS", 2)
    machine.compact(8)
    assert rows(machine) == [2, 3, 4, 5, 6, 7, 8]
    counts: list[int] = []
    for _ in range(8):
        machine.batch()
        machine.batch()  # in the same moment: nothing goes
        counts.append(len(rows(machine)))
        machine.now_ms += PACE_MS
    assert counts == [7, 7, 6, 6, 4, 3, 3, 3]
    assert machine.state.next_deadline_ms() is None


def test_a_slice_can_end_within_a_revision(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.delete(b"a", b"\0")
    machine.put(b"z")
    monkeypatch.setattr(compaction, "SLICE_ROWS", 2)
    machine.compact_all(10)
    assert rows(machine) == [10]
    assert machine.put(b"a").prev_kv.version == 0
    machine.state.reload()
    assert machine.keys() == [b"a", b"z"]
    assert machine.state.revision == 11


def test_a_deletion_that_is_gone_hides_no_later_change_of_its_revision(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = rpc.TxnRequest(success=[delete_op(b"a"), delete_op(b"c"), put_op(b"z")])
    machine.txn(txn)
    monkeypatch.setattr(compaction, "SLICE_ROWS", 1)
    machine.compact_all(9)
    assert [one.key for one in machine.state.changes_of(9)] == [b"a", b"c", b"z"]
    machine.put(b"z")
    machine.compact(10)
    while machine.state.next_deadline_ms() is not None:
        machine.now_ms += PACE_MS
        machine.batch()
        # A restart in the middle goes on where it was.
        machine.state.reload()
    assert rows(machine) == [8, 9, 10]  # d, z, and what the change of 10 has replaced


def test_a_second_compaction_can_come_before_the_first_is_done(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SLICE_ROWS", 2)
    machine.compact(5)
    machine.batch()
    machine.compact(7)
    machine.compact_all(8)
    assert rows(machine) == [5, 7, 8]


def test_the_revision_outlives_its_key(machine: Machine) -> None:
    machine.delete(b"a", b"\0")
    machine.compact_all(9)
    machine.state.reload()
    assert (machine.state.revision, machine.state.compacted) == (9, 9)
    machine.put(b"a")
    assert machine.range(b"a").kvs[0].create_revision == 10


def test_restarted_members_go_on_with_the_same_rows(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SLICE_ROWS", 2)
    machine.compact(8)
    for _ in range(8):
        restarted = Machine(machine.tables.copy())
        for one in (machine, restarted):
            one.batch(machine.now_ms + PACE_MS if one is machine else machine.now_ms)
        assert machine.tables.by_key == restarted.tables.by_key
        assert machine.tables.notes.rows == restarted.tables.notes.rows
        assert machine.keys() == restarted.keys() == [b"a", b"c", b"d"]


def test_a_hash_counts_what_is_left_at_once(machine: Machine) -> None:
    hashes = [machine.hash(revision) for revision in (6, 7, 8)]
    assert len({*hashes}) == 3
    assert machine.hash() == hashes[-1]
    machine.compact(7)
    now = [machine.hash(revision) for revision in (7, 8)]
    assert now != hashes[1:]
    with pytest.raises(EtcdError, match="has been compacted"):
        machine.hash(6)
    while machine.due_within(PACE_MS):
        machine.batch(machine.now_ms + PACE_MS)
        assert [machine.hash(revision) for revision in (7, 8)] == now


def test_a_restored_store_goes_on_from_a_higher_revision(machine: Machine) -> None:
    before = machine.range(b"\0", b"\0")
    seen: list[int] = []
    machine.state.listen(lambda revision, _changes: seen.append(revision))
    machine.apply(Op.RESTORED, rpc.CompactionRequest(revision=1_000_000_000 - machine.revision))
    assert seen == [1_000_000_000]
    machine.batch()
    machine.state.reload()
    assert machine.range(b"\0", b"\0") == before
    assert machine.revision == machine.state.compacted == 1_000_000_000
    with pytest.raises(EtcdError, match="has been compacted"):
        machine.range(b"a", revision=8)
    machine.put(b"a")
    machine.delete(b"d")
    machine.put(b"e")
    machine.compact_all(1_000_000_003)
    assert machine.state.changes_of(1_000_000_003)[0].key == b"e"
    # b was deleted before, and nothing comes behind that.
    assert rows(machine) == [3, 5, 6, 1_000_000_001, 1_000_000_003]
    assert machine.keys() == [b"a", b"c", b"e"]
    assert machine.hash() == Machine(machine.tables.copy()).hash()


def test_many_versions_of_one_key_go_in_several_slices(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SLICE_ROWS", 2)
    for _ in range(6):
        machine.put(b"e")
    # The versions of before a restoration stay until their keys change.
    machine.apply(Op.RESTORED, rpc.CompactionRequest(revision=100))
    machine.delete(b"e")
    machine.put(b"d")
    machine.compact(machine.state.revision)
    left = [len(rows(machine))]
    while machine.state.next_deadline_ms() is not None:
        machine.batch(machine.now_ms + PACE_MS)
        left.append(len(rows(machine)))
        assert left[-2] - left[-1] <= 3  # two versions, and a deletion itself
    restarted = Machine(machine.tables.copy())
    assert restarted.keys() == machine.keys() == [b"a", b"c", b"d"]
    assert left[0] - left[-1] == 7


def test_a_hash_is_taken_in_slices_while_others_write(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = machine.hash()
    monkeypatch.setattr(hashing, "SLICE_ROWS", 2)
    slices = machine.state.hashes(0)
    found: list[int] = []
    for number, reply in enumerate(slices):
        found.append(reply.hash)
        machine.put(b"a%d" % number)
        machine.delete(b"d" if not number else b"a0")
        machine.put(b"d")
    assert (len(found), found[-1]) == (5, expected)  # 7 rows, and a slice that finds none
    assert machine.hash() == Machine(machine.tables.copy()).hash() != expected

    slices = machine.state.hashes(0)
    next(slices)
    machine.compact(9)
    with pytest.raises(EtcdError, match="has been compacted"):
        next(slices)
