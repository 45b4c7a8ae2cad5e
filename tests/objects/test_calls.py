"""Calls of replicated objects, on a state machine of its own without a member."""

import heapq
import inspect
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
import trio

from quorate import Command, ConfigurationError, StorageError
from quorate.objects import (
    CallError,
    Counter,
    Replicated,
    ReplicatedDict,
    ReplicatedQueue,
    ReplicatedSet,
    query,
    replicated,
)
from quorate.objects.caller import Caller
from quorate.objects.machine import ObjectsMachine, Part
from quorate.objects.tracked import TrackedList, UndoLog
from quorate.objects.wire import (
    Batch,
    Call,
    Done,
    Failure,
    Malformed,
    Result,
    SessionLost,
    reply_untrusted,
)
from quorate.objects.wire import encode as wire_encode

from .bank import Bank

encode = msgspec.msgpack.encode


class World:
    """A state machine, its log, and callers; `fail` has the errors of the next sends."""

    def __init__(self, *parts: Part, patience_s: float) -> None:
        self.caller = Caller(patience_s)
        self.machine = ObjectsMachine(parts, self.caller)
        self.caller.local = self.machine
        self.log: list[Command] = []
        self.position = 0
        self.now_ms = 1_000_000
        self.fail: list[tuple[Exception, bool]] = []

    async def command(self, payload: bytes, flags: int = 0) -> bytes:
        await trio.lowlevel.checkpoint()
        error, done = self.fail.pop(0) if self.fail else (None, True)
        reply = self.apply(payload) if done else b""
        if error is not None:
            raise error
        return reply

    def apply(self, payload: bytes) -> bytes:
        self.position += 64
        command = Command(payload, 0, 0, 0, 1, self.position, 0, self.now_ms)
        self.log.append(command)
        reply = self.machine.apply(command)
        self.machine.advance(self.position + 32, self.now_ms)
        return reply

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        await trio.lowlevel.checkpoint()
        return self.machine.query(payload, flags)


@asynccontextmanager
async def running(*parts: Part, patience_s: float = 60.0) -> AsyncGenerator[World]:
    """Run the caller of a world for the length of a block."""
    world = World(*parts, patience_s=patience_s)
    async with trio.open_nursery() as nursery:
        await nursery.start(world.caller.run, world)
        yield world
        nursery.cancel_scope.cancel()


async def test_a_call_changes_the_state_and_a_query_reads_it() -> None:
    bank = Bank()
    async with running(bank):
        assert await bank.pay("ann", 5) == 5
        assert await bank.pay(who="ann", amount=5, fee=1) == 9
        assert await bank.balance("ann") == 9
        assert bank.balance.local("ann") == bank.accounts["ann"] == 9
        assert bank.best == "ann"


async def test_a_method_that_fails_changes_nothing_and_its_error_comes_to_the_caller() -> None:
    bank = Bank()
    async with running(bank) as world:
        for amount in (5, 7):
            await bank.pay("ann", amount)
        before = world.machine.dump()
        with pytest.raises(CallError, match=r"^bank.pay: ValueError: ann has") as caught:
            await bank.pay("ann", -50)
        assert (caught.value.kind, caught.value.text) == ("ValueError", "ann has too little")
        assert bank.accounts == {"ann": 12}
        assert bank.notes == {"ann": {"paid": [5, 7]}}
        _, *kept = msgspec.msgpack.decode(before)
        assert msgspec.msgpack.decode(world.machine.dump())[1:] == kept


async def test_wrong_arguments_fail_at_the_caller_and_are_not_sent() -> None:
    bank = Bank()
    async with running(bank) as world:
        for wrong in (("ann", "5"), ("ann",), (b"ann", 5), ("ann", 2**70), ("\ud800", 1)):
            with pytest.raises(TypeError):
                await bank.pay(*cast("Any", wrong))
        assert world.log == []


