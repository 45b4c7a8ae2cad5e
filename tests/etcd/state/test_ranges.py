"""What a range returns, and in which order; the replies are those of etcd 3.4.23."""

import pytest

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.state import ranges, work
from tests.support.etcd_tables import Machine, put_op

Order, Target = rpc.RangeRequest.SortOrder, rpc.RangeRequest.SortTarget


@pytest.fixture
def machine() -> Machine:
    """Four keys whose orders by creation, change, version and value differ."""
    machine = Machine()
    for key, value in ((b"c", b"1"), (b"a", b"3"), (b"d", b"2"), (b"b", b"4"), (b"a", b"0")):
        machine.put(key, value)
    machine.put(b"c", b"5")
    machine.put(b"c", b"6")
    return machine


@pytest.mark.parametrize(
    ("key", "end", "expected"),
    [
        (b"b", b"", [b"b"]),
        (b"bb", b"", []),
        (b"b", b"d", [b"b", b"c"]),
        (b"b", b"\0", [b"b", b"c", b"d"]),
        (b"b", b"b", []),
        (b"c", b"a", []),
        (b"\0", b"\0", [b"a", b"b", b"c", b"d"]),
    ],
)
@pytest.mark.parametrize("revision", [0, 8])
def test_a_range_is_half_open(
    machine: Machine, key: bytes, end: bytes, expected: list[bytes], revision: int
) -> None:
    found = machine.range(key, end, revision=revision)
    assert [kv.key for kv in found.kvs] == expected
    assert found.count == len(expected)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target.KEY, b"abcd"),
        (Target.VERSION, b"bdac"),
        (Target.CREATE, b"cadb"),
        (Target.MOD, b"dbac"),
        (Target.VALUE, b"adbc"),
    ],
)
def test_keys_are_sorted_by_what_is_asked_for(
    machine: Machine, target: int, expected: bytes
) -> None:
    orders = {
        order: b"".join(machine.keys(sort_target=target, sort_order=order))
        for order in Order.values()
    }
    assert orders[Order.NONE] == orders[Order.ASCEND] == expected
    # Equal versions stay in the order of the keys.
    descending = b"cabd" if target == Target.VERSION else expected[::-1]
    assert orders[Order.DESCEND] == descending


def test_a_limit_cuts_and_the_count_does_not_change(machine: Machine) -> None:
    found = machine.range(b"a", b"\0", limit=2)
    assert ([kv.key for kv in found.kvs], found.more, found.count) == ([b"a", b"b"], True, 4)
    assert not machine.range(b"a", b"\0", limit=4).more
    assert len(machine.range(b"a", b"\0", limit=-1).kvs) == 4


def test_a_sorted_range_is_cut_behind_the_sorting(machine: Machine) -> None:
    found = machine.range(b"a", b"\0", limit=1, sort_target=Target.CREATE, sort_order=Order.DESCEND)
    assert ([kv.key for kv in found.kvs], found.more) == ([b"b"], True)


def test_without_an_order_etcd_cuts_before_the_sorting(machine: Machine) -> None:
    # It reads a and b, one more than the limit, and sorts these.
    found = machine.range(b"a", b"\0", limit=1, sort_target=Target.MOD)
    assert ([kv.key for kv in found.kvs], found.more, found.count) == ([b"b"], True, 4)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"min_mod_revision": 5}, b"abc"),
        ({"max_mod_revision": 5}, b"bd"),
        ({"min_create_revision": 4}, b"bd"),
        ({"max_create_revision": 3}, b"ac"),
        ({"max_create_revision": 3, "limit": 1}, b"a"),
    ],
)
def test_filters_leave_the_count(
    machine: Machine, filters: dict[str, int], expected: bytes
) -> None:
    found = machine.range(b"a", b"\0", **filters)
    assert b"".join(kv.key for kv in found.kvs) == expected
    assert found.count == 4
    assert found.more == ("limit" in filters)


def test_keys_come_without_values_and_a_count_without_keys(machine: Machine) -> None:
    found = machine.range(b"c", keys_only=True)
    assert list(found.kvs) == [rpc.KeyValue(key=b"c", create_revision=2, mod_revision=8, version=3)]
    counted = machine.range(b"b", b"\0", count_only=True, limit=1)
    assert counted == rpc.RangeResponse(count=3)
    assert machine.range(b"b", b"\0", count_only=True, revision=3).count == 1


def test_a_reply_has_a_bounded_size(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_REPLY_BYTES", 30)
    assert len(machine.range(b"a", b"\0", limit=1).kvs) == 1
    with pytest.raises(EtcdError, match="read the range in pages, with a limit") as caught:
        machine.range(b"a", b"\0")
    assert caught.value.code == Code.RESOURCE_EXHAUSTED


def test_a_range_looks_at_a_bounded_number_of_keys(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_STEPS", 3)
    for more in ({"revision": 4}, {}, {"sort_order": Order.DESCEND}):
        with pytest.raises(EtcdError, match="the request looks at too many keys") as caught:
            machine.range(b"a", b"\0", **more)
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert machine.range(b"a", b"\0", count_only=True).count == 4


def test_pages_of_an_earlier_revision_have_its_count(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.delete(b"b")
    machine.put(b"aa")
    machine.put(b"e")
    for near in (1000, 0):  # by the changes since, and by all keys
        monkeypatch.setattr(ranges, "_NEAR", near)
        counts = [
            [machine.range(key, end, revision=revision, limit=1).count for revision in range(2, 12)]
            for key, end in ((b"a", b"\0"), (b"a", b"c"), (b"b", b""), (b"b", b"a"))
        ]
        assert counts == [
            [1, 2, 3, 4, 4, 4, 4, 3, 4, 5],
            [0, 1, 1, 2, 2, 2, 2, 1, 2, 2],
            [0, 0, 0, 1, 1, 1, 1, 0, 0, 0],
            [0] * 10,
        ]


def test_a_page_costs_its_own_keys(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        machine.put(b"k%02d" % number)
    machine.put(b"z")
    monkeypatch.setattr(work, "MAX_STEPS", 60)
    page = machine.range(b"k", b"z", revision=machine.state.revision - 1, limit=10)
    assert (len(page.kvs), page.count, page.more) == (10, 100, True)


def test_a_page_looks_at_few_changes_since_its_revision(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = machine.state.revision
    puts = [put_op(b"k%02d" % number, b"x" * 50) for number in range(100)]
    machine.txn(rpc.TxnRequest(success=puts))
    read: list[bytes] = []
    get_row = machine.tables.get_row

    def get_and_note(key: bytes) -> bytes | None:
        read.append(key)
        return get_row(key)

    monkeypatch.setattr(machine.tables, "get_row", get_and_note)
    for name, most, rows in (("_NEAR", 10, 11), ("_NEAR_BYTES", 300, 5)):
        with monkeypatch.context() as patch:
            patch.setattr(ranges, name, most)
            page = machine.range(b"y", b"z", revision=revision, limit=1)
        assert (page.count, len(read)) == (0, rows)
        read.clear()
