"""The blocking client has the methods of the other one, and each does the same."""

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import quorate
from quorate.client.blocking import (
    BlockingKeyValue,
    BlockingTransaction,
    BlockingWatch,
    connect_blocking,
)
from quorate.client.connect import connect
from quorate.client.dialling import Dialler
from quorate.errors import ConflictError, KeyValueError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.transaction import Transaction
from quorate.keyvalue.programs.watch import Watch
from tests.support.fake_cluster import FakeCluster, FakeDialler
from tests.support.service_world import Fed, open_service


def methods(kind: type) -> dict[str, list[str]]:
    """The public methods of a class, with their parameters."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: [str(one).partition(":")[0] for one in inspect.signature(method).parameters.values()]
        for name, method in found
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(BlockingKeyValue, KeyValue), (BlockingTransaction, Transaction), (BlockingWatch, Watch)],
)
def test_methods_and_their_parameters_are_the_same(ours: type, theirs: type) -> None:
    expected = methods(theirs)
    expected.pop("aclose", None)  # its block closes a watch
    assert methods(ours) == expected


def test_it_takes_the_arguments_of_connect() -> None:
    ours, theirs = inspect.signature(connect_blocking), inspect.signature(connect)
    assert list(ours.parameters.values()) == list(theirs.parameters.values())


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    service = open_service(tmp_path)
    cluster = FakeCluster(Fed(service))

    def dial(**_login: object) -> Dialler:
        return FakeDialler(cluster)

    monkeypatch.setattr("quorate.client.connect.Dialler", dial)
    return cluster


def test_the_usual_commands_without_an_event_loop(cluster: FakeCluster) -> None:
    with quorate.connect_blocking(map(str, cluster.addresses)) as kv:
        assert kv.set("a", "1")
        assert kv.get("a") == b"1"
        assert kv.increment("n", 2) == 2
        assert kv.compare_and_set("a", "1", "2", px=60_000) > 0
        assert 0 < kv.ttl_ms("a") <= 60_000
        assert kv.expire("a", 0.5)
        assert kv.execute("PERSIST", "a") == 1
        kv.mset({"b": "3"})
        kv.set_many({f"k{n}": "x" for n in range(2500)})
        assert kv.mget("a", "b") == [b"2", b"3"]
        assert kv.get_many(["b", "missing"]) == {b"b": b"3"}
        (record,) = kv.records(["b"])
        assert record is not None
        assert record.value == b"3"
        assert len(list(kv.scan("k*"))) == 2500
        assert dict(kv.scan_items("k1")) == {b"k1": b"x"}
        assert kv.delete("a", "b") == 2
        assert "10.0.0.1:7000" in repr(kv)
        with pytest.raises(KeyValueError, match="unknown command"):
            kv.execute("NOTHING")


def read_and_write(kv: BlockingKeyValue, between: Callable[[], object]) -> None:
    with kv.transaction() as t:
        t.get("b")
        between()
        t.set("c", "never")


def test_transactions_without_an_event_loop(cluster: FakeCluster) -> None:
    with connect_blocking(map(str, cluster.addresses)) as kv:
        kv.set("a", "1")
        with kv.transaction() as t:
            assert t.get("a") == b"1"
            assert not t.exists("missing")
            t.set("b", "2")
            t.increment("n")
            t.delete("a")
            t.expire("b", 60)
            t.execute("APPEND", "b", "0")
        assert t.position > 0
        assert t.results == [b"OK", 1, 1, 1, 2]
        with pytest.raises(ConflictError):
            read_and_write(kv, lambda: kv.set("b", "other"))
        with pytest.raises(ZeroDivisionError):
            read_and_write(kv, lambda: 1 // 0)
        assert kv.get("c") is None
        tries: list[int] = []

        def body(t: BlockingTransaction) -> int:
            sum_ = int(t.get("n") or 0)
            if not tries:
                kv.increment("n")
            tries.append(sum_)
            t.set("n", str(sum_ + 1))
            return sum_ + 1

        assert kv.transact(body, rng=Random(1)) == 3
        assert tries == [1, 2]


def test_threads_share_a_client(cluster: FakeCluster) -> None:
    def work(call: Callable[[str], object]) -> None:
        for _ in range(5):
            call("n")

    with connect_blocking(map(str, cluster.addresses)) as kv:
        threads = [threading.Thread(target=work, args=(kv.increment,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert kv.get("n") == b"40"


def test_an_error_of_the_block_comes_out_as_itself(cluster: FakeCluster) -> None:
    error = ValueError("mine")
    with (
        pytest.raises(ValueError, match="mine") as caught,
        connect_blocking(map(str, cluster.addresses)),
    ):
        raise error
    assert caught.value is error