async def test_the_error_names_the_method_the_argument_and_its_type() -> None:
    for wrong, text in (
        (("ann", "5"), r"^Bank\.pay: amount = '5': .*; the type of amount is int$"),
        (("ann",), r"^Bank\.pay: missing a required argument: 'amount'$"),
    ):
        async with running(bank := Bank()):
            with pytest.raises(TypeError, match=text):
                await bank.pay(*cast("Any", wrong))


async def test_a_method_of_the_class_has_the_signature_of_its_body() -> None:
    bank = Bank()
    assert [*inspect.signature(Bank.pay).parameters] == ["self", "who", "amount", "fee"]
    async with running(bank):
        assert await Bank.pay(bank, "ann", amount=5) == 5
        assert await Bank.balance(bank, "ann") == 5


async def test_a_query_that_changes_something_nested_fails_and_changes_nothing() -> None:
    bank = Bank()
    async with running(bank):
        await bank.pay("ann", 5)
        with pytest.raises(CallError, match="changed outside of a replicated method"):
            await bank.cheat("ann")
        with pytest.raises(TypeError, match="changed outside of a replicated method"):
            bank.notes["ann"]["paid"].clear()
        with pytest.raises(TypeError, match="changed outside of a replicated method"):
            bank.best = "bob"
        assert bank.notes == {"ann": {"paid": [5]}}


def test_another_thread_cant_change_the_state_while_a_call_is_applied() -> None:
    undo = UndoLog()
    numbers = TrackedList[int](undo, int, [1])
    errors: list[Exception] = []

    def change() -> None:
        try:
            numbers.append(2)
        except TypeError as error:
            errors.append(error)

    undo.begin()
    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    numbers.append(3)
    undo.end()
    assert list(numbers) == [1, 3]
    assert len(errors) == 1


class Odd(Replicated):
    """Does what must be found at once."""

    tree: dict[str, dict[str, int]]
    heap: list[int]

    def __init__(self, name: str = "odd") -> None:
        super().__init__(name)
        self.tree = {"a": {}}
        self.heap = []

    @replicated
    def share(self) -> None:
        self.tree["b"] = self.tree["a"]
        self.tree["b"]["x"] = 1

    @replicated
    def loop(self) -> None:
        endless: Any = {}
        endless["a"] = endless
        self.tree["a"] = endless

    @replicated
    def put(self, what: str) -> None:
        self.heap.append(1)
        self.tree["new"] = {}
        values: dict[str, Any] = {"object": object(), "text": "x", "big": 2**70, "none": None}
        self.tree["new"]["x"] = values[what]

    @replicated
    def push(self) -> None:
        heapq.heappush(self.heap, 1)

    @replicated
    def wrong(self) -> int:
        self.heap.append(1)
        return "no number"  # type: ignore[return-value]

    @replicated
    def nested(self) -> None:
        self.push()

    @replicated
    def undeclared(self) -> None:
        self.other = 1

    @replicated
    def shuffle(self) -> list[int]:
        heap = self.heap
        heap.extend([5, 3, 4, 1])
        heap.sort(reverse=True)
        heap.insert(-1, 9)
        heap.remove(3)
        del heap[0]
        heap += [7, 7]
        heap[0] = 8
        heap[1:2] = [6, 6]
        heap.reverse()
        heap.pop(0)
        heap *= 2
        return list(heap)

    @replicated
    def shuffle_and_fail(self) -> None:
        type(self).shuffle.body(self)
        self.tree.clear()
        self.tree |= {"z": {}}
        self.tree.setdefault("y", {})["q"] = 3
        self.tree.popitem()
        self.tree.pop("missing", None)
        self.heap.clear()
        raise RuntimeError(f"at {object()!r}")


async def test_two_places_of_a_state_never_share_a_value() -> None:
    odd = Odd()
    async with running(odd):
        await odd.share()
        assert odd.tree == {"a": {}, "b": {"x": 1}}


@pytest.mark.parametrize("what", ["object", "text", "big", "none"])
async def test_a_value_that_no_snapshot_could_hold_fails_in_its_own_call(what: str) -> None:
    odd = Odd()
    async with running(odd):
        with pytest.raises(CallError, match=r"Odd.tree\[...\]\[...\] = "):
            await odd.put(what)
        assert (odd.tree, odd.heap) == ({"a": {}}, [])


