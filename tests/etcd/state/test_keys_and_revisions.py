"""Puts, ranges and deletions; the replies are those of etcd 3.4.23."""

import pytest

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, decode_reply
from quorate.etcd.state import work
from tests.support.etcd_tables import Machine


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_an_empty_keyspace_has_revision_1(machine: Machine) -> None:
    assert machine.range(b"a") == rpc.RangeResponse()
    assert machine.revision == machine.state.revision == 1


def test_each_put_is_a_revision_and_a_version(machine: Machine) -> None:
    assert machine.put(b"a", b"x") == rpc.PutResponse()
    assert machine.revision == 2
    machine.put(b"b")
    old = rpc.KeyValue(key=b"a", create_revision=2, mod_revision=2, version=1, value=b"x")
    assert machine.put(b"a", b"y", prev_kv=True) == rpc.PutResponse(prev_kv=old)
    new = rpc.KeyValue(key=b"a", create_revision=2, mod_revision=4, version=2, value=b"y")
    assert machine.range(b"a") == rpc.RangeResponse(kvs=[new], count=1)
    assert machine.revision == 4


def test_a_deleted_key_begins_again(machine: Machine) -> None:
    machine.put(b"a", b"x")
    machine.put(b"a", b"y")
    old = rpc.KeyValue(key=b"a", create_revision=2, mod_revision=3, version=2, value=b"y")
    assert machine.delete(b"a", prev_kv=True) == rpc.DeleteRangeResponse(deleted=1, prev_kvs=[old])
    assert machine.range(b"a") == rpc.RangeResponse()
    assert machine.put(b"a", prev_kv=True) == rpc.PutResponse()
    new = rpc.KeyValue(key=b"a", create_revision=5, mod_revision=5, version=1)
    assert list(machine.range(b"a").kvs) == [new]


def test_a_deletion_that_finds_nothing_is_no_revision(machine: Machine) -> None:
    assert machine.delete(b"a", b"\0") == rpc.DeleteRangeResponse()
    assert machine.revision == 1


def test_a_range_is_deleted_in_one_revision(machine: Machine) -> None:
    for key in (b"a", b"b", b"c"):
        machine.put(key)
    assert machine.delete(b"a", b"c").deleted == 2
    assert (machine.keys(), machine.revision) == ([b"c"], 5)
    changes = machine.state.changes_of(5)
    assert [(one.key, one.deleted, one.sub) for one in changes] == [
        (b"a", True, 0),
        (b"b", True, 1),
    ]
    assert rpc.KeyValue.FromString(changes[0].row) == rpc.KeyValue(key=b"a", mod_revision=5)


def test_the_value_or_the_lease_can_be_kept(machine: Machine) -> None:
    machine.grant(7, 60)
    machine.put(b"a", b"x", lease=7)
    machine.put(b"a", ignore_value=True)
    (kv,) = machine.range(b"a").kvs
    assert (kv.value, kv.lease) == (b"x", 0)
    machine.put(b"a", lease=7)
    machine.put(b"a", b"y", ignore_lease=True)
    (kv,) = machine.range(b"a").kvs
    assert (kv.value, kv.lease, kv.version) == (b"y", 7, 4)


@pytest.mark.parametrize("kept", ["ignore_value", "ignore_lease"])
def test_nothing_is_kept_of_a_missing_key(machine: Machine, kept: str) -> None:
    with pytest.raises(EtcdError, match="etcdserver: key not found") as caught:
        machine.put(b"a", **{kept: True})
    assert caught.value.code == Code.INVALID_ARGUMENT
    assert machine.state.revision == 1


def test_a_put_needs_a_lease_that_exists(machine: Machine) -> None:
    # The lease comes first, as in etcd; in a transaction it comes second.
    with pytest.raises(EtcdError, match="etcdserver: requested lease not found") as caught:
        machine.put(b"a", lease=7, ignore_value=True)
    assert caught.value.code == Code.NOT_FOUND


