"""Leases: their clock, and how they end."""

import pytest

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.keyspace import leases
from quorate.etcd.keyspace.leases import GRACE_MS, TICK_MS
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.state import machine as machine_file
from quorate.etcd.state import writes
from tests.support.etcd_tables import START_MS, Machine, put_op


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_lease_has_at_least_two_seconds(machine: Machine) -> None:
    assert [machine.grant(lease, ttl) for lease, ttl in ((1, 0), (2, -3), (-9, 100))] == [2, 2, 100]
    assert machine.leases() == [1, 2, -9]  # those that end first
    assert machine.revision == 1


def test_refused_leases(machine: Machine) -> None:
    machine.grant(1, 9_000_000_000)
    for lease, ttl, code, text in (
        (1, 5, Code.FAILED_PRECONDITION, "etcdserver: lease already exists"),
        (2, 9_000_000_001, Code.OUT_OF_RANGE, "etcdserver: too large lease TTL"),
        (0, 5, Code.INVALID_ARGUMENT, "etcdserver: a lease cannot have the id 0 in the log"),
    ):
        with pytest.raises(EtcdError) as caught:
            machine.grant(lease, ttl)
        assert (caught.value.code, caught.value.text) == (code, text)
    for lease in (0, 2):
        with pytest.raises(EtcdError, match="requested lease not found"):
            machine.revoke(lease)


def test_a_revoked_lease_takes_its_keys_in_one_revision(machine: Machine) -> None:
    machine.grant(1, 60)
    for key in (b"c", b"a", b"b"):
        machine.put(key, lease=1)
    machine.put(b"b")  # without a lease: it stays
    machine.revoke(1)
    assert machine.revision == 6
    assert [one.key for one in machine.state.changes_of(6)] == [b"a", b"c"]
    assert machine.keys() == [b"b"]
    machine.grant(1, 60)
    machine.revoke(1)
    assert machine.revision == 6  # there was nothing to delete


def test_a_lease_tells_its_keys_and_its_time(machine: Machine) -> None:
    machine.grant(1, 60)
    machine.put(b"b", lease=1)
    machine.put(b"a", lease=1)
    machine.now_ms += 1
    assert machine.time_to_live(1) == rpc.LeaseTimeToLiveResponse(
        ID=1, TTL=59, grantedTTL=60, keys=[b"a", b"b"]
    )
    assert machine.time_to_live(2) == rpc.LeaseTimeToLiveResponse(ID=2, TTL=-1)
    machine.grant(2, 60)
    machine.put(b"b", lease=2)
    machine.delete(b"a")
    assert list(machine.time_to_live(1).keys) == []
    assert list(machine.time_to_live(2).keys) == [b"b"]
    assert machine.state.lease_ttl(2) == 60
    assert machine.state.lease_ttl(3) is None


def test_renewals_of_one_moment_share_a_request(machine: Machine) -> None:
    machine.grant(1, 10)
    machine.grant(2, 20)
    machine.now_ms += 9_000
    assert machine.keep_alive(2, 3, 1) == [20, 0, 10]
    assert [machine.time_to_live(lease).TTL for lease in (1, 2)] == [10, 20]


def test_a_lease_ends_when_its_time_is_over(machine: Machine) -> None:
    machine.grant(1, 10)
    machine.put(b"a", lease=1)
    heard: list[int] = []
    machine.state.listen(lambda revision, _: heard.append(revision))
    machine.batch(START_MS + 9_999)
    assert machine.keys() == [b"a"]
    machine.batch(START_MS + 10_000)
    assert (machine.keys(), machine.leases(), heard) == ([], [], [3])
    assert machine.state.next_deadline_ms() is None


def test_a_renewed_lease_goes_on(machine: Machine) -> None:
    machine.grant(1, 10)
    machine.put(b"a", lease=1)
    machine.batch(START_MS + 9_000)
    assert machine.keep_alive(1) == [10]
    assert machine.revision == 2  # a renewal is no revision
    machine.batch(START_MS + 18_999)
    assert machine.keys() == [b"a"]
    machine.batch(START_MS + 19_000)
    assert machine.keys() == []


def test_log_time_advances_each_second_while_a_lease_exists(machine: Machine) -> None:
    assert machine.state.next_deadline_ms() is None
    machine.grant(1, 60)
    assert machine.state.next_deadline_ms() == START_MS + TICK_MS
    machine.batch(START_MS + 500)
    assert machine.state.next_deadline_ms() == START_MS + 500 + TICK_MS
    machine.batch(START_MS + 59_500)
    assert machine.state.next_deadline_ms() == START_MS + 60_000