async def test_the_usual_mistakes_of_a_body_fail_in_their_own_call() -> None:
    odd = Odd()
    async with running(odd) as world:
        with pytest.raises(CallError, match="maximum recursion depth"):
            await odd.loop()
        with pytest.raises(CallError, match=r"must be( a)? list"):
            await odd.push()
        with pytest.raises(CallError, match=r"Odd.wrong: result = 'no number': Expected `int`"):
            await odd.wrong()
        with pytest.raises(CallError, match="push was called inside of a replicated method"):
            await odd.nested()
        with pytest.raises(CallError, match=r"Odd.other is no part of the state"):
            await odd.undeclared()
        assert odd.tree == {"a": {}}
        world.machine.dump()


async def test_a_list_does_what_a_list_does_and_takes_it_back() -> None:
    odd = Odd()
    async with running(odd):
        plain = [5, 4, 9, 1]
        plain = [8, 6, 6, 1, 7, 7]
        plain.reverse()
        plain = plain[1:] * 2
        assert await odd.shuffle() == plain
        with pytest.raises(CallError, match=r"RuntimeError: at <object object at 0x...>"):
            await odd.shuffle_and_fail()
        assert (odd.heap, odd.tree) == (plain, {"a": {}})


class BankMachine(ObjectsMachine):
    def __init__(self) -> None:
        self.bank, self.hits = Bank(), Counter("hits")
        super().__init__([self.bank, self.hits], Caller(60.0))


def reply(machine: ObjectsMachine, batch: Batch, position: int) -> object:
    command = Command(wire_encode(batch), 0, 0, 0, 1, position, 0, 1000)
    return reply_untrusted(machine.apply(command))


def test_a_version_in_the_log_is_applied_by_the_body_of_that_version() -> None:
    machine = BankMachine()
    reply(machine, Batch(0, 0, ()), 32)
    calls = (
        Call("bank", "pay", 1, encode(["ann", -5])),
        Call("bank", "pay", 2, encode(["ann", 9, 1])),
    )
    assert reply(machine, Batch(32, 1, calls), 64) == Done(64, (Result(b"\xfb"), Result(b"\x03")))


@pytest.mark.parametrize(
    "call", [Call("bank", "pay", 3, b""), Call("bank", "rob", 1, b""), Call("shop", "pay", 1, b"")]
)
def test_a_call_that_this_program_does_not_have_ends_the_member(call: Call) -> None:
    machine = BankMachine()
    reply(machine, Batch(0, 0, ()), 32)
    with pytest.raises(ConfigurationError, match="run the program that has it, on all members"):
        reply(machine, Batch(32, 1, (call,)), 64)


@pytest.mark.parametrize("data", [b"", b"x", b"\x93\x00\x00\x01", b"\xc1" * 50, b"\x91" * 5000])
def test_bytes_that_are_no_batch_are_answered(data: bytes) -> None:
    machine = BankMachine()
    assert isinstance(
        reply_untrusted(machine.apply(Command(data, 0, 0, 0, 1, 32, 0, 5))), Malformed
    )
    outcome = reply_untrusted(machine.query(data, 0))
    assert isinstance(outcome, Done)
    assert isinstance(outcome.outcomes[0], Failure)


@pytest.mark.parametrize("arguments", [b"", b"\x90", b"\x92\xa1a\xa1b", b"\x94\xa1a\x01\x01\x01"])
def test_arguments_that_are_none_are_answered(arguments: bytes) -> None:
    machine = BankMachine()
    reply(machine, Batch(0, 0, ()), 32)
    done = reply(machine, Batch(32, 1, (Call("bank", "pay", 2, arguments),)), 64)
    assert isinstance(done, Done)
    assert isinstance(done.outcomes[0], Failure)