def test_earlier_revisions_can_be_read(machine: Machine) -> None:
    machine.put(b"a", b"x")
    machine.put(b"b")
    machine.delete(b"a")
    machine.put(b"a", b"z")
    assert [machine.keys(revision=revision) for revision in range(1, 6)] == [
        [], [b"a"], [b"a", b"b"], [b"b"], [b"a", b"b"]
    ]  # fmt: skip
    assert machine.range(b"a", revision=3).kvs[0].value == b"x"
    assert machine.revision == 5  # the header has the present one
    assert machine.range(b"a", revision=-3).kvs[0].value == b"z"


def test_a_future_revision_cannot_be_read(machine: Machine) -> None:
    with pytest.raises(EtcdError) as caught:
        machine.range(b"a", revision=2)
    assert (caught.value.code, caught.value.text) == (
        Code.OUT_OF_RANGE,
        "etcdserver: mvcc: required revision is a future revision",
    )


def test_listeners_hear_of_each_revision(machine: Machine) -> None:
    heard: list[tuple[int, list[tuple[bytes, bool, bool]]]] = []
    machine.state.listen(
        lambda revision, changes: heard.append(
            (revision, [(one.key, one.created, one.deleted) for one in changes])
        )
    )
    machine.put(b"a")
    machine.put(b"a")
    machine.delete(b"b")
    machine.delete(b"a")
    assert heard == [
        (2, [(b"a", True, False)]), (3, [(b"a", False, False)]), (4, [(b"a", False, True)])
    ]  # fmt: skip


def test_changes_are_the_same_from_the_rows(machine: Machine) -> None:
    heard: list[object] = []
    machine.state.listen(lambda _, changes: heard.extend(changes))
    machine.put(b"a", b"x")
    machine.put(b"b")
    machine.put(b"a", b"y")
    machine.delete(b"a", b"c")
    assert heard == [one for revision in range(2, 6) for one in machine.state.changes_of(revision)]


def test_what_a_change_replaced_can_be_found(machine: Machine) -> None:
    machine.put(b"a", b"x")
    machine.put(b"a", b"y")
    machine.delete(b"a")
    machine.put(b"a")
    replaced = [
        machine.state.previous(one)
        for revision in range(2, 6)
        for one in machine.state.changes_of(revision)
    ]
    values = [row and rpc.KeyValue.FromString(row).value for row in replaced]
    assert values == [None, b"x", b"y", None]


def test_a_query_cannot_write(machine: Machine) -> None:
    with pytest.raises(EtcdError, match="a query cannot write"):
        machine.query(Op.PUT, rpc.PutRequest(key=b"a"))
    assert machine.state.revision == 1


def test_a_payload_that_is_none_is_an_error_and_changes_nothing(machine: Machine) -> None:
    with pytest.raises(EtcdError, match="unmarshalling request"):
        machine.apply(Op.PUT, b"\xff")
    for payload in (b"", b"\xff"):
        with pytest.raises(EtcdError, match="expected an operation"):
            decode_reply(machine.state.query(payload, machine.now_ms))
    assert machine.state.revision == 1


def test_a_request_deletes_a_bounded_number_of_keys(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_CHANGES", 2)
    for key in (b"a", b"b", b"c"):
        machine.put(key)
    with pytest.raises(EtcdError, match="delete smaller ranges") as caught:
        machine.delete(b"a", b"\0")
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert machine.delete(b"a", b"c").deleted == 2


def test_members_announce_where_they_listen(machine: Machine) -> None:
    said = [
        rpc.Announcement(member_id=one, name=f"n{one}", client_urls=[f"http://n{one}:2379"])
        for one in (3, 1)
    ]
    for one in (rpc.Announcement(member_id=1, name="old"), *said):
        assert machine.apply(Op.ANNOUNCE, one) == b""
    assert list(machine.state.announcements().members) == [said[1], said[0]]
    body = machine.query(Op.ANNOUNCEMENTS, rpc.Announcements())
    assert rpc.Announcements.FromString(body) == machine.state.announcements()
    machine.state.reload()
    assert len(machine.state.announcements().members) == 2