def test_an_election_takes_nothing_of_a_lease_and_gives_nothing(machine: Machine) -> None:
    machine.grant(1, 10)
    machine.put(b"a", lease=1)
    machine.batch(START_MS + 4_000)
    # The leader dies, and the next one begins a minute later.
    machine.now_ms = START_MS + 64_000
    machine.state.begin_term(machine.now_ms)
    assert machine.time_to_live(1).TTL == 6
    machine.batch()
    machine.batch(START_MS + 69_999)
    assert machine.keys() == [b"a"]
    machine.batch(START_MS + 70_000)
    assert machine.keys() == []


def test_no_lease_ends_within_two_seconds_of_a_term(machine: Machine) -> None:
    machine.grant(1, 10)
    machine.put(b"a", lease=1)
    machine.batch(START_MS + 9_900)
    machine.state.begin_term(START_MS + 20_000)
    machine.batch(START_MS + 20_000 + GRACE_MS - 1)
    assert machine.keys() == [b"a"]
    assert machine.state.next_deadline_ms() == START_MS + 20_000 + GRACE_MS
    assert machine.time_to_live(1).TTL == 0
    assert machine.keep_alive(1) == [10]
    machine.batch(START_MS + 20_000 + GRACE_MS)
    assert machine.keys() == [b"a"]


def test_many_leases_that_end_together_are_bounded_per_batch(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_file, "MAX_EXPIRED", 4)
    for lease in range(1, 6):
        machine.grant(lease, 10)
        for key in range(lease):
            machine.put(b"%d/%d" % (lease, key), lease=lease)
    left: list[int] = []
    while machine.leases():
        machine.batch(START_MS + 10_000)
        left.append(len(machine.leases()))
        assert machine.state.next_deadline_ms() in {None, START_MS + 10_000}
    assert left == [3, 2, 1, 0]  # whole leases: 1 and 2 together, then one in each batch
    assert machine.state.revision == 1 + 15 + 5


def test_members_agree_if_log_time_is_later_than_a_snapshot_says(machine: Machine) -> None:
    # So it is in a partition that got slots from one whose log time was ahead.
    machine.grant(1, ttl=60)
    late = START_MS + 5_000
    other = Machine(machine.tables.copy())
    machine.batch(late)
    other.state.resume(late)
    for one in (machine, other):
        one.state.begin_term(late + 1000)
        one.batch(late + 1000)
    assert machine.time_to_live(1).TTL == other.time_to_live(1).TTL == 55
    assert machine.tables.notes.rows == other.tables.notes.rows


def test_a_restarted_member_agrees(machine: Machine) -> None:
    machine.grant(1, 10)
    machine.grant(2, 20)
    machine.put(b"a", lease=1)
    machine.put(b"b", lease=2)
    machine.batch(START_MS + 4_000)
    machine.state.begin_term(START_MS + 9_000)
    machine.batch(START_MS + 9_000)
    restarted = Machine(machine.tables.copy())
    for one in (machine, restarted):
        one.now_ms = START_MS + 9_500
        one.state.begin_term(START_MS + 9_500)
        one.batch(START_MS + 15_499)
        assert one.keys() == [b"a", b"b"]
        assert [one.time_to_live(lease).TTL for lease in (1, 2)] == [0, 10]
        one.batch(START_MS + 15_500)
        assert (one.keys(), one.leases(), one.state.revision) == ([b"b"], [2], 4)
    assert machine.tables.by_key == restarted.tables.by_key
    assert machine.tables.notes.rows == restarted.tables.notes.rows


def test_leases_and_their_keys_are_bounded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "MAX_LEASES", 1)
    monkeypatch.setattr(writes, "MAX_LEASE_KEYS", 1)
    machine.grant(1, 10)
    machine.put(b"a", lease=1)
    with pytest.raises(EtcdError, match="use more leases"):
        machine.put(b"b", lease=1)
    machine.put(b"a", lease=1)  # it has that key already
    with pytest.raises(EtcdError, match="revoke some"):
        machine.grant(2, 10)


def test_the_puts_of_one_transaction_cannot_fill_a_lease_beyond_its_bound(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "MAX_LEASE_KEYS", 2)
    machine.grant(1, 10)
    puts = [put_op(key, lease=1) for key in (b"a", b"b", b"c")]
    with pytest.raises(EtcdError, match="use more leases"):
        machine.txn(rpc.TxnRequest(success=puts))
    assert machine.keys() == []
    machine.txn(rpc.TxnRequest(success=puts[:2]))
    assert machine.time_to_live(1).keys == [b"a", b"b"]