def test_a_batch_that_comes_twice_is_applied_once() -> None:
    machine = BankMachine()
    reply(machine, Batch(0, 0, ()), 32)
    batch = Batch(32, 1, (Call("hits", "add", 1, encode([5])),))
    first = reply(machine, batch, 64)
    assert reply(machine, batch, 96) == first == Done(64, (Result(b"\x05"),))
    assert machine.hits.local == 5
    assert reply(machine, Batch(32, 3, ()), 128) == SessionLost(), "one was left out"
    assert reply(machine, Batch(32, 0, ()), 128) == SessionLost()
    assert reply(machine, Batch(33, 1, ()), 128) == SessionLost()


def test_a_snapshot_has_the_state_and_what_was_answered() -> None:
    machine, other = BankMachine(), BankMachine()
    reply(machine, Batch(0, 0, ()), 32)
    batch = Batch(32, 1, (Call("bank", "pay", 2, encode(["ann", 5, 0])),))
    first = reply(machine, batch, 64)
    other.restore(machine.dump())
    assert other.dump() == machine.dump()
    assert other.bank.entries == machine.bank.entries
    assert reply(other, batch, 96) == first
    assert other.bank.accounts == {"ann": 5}


def test_a_snapshot_of_other_objects_or_none_is_refused() -> None:
    saved = ObjectsMachine([Counter("c"), Counter("d")], Caller(1.0)).dump()
    with pytest.raises(StorageError, match="has the objects d, which this program does not have"):
        ObjectsMachine([Counter("c")], Caller(1.0)).restore(saved)
    with pytest.raises(StorageError, match="a snapshot of replicated objects"):
        BankMachine().restore(b"nonsense")
    with pytest.raises(StorageError, match="saved state"):
        ObjectsMachine([ReplicatedSet("c"), Counter("d")], Caller(1.0)).restore(
            saved.replace(b"value", b"items")
        )


def test_an_object_that_the_snapshot_lacks_begins_anew() -> None:
    saved = ObjectsMachine([Counter("c")], Caller(1.0)).dump()
    late = Counter("d")
    machine = ObjectsMachine([Counter("c"), late], Caller(1.0))
    reply(machine, Batch(0, 0, ()), 32)
    reply(machine, Batch(32, 1, (Call("d", "add", 1, encode([5])),)), 64)
    machine.restore(saved)
    assert late.local == 0


