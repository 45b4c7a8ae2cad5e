"""PySyncObj's example programs run; three nodes of each, in one process, each in its thread."""

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from quorate.local.cluster import free_client_port
from quorate.pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjException
from quorate.pysyncobj import config as settings
from quorate.pysyncobj.batteries import (
    ReplCounter,
    ReplDict,
    ReplList,
    ReplLockManager,
    ReplPriorityQueue,
    ReplQueue,
    ReplSet,
)
from quorate.pysyncobj.methods import replicated, replicated_sync

from .programs import KVStorage, LockImpl, TestObj, onAdd

S = TypeVar("S", bound=SyncObj)
LIMIT_S = 30.0


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    defaults = settings.SyncObjConf.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "profile", "test")


@contextmanager
def nodes(make: Callable[[str, list[str]], S], count: int = 3, port: int = 0) -> Generator[list[S]]:
    """Run nodes; there is a leader when the block begins."""
    first = port or free_client_port(count)
    addresses = [f"localhost:{first + place}" for place in range(count)]
    with ExitStack() as stack:
        made: list[S] = []
        for own in addresses:
            made.append(make(own, [each for each in addresses if each != own]))
            stack.callback(made[-1].destroy_synchronous)
        for node in made:
            node.waitReady()
            until(node.isReady)
        yield made
        for node in made:
            node.destroy()


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds; fail after a while."""
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_the_counter_of_the_examples_adds_up_on_all_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with nodes(TestObj) as objs:
        for n in range(20):
            objs[n % 3].addValue(10, n, callback=partial(onAdd, cnt=n))
        until(lambda: [o.getCounter() for o in objs] == [200] * 3)
        printed = ""
        while printed.count("onAdd") < 20:
            printed += capsys.readouterr().out
            time.sleep(0.005)
        assert "onAdd 19: (" in printed
        assert objs[0].incCounter(sync=True) == 201
        assert objs[0].getCounter() == 201, "the caller's own node has it when the call returns"
        assert objs[0]._getLeader() in objs[0].otherNodes | {objs[0].selfNode}
        until(lambda: sum(o._isLeader() for o in objs) == 1)
        until(lambda: objs[0].hasQuorum)
        objs[0].printStatus()
        assert "partner_nodes_count: 2" in capsys.readouterr().out
        until(lambda: objs[0]._getRaftLogSize() and objs[0].raftLastApplied)
        until(lambda: objs[0].raftLastApplied == objs[0]._getLastCommitIndex())
        assert objs[0]._getTerm() == 0


def test_the_store_of_the_examples_outlives_its_nodes(tmp_path: Path) -> None:
    def make(own: str, others: list[str]) -> KVStorage:
        return KVStorage(own, others, f"{tmp_path}/{own}")

    port = free_client_port(3)
    with nodes(make, port=port) as stores:
        stores[0].set("a", "1")
        stores[0].set("b", "2")
        stores[0].pop("a", sync=True)
        stores[1].forceLogCompaction()
        until(lambda: [each.get("b") for each in stores] == ["2"] * 3)
        with pytest.raises(SyncObjException, match="use quorate member"):
            stores[0].addNodeToCluster("localhost:1")
    with nodes(make, port=port) as stores:
        assert [each.get("b") for each in stores] == ["2"] * 3
        assert [each.get("a") for each in stores] == [None] * 3


def test_the_lock_of_the_examples_has_one_owner_and_its_mistake_does_no_harm() -> None:
    with nodes(lambda own, others: LockImpl(own, others, 10.0)) as locks:
        assert locks[0].acquire("l", "me", 100.0, sync=True)
        assert not locks[1].acquire("l", "you", 105.0, sync=True)
        locks[0].ping("me", 109.0, sync=True)
        assert locks[0].isAcquired("l", "me", 118.0)
        # It deletes from the dict that it iterates over.
        with pytest.raises(SyncObjException, match="dictionary changed size") as caught:
            locks[0].ping("you", 200.0, sync=True)
        assert caught.value.errorCode == FAIL_REASON.EXCEPTION
        assert locks[1].acquire("l", "you", 200.0, sync=True)
        locks[1].release("l", "you", sync=True)
        assert not locks[1].isAcquired("l", "you", 200.0)


class Batteries(SyncObj):
    """One of each."""

    def __init__(self, own: str, others: list[str]) -> None:
        self.counter, self.items, self.table = ReplCounter(), ReplList(), ReplDict()
        self.names, self.queue, self.heap = ReplSet(), ReplQueue(2), ReplPriorityQueue()
        self.locks = ReplLockManager(5.0)
        objects = [self.counter, self.items, self.table, self.names, self.queue, self.heap]
        super().__init__(own, others, consumers=[*objects, self.locks])


def test_the_batteries_do_what_they_say() -> None:
    with nodes(Batteries, 1) as (node,):
        numbers_and_lists(node.counter, node.items)
        count = node.counter.get()
        tables(node.table)
        sets(node.names)
        queues(node.queue, node.heap)
        assert node.locks.tryAcquire("l", sync=True)
        assert node.locks.isAcquired("l")
        node.locks.release("l", sync=True)
        assert not node.locks.isAcquired("l")
        node.locks.destroy()
        node.destroy()
        with pytest.raises(SyncObjException):
            node.counter.inc(sync=True)
        assert node.counter.get() == count


def numbers_and_lists(counter: ReplCounter, items: ReplList) -> None:
    assert [counter.set(42, sync=True), counter.add(10, sync=True)] == [42, 52]
    assert [counter.inc(sync=True), counter.sub(3, sync=True), counter.get()] == [53, 50, 50]
    items.reset([3, 1, 2])
    items.append(5)
    items.extend([9, 9])
    items.insert(0, 7)
    items.remove(9)
    items.sort(reverse=True)
    assert items.pop(sync=True) == 1
    items.set(0, 8, sync=True)
    assert items.rawData() == [8, 7, 5, 3, 2]
    assert (items.index(5), items.count(9), items.get(1)) == (2, 0, 7)
    assert (items[0], len(items)) == (8, 5)
    with pytest.raises(SyncObjException, match="call setCodeVersion"):
        items[0] = 1


def tables(table: ReplDict) -> None:
    table.reset({(1, 2): {"nested": [1]}})
    table["a"] = 1
    table.set("b", 2)
    table.update({"c": 3})
    assert table.setdefault("d", 4, sync=True) == 4
    assert [table.pop("c", sync=True), table.pop("x", 9, sync=True)] == [3, 9]
    assert (table["a"], table.get("x", 5), len(table), "b" in table) == (1, 5, 4, True)
    assert list(table.keys()) == [(1, 2), "a", "b", "d"]
    assert list(table.values())[1:] == [1, 2, 4]
    assert list(table.items())[1] == ("a", 1)
    with pytest.raises(TypeError, match="outside of a replicated method"):
        table.rawData()[1, 2]["nested"].append(2)
    table.clear(sync=True)
    assert table.rawData() == {}


def sets(names: ReplSet) -> None:
    names.reset({"x", "y"})
    names.add("z")
    names.remove("x")
    names.discard("q")
    names.update(["w"])
    assert names.pop(sync=True) == "w"
    assert (names.rawData(), len(names), "y" in names) == ({"y", "z"}, 2, True)
    names.clear(sync=True)
    assert len(names) == 0


def queues(queue: ReplQueue, heap: ReplPriorityQueue) -> None:
    assert [queue.put(item, sync=True) for item in (1, 2, 3)] == [True, True, False]
    assert (queue.full(), queue.qsize(), len(queue), queue.empty()) == (True, 2, 2, False)
    assert [queue.get(sync=True), queue.get(sync=True), queue.get(0, sync=True)] == [1, 2, 0]
    for item in ((2, "b"), (1, "a"), (3, "c")):
        heap.put(item)
    assert [heap.get(sync=True) for _ in range(4)] == [(1, "a"), (2, "b"), (3, "c"), None]


class Versioned(SyncObj):
    """Has two versions of a method, attributes of its own, and mistakes."""

    def __init__(self, own: str, others: list[str], conf: SyncObjConf | None = None) -> None:
        self.event = threading.Event()  # before: it belongs to this node alone
        super().__init__(own, others, conf)
        self.words: list[str] = []

    @replicated
    def say(self, word: str) -> str:  # pyright: ignore[reportRedeclaration]
        self.words.append(word)
        return word

    @replicated(ver=1)  # type: ignore[no-redef]
    def say(self, word: str) -> str:  # noqa: F811
        self.words.append(word.upper())
        return word.upper()

    @replicated_sync
    def fail(self) -> None:
        self.words.append("lost")
        self.other = 1
        raise ValueError("as I like it")

    @replicated_sync(timeout=5.0)
    def both(self) -> str:
        self.fresh = [1]
        return str(self.say("both"))

    @replicated_sync
    def odd(self) -> object:
        return self.event


def test_versions_mistakes_and_attributes_of_one_node(caplog: pytest.LogCaptureFixture) -> None:
    def spoil(*_: object) -> None:
        raise RuntimeError("mine")

    def wait_for_it(*_: object) -> None:
        try:
            node.say("y", sync=True)
        except SyncObjException as error:
            seen.append(error.errorCode)

    seen: list[int | str] = []
    ready = threading.Event()
    conf = SyncObjConf(onReady=ready.set)
    with nodes(lambda own, others: Versioned(own, others, conf), 1) as (node,):
        assert ready.wait(LIMIT_S)
        assert node.say("a", sync=True) == "a"
        node.odd(callback=spoil)
        until(lambda: "a callback has failed: RuntimeError: mine" in caplog.text)
        node.setCodeVersion(1)
        until(lambda: node.getCodeVersion() == 1)
        assert node.say("b", sync=True) == "B"
        assert node.both() == "BOTH"
        for wrong in (0, 2):
            with pytest.raises(SyncObjException, match=f"version {wrong}: expected 1 to 1"):
                node.setCodeVersion(wrong)
        with pytest.raises(SyncObjException, match="ValueError: as I like it"):
            node.fail()
        with pytest.raises(SyncObjException, match="type Event can't be replicated"):
            node.odd()
        assert node.words == ["a", "B", "BOTH"]
        assert not hasattr(node, "other")
        with pytest.raises(TypeError, match="outside of a replicated method"):
            node.words = []
        node.local = threading.Event()
        with pytest.raises(TypeError, match="type Event can't be replicated"):
            node.say(threading.Event())
        assert node.tick_thread_alive()
        node.say("x", callback=wait_for_it)
        until(lambda: seen == ["Deadlock"])
        node.conf.commandsQueueSize = 0
        with pytest.raises(SyncObjException, match="say: QUEUE_FULL"):
            node.say("x", sync=True)
    until(lambda: not node.tick_thread_alive())

    def note(_result: Any, error: int) -> None:
        seen.append(error)

    node.conf.commandsQueueSize = 1
    node.say("late", callback=note)
    assert seen[1:] == [FAIL_REASON.MISSING_LEADER]


class Spoilt(SyncObj):
    def __init__(self, own: str, others: list[str]) -> None:
        super().__init__(own, others)
        self.event = threading.Event()


class Hasty(SyncObj):
    def __init__(self, own: str, others: list[str]) -> None:
        super().__init__(own, others)
        self.waitReady()


def test_what_cant_be_had_says_so() -> None:
    with pytest.raises(Exception, match=r"Spoilt.event: .*before super\(\).__init__"):
        Spoilt("localhost:7100", [])
    with pytest.raises(SyncObjException, match="the constructor has not returned yet"):
        Hasty("localhost:7100", [])
    with pytest.raises(Exception, match="address 'nowhere': expected \"host:port\""):
        SyncObj("nowhere", [])
    with pytest.raises(Exception, match="a node without an address"):
        SyncObj(None, ["localhost:7100"])
    with pytest.raises(Exception, match="transport: can't be had"):
        SyncObj("localhost:7100", [], transport=1)
    with pytest.raises(SyncObjException, match="expected a SyncObjConsumer"):
        SyncObj("localhost:7100", [], consumers=[object()])
    several: list[dict[str, Any]] = [{"password": "x"}, {"autoTick": False}, {"serializer": print}]
    for setting in several:
        with pytest.raises(Exception, match="can't be had"):
            SyncObjConf(**setting)
    with pytest.raises(SyncObjException, match="is not replicated yet"):
        ReplCounter().inc()
    for conf, place in (
        (SyncObjConf(directory="d"), "d"),
        (SyncObjConf(journalFile="j", fullDumpFile="f"), "j.quorate"),
        (SyncObjConf(fullDumpFile="f"), "f.quorate"),
        (SyncObjConf(), "quorate-h-5"),
    ):
        assert str(conf.store_of("h:5")) == place


def test_a_program_ends_when_its_main_thread_does(tmp_path: Path) -> None:
    port = free_client_port(1)
    program = textwrap.dedent(f"""
        from quorate.pysyncobj import SyncObj, SyncObjConf
        from quorate.pysyncobj.batteries import ReplCounter
        counter = ReplCounter()
        node = SyncObj("localhost:{port}", [], SyncObjConf(profile="test"), consumers=[counter])
        print(counter.inc(sync=True, timeout=20))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
