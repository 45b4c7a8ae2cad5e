"""The blocking client has the methods of the other one, and each does the same."""

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import trio

import quorate
from quorate.client.blocking import (
    BlockingKeyValue,
    BlockingTransaction,
    BlockingWatch,
    connect_blocking,
)
from quorate.client.connect import connect
from quorate.client.dialling import Dialler
from quorate.client.watch import RemoteWatches
from quorate.errors import ConflictError, KeyValueError, RefusedError, UsageError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.transaction import Transaction
from quorate.keyvalue.programs.watch import Watch
from quorate.keyvalue.state.changes import Change
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


class SilentWatch(Watch):
    """A watch without changes, like that of a quiet cluster."""

    async def _begin(self) -> None:
        pass

    async def _fetch(self) -> list[Change]:
        await trio.sleep_forever()
        return []

    async def aclose(self) -> None:
        """Hold nothing."""


def test_the_end_of_the_block_ends_a_watch_in_another_thread(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(_self: RemoteWatches, prefix: bytes, after: int) -> SilentWatch:
        return SilentWatch(prefix, after)

    monkeypatch.setattr(RemoteWatches, "watch", watch)
    errors, watching = list[Exception](), threading.Event()

    def follow(kv: BlockingKeyValue) -> None:
        try:
            with kv.watch("a/") as changes:
                watching.set()
                next(changes)
        except RefusedError as error:
            errors.append(error)

    with connect_blocking(map(str, cluster.addresses)) as kv:
        thread = threading.Thread(target=follow, args=(kv,))
        thread.start()
        watching.wait()
    thread.join(10)
    assert [str(error) for error in errors] == ["the client is closed, and this watch with it"]


def test_after_the_block_every_call_says_that_the_client_is_closed(cluster: FakeCluster) -> None:
    with connect_blocking(map(str, cluster.addresses)) as kv:
        kv.set("a", "1")
        keys = kv.scan()
    calls: list[Callable[[], object]] = [
        lambda: kv.get("a"),
        lambda: kv.get_many(["a"]),
        lambda: kv.watch("a"),
        lambda: next(keys),
        lambda: kv.transaction().__enter__(),
    ]
    for call in calls:
        with pytest.raises(RefusedError, match="the client is closed"):
            call()


def test_a_transaction_outside_of_its_block_says_so(cluster: FakeCluster) -> None:
    with (
        connect_blocking(map(str, cluster.addresses)) as kv,
        pytest.raises(RuntimeError, match="not open: use it inside of its block"),
    ):
        kv.transaction().set("a", "1")


def test_a_forked_child_is_told_to_connect_anew(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect_blocking(map(str, cluster.addresses)) as kv:
        parent = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            with pytest.raises(UsageError, match=f"process {parent}.*connect anew in the child"):
                kv.get("a")
        assert kv.get("a") is None


async def test_within_trio_it_names_the_client_for_trio(cluster: FakeCluster) -> None:
    with (
        pytest.raises(UsageError, match=r"within trio\.run .* use quorate\.connect"),
        connect_blocking(map(str, cluster.addresses)),
    ):
        pass

    def work() -> bool:
        with connect_blocking(map(str, cluster.addresses)) as kv:
            return kv.set("a", "1")

    assert await trio.to_thread.run_sync(work)


NEVER_LEFT = """
from contextlib import ExitStack, asynccontextmanager
from quorate.client import blocking

@asynccontextmanager
async def connect(*_members, **_options):
    try:
        yield "a store"
    finally:
        print("closed")

blocking.connect = connect
stack = ExitStack()
kv = stack.enter_context(blocking.connect_blocking(["10.0.0.1:7000"]))
"""


def test_a_client_that_is_never_left_is_closed_when_python_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NEVER_LEFT], capture_output=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"closed\n", b"")