def test_objects_that_cant_be_opened_are_refused() -> None:
    for parts, what in (
        ([Counter("a"), Counter("a")], "two objects have the name 'a'"),
        ([Forgetful("f")], "left is not set"),
        ([Wrong("w")], "Wrong.left = 'x': Expected `int`"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            ObjectsMachine(parts, Caller(1.0))
    counter = Counter("a")
    ObjectsMachine([counter], Caller(1.0))
    with pytest.raises(ConfigurationError, match="was opened before"):
        ObjectsMachine([counter], Caller(1.0))
    with pytest.raises(ConfigurationError, match="expected a text of 1 to 200 bytes"):
        Counter("")
    with pytest.raises(TypeError, match=r"call super\(\).__init__\(name\) first"):
        Early("e")


class Forgetful(Replicated):
    left: int


class Wrong(Replicated):
    left: int

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.left = "x"  # type: ignore[assignment]


class Early(Replicated):
    left: int

    def __init__(self, name: str) -> None:
        self.left = 0
        super().__init__(name)


async def test_a_call_outside_of_the_block_says_so() -> None:
    counter = Counter("c")
    with pytest.raises(ConfigurationError, match="is not open"):
        await counter.add(1)
    async with running(counter):
        await counter.add(1)
    with pytest.raises(ConfigurationError, match="its block has ended"):
        await counter.add(1)


async def test_the_containers_do_what_they_say() -> None:
    numbers, names = ReplicatedDict("n", str, int), ReplicatedSet("names")
    queue, hits = ReplicatedQueue("q", most=2), Counter("hits")
    async with running(numbers, names, queue, hits):
        await numbers.set("a", 1)
        assert await numbers.set_default("a", 5) == 1
        assert await numbers.compare_and_set("b", None, 2)
        assert not await numbers.compare_and_set("b", 3, 4)
        assert await numbers.compare_and_set("a", 1, None)
        await numbers.update({"c": 3})
        assert (await numbers.get("a"), await numbers.get("c"), await numbers.size()) == (
            None,
            3,
            2,
        )
        assert await numbers.all() == numbers.local == {"b": 2, "c": 3}
        assert (await numbers.pop("b"), await numbers.clear()) == (2, 1)
        assert [await names.add(name) for name in ("x", "y", "x")] == [True, True, False]
        assert await names.contains("x")
        assert await names.all() == ["x", "y"] == list(names.local)
        assert (await names.pop(), await names.discard("x"), await names.size()) == ("x", False, 1)
        assert [await queue.put(item) for item in (1, "two", 3)] == [True, True, False]
        assert queue.local == (1, "two")
        assert [await queue.take() for _ in range(3)] == [(1,), ("two",), None]
        assert [await hits.add(5), await hits.set(7), await hits.get(), hits.local] == [5, 5, 7, 7]
        with pytest.raises(CallError, match="64 bits"):
            await hits.add(2**63 - 1)


async def test_get_waits_for_an_item(autojump_clock: trio.testing.MockClock) -> None:
    queue = ReplicatedQueue("q", str)
    found: list[str] = []

    async def take() -> None:
        found.append(await queue.get())

    async with running(queue), trio.open_nursery() as nursery:
        nursery.start_soon(take)
        nursery.start_soon(take)
        await trio.sleep(1)
        await queue.put("a")
        await queue.put("b")
    assert sorted(found) == ["a", "b"]


def refused(what: str, **members: Any) -> None:
    with pytest.raises(ConfigurationError, match=what):
        type("Refused", (Replicated,), members)


class Mutable(msgspec.Struct):
    x: int


class Inside(msgspec.Struct, frozen=True):
    x: list[int]


@pytest.mark.parametrize(
    ("declared", "what"),
    [
        (set[int], "the order of a set differs between members"),
        (dict[str, set[str]], "the order of a set differs"),
        (Any, "expected a type that msgspec can decode"),
        (dict, "expected a type that msgspec can decode"),
        (object, "expected a type that msgspec can decode"),
        (threading.Event, "expected a type that msgspec can decode"),
        (bytearray, "use bytes"),
        (Mutable, "Mutable is mutable: make it frozen"),
        (Inside, "a dict or list inside of another type is not tracked: use a tuple"),
        (tuple[list[int], ...], "use a tuple"),
        (dict[str, list[int] | str], "use a tuple"),
        ("Unknown", "name 'Unknown' is not defined: import it outside of `if TYPE_CHECKING`"),
    ],
)
def test_a_state_that_cant_be_saved_is_refused_when_its_class_is_made(
    declared: Any, what: str
) -> None:
    refused(rf"Refused.*{what}", __annotations__={"part": declared}, __module__=__name__)


def test_methods_that_cant_be_called_are_refused_when_their_class_is_made() -> None:
    @replicated  # pyright: ignore[reportUnknownArgumentType]
    def untyped(self: Any, x) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
    @replicated
    def unanswered(self: Any, x: int): ...  # type: ignore[no-untyped-def]  # noqa: ANN202
    @replicated
    def star(self: Any, *x: int) -> None: ...
    @query
    def odd(self: Any, x: set[int]) -> None: ...
    @replicated
    async def later(self: Any) -> None: ...
    @replicated(name="later")
    def one(self: Any) -> None: ...

    refused("untyped: x has no type", m=cast("object", untyped))
    refused("unanswered: the result has no type", m=unanswered)
    refused(r"star: \*x: int: expected plain parameters", m=star)
    refused("odd: x: type .*: the order of a set", m=odd)
    refused("later: expected a plain method", m=later)
    refused("both are version 1 of 'later'", m=one, n=one)
    with pytest.raises(ConfigurationError, match="version = 0: expected an integer from 1"):
        replicated(version=0)
