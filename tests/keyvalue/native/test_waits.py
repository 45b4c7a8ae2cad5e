"""Tasks that wait by C, or by trio where it was not compiled: both ways are the same."""

import gc
import sys
import weakref
from collections.abc import Awaitable, Callable, Generator
from types import FrameType, FunctionType, coroutine
from typing import Any

import pytest
import trio
from outcome import Error
from trio.testing import wait_all_tasks_blocked

from quorate.keyvalue.native import waits
from quorate.keyvalue.native.waits import waiting
from quorate.keyvalue.protocol import resp
from quorate.node.requests.task_calls import Reply

DONE = Reply(resp.OK)
MANY = 3000
"""More than are kept for others when they are over."""

Wait = Callable[["Waited", bytes, bytes], Awaitable[bytes]]


class Waited:
    """What tasks wait for; tells who was withdrawn."""

    def __init__(self, abort: trio.lowlevel.Abort = trio.lowlevel.Abort.SUCCEEDED) -> None:
        self.payloads: list[bytes] = []
        self.tasks: list[trio.lowlevel.Task | None] = []
        self.withdrawn: list[int] = []
        self.raises: list[Callable[[], Any]] = []
        self._abort = abort

    def withdraw(self, place: int, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        self.withdrawn.append(place)
        self.raises.append(raise_cancel)
        return self._abort

    def wake(self) -> None:
        """Have those who wait go on."""
        for place, task in enumerate(self.tasks):
            if task is not None and place not in self.withdrawn:
                trio.lowlevel.reschedule(task, DONE)


@pytest.fixture
def wait(each_way_to_wait: None) -> Wait:
    return waiting(DONE)


@pytest.fixture
def compiled() -> Wait:
    if not waits.NATIVE:
        pytest.skip("keyvalue/native/waits.c was not compiled")
    return waiting(DONE)


async def gone_on(task: trio.lowlevel.Task) -> None:
    """Wait until a task that waits has been rescheduled and has run."""
    trio.lowlevel.reschedule(task, DONE)
    await wait_all_tasks_blocked()


async def test_a_task_waits_at_its_place_and_goes_on_with_its_outcome(wait: Wait) -> None:
    waited, seen = Waited(), dict[bytes, bytes | Exception]()

    async def ask(key: bytes) -> None:
        try:
            seen[key] = await wait(waited, key, b"x")
        except KeyError as error:
            seen[key] = error

    async with trio.open_nursery() as nursery:
        for key in (b"a", b"b", b"c"):
            nursery.start_soon(ask, key)
            await wait_all_tasks_blocked()
        assert waited.payloads == [resp.encode_set(key, b"x") for key in (b"a", b"b", b"c")]
        first, second, third = waited.tasks
        assert first is not None
        assert second is not None
        assert third is not None
        assert {first, second, third} == {*nursery.child_tasks}
        error = KeyError("no")
        trio.lowlevel.reschedule(second, Error(error))
        trio.lowlevel.reschedule(third, Reply(b"-ERR no\r\n"))
        await wait_all_tasks_blocked()
        assert seen == {b"b": error, b"c": b"-ERR no\r\n"}
        await gone_on(first)
    assert seen[b"a"] == resp.OK
    assert waited.withdrawn == []


async def test_who_is_cancelled_is_withdrawn_from_its_own_place(wait: Wait) -> None:
    waited, over = Waited(), list[int]()
    scopes = [trio.CancelScope() for _ in range(4)]

    async def ask(number: int) -> None:
        with scopes[number]:
            assert await wait(waited, b"%d" % number, b"") == resp.OK
        over.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(ask, number)
            await wait_all_tasks_blocked()
        for number in (2, 0):
            scopes[number].cancel()
            await wait_all_tasks_blocked()
        assert (waited.withdrawn, over) == ([2, 0], [2, 0])
        assert [scope.cancelled_caught for scope in scopes] == [True, False, True, False]
        waited.wake()
    assert sorted(over) == [0, 1, 2, 3]


async def test_who_is_cancelled_before_it_waits_does_not(wait: Wait) -> None:
    waited = Waited()
    with trio.CancelScope() as scope:
        scope.cancel()
        await wait(waited, b"a", b"1")
    assert scope.cancelled_caught
    assert (waited.withdrawn, len(waited.payloads)) == ([0], 1)


async def test_what_will_not_be_withdrawn_goes_on_waiting(wait: Wait) -> None:
    waited, scope, seen = Waited(trio.lowlevel.Abort.FAILED), trio.CancelScope(), list[bytes]()

    async def ask() -> None:
        with scope:
            seen.append(await wait(waited, b"a", b"1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        scope.cancel()
        await wait_all_tasks_blocked()
        assert (waited.withdrawn, seen) == ([0], [])
        with pytest.raises(trio.Cancelled):
            waited.raises[0]()
        (task,) = waited.tasks
        assert task is not None
        await gone_on(task)
    assert seen == [resp.OK]


async def test_one_wait_serves_tasks_one_after_the_other(wait: Wait) -> None:
    """Each is at a place of its own, of what it waits for itself, also after a cancellation."""

    async def ask(one: Waited) -> None:
        for key in (b"a", b"b"):
            assert await wait(one, key, b"") == resp.OK

    for cancelled in (False, True, False, True, False):
        waited = [Waited() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for one in waited:
                nursery.start_soon(ask, one)
            await wait_all_tasks_blocked()
            for one in waited:
                one.wake()
                one.tasks[0] = None
            await wait_all_tasks_blocked()
            assert [len(one.tasks) for one in waited] == [2, 2, 2]
            if cancelled:
                nursery.cancel_scope.cancel()
            else:
                for one in waited:
                    one.wake()
        assert [one.withdrawn for one in waited] == [[1] * cancelled] * 3


async def test_thousands_wait_at_once_and_nothing_of_them_remains(wait: Wait) -> None:
    async def ask(waited: Waited) -> None:
        assert await wait(waited, b"key", b"value") == resp.OK

    async def turn() -> None:
        waited = Waited()
        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(ask, waited)
            await wait_all_tasks_blocked()
            assert len(waited.tasks) == MANY
            waited.wake()
        held.append(sys.getrefcount(waited))

    async def after(turns: int) -> tuple[int, int, int]:
        for _ in range(turns):
            await turn()
        gc.collect()
        return sys.getallocatedblocks(), sys.getrefcount(DONE), sys.getrefcount(resp.OK)

    held = list[int]()
    blocks, *references = await after(1)
    more, *others = await after(10)
    assert more - blocks < MANY
    assert others == references
    assert len({*held[1:]}) == 1


@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 12345, 999_999, 1_000_000])
async def test_a_set_is_encoded_as_ever(wait: Wait, size: int) -> None:
    waited, text = Waited(), (bytes(range(256)) * (size // 256 + 1))[:size]
    with trio.CancelScope() as scope:
        scope.cancel()
        await wait(waited, text, text[::-1])
    assert waited.payloads == [resp.encode_set(text, text[::-1])]
    assert len(waited.payloads[0]) <= 2 * size + resp.SET_FRAME_BYTES


async def test_what_is_no_bytes_is_refused_and_leaves_nothing(wait: Wait) -> None:
    waited = Waited()
    words: Any = "text"
    for key, value in ((words, b""), (b"", words)):
        with pytest.raises(TypeError):
            await wait(waited, key, value)
    assert (waited.payloads, waited.tasks) == ([], [])


def test_outside_of_trio_it_is_refused_and_leaves_nothing(wait: Wait) -> None:
    waited = Waited()
    with pytest.raises(RuntimeError):
        wait(waited, b"a", b"")
    assert (waited.payloads, waited.tasks) == ([], [])


def existing() -> int:
    """How many waits there are."""
    return sum(type(one).__qualname__ == "Wait" for one in gc.get_objects())


def go_through(one: Any) -> None:
    """Have a wait begin and end."""
    one.send(None)
    with pytest.raises(StopIteration):
        one.send(DONE)


async def test_what_is_over_is_taken_again(compiled: Wait) -> None:
    first: Any = compiled(Waited(), b"a", b"")
    go_through(first)
    with pytest.raises(TypeError):
        compiled(Waited(), b"a", "no bytes")  # type: ignore[arg-type]
    assert compiled(Waited(), b"a", b"") is first


async def test_no_more_than_a_thousand_are_kept_and_others_are_no_garbage(compiled: Wait) -> None:
    def many() -> int:
        some = [compiled(Waited(), b"a", b"") for _ in range(MANY)]
        for one in some:
            go_through(one)
        return existing()

    gc.disable()
    try:
        before = existing()
        for _ in range(3):
            assert many() >= before + MANY
            assert existing() == before + 1024
    finally:
        gc.enable()


async def test_all_is_freed_with_the_last_of_its_users(compiled: Wait) -> None:
    def use() -> weakref.ref[Waited]:
        wait, waited = waiting(DONE), Waited()
        some: list[Any] = [wait(waited, b"a", b"") for _ in range(3)]
        go_through(some[0])
        go_through(some[1])
        some[2].send(None)
        waited.tasks.append(some[2])  # as a task that waits holds its wait
        assert existing() == before + 3
        return weakref.ref(waited)

    gc.collect()  # what other tests have left
    before = existing()
    dead = use()
    gc.collect()
    assert (existing(), dead()) == (before, None)


async def test_it_is_not_cancelled_when_it_is_over(compiled: Wait) -> None:
    waited = Waited()
    one: Any = compiled(waited, b"a", b"")
    go_through(one)
    with pytest.raises(RuntimeError, match="is over"):
        one(int)
    assert waited.withdrawn == []


async def test_it_is_awaited_once_and_by_a_task_of_trio(compiled: Wait) -> None:
    waited = Waited()
    one = compiled(waited, b"a", b"")
    with trio.CancelScope() as scope:
        scope.cancel()
        await one
    assert scope.cancelled_caught
    with pytest.raises(RuntimeError, match="awaited once"):
        await one
    by_hand = compiled(waited, b"b", b"").__await__()
    next(by_hand)
    with pytest.raises(RuntimeError, match="by a task of trio"):
        next(by_hand)


async def test_it_goes_on_by_a_call_too(compiled: Wait) -> None:
    """So it does from CPython 3.12 on, and before while a program is traced."""
    for outcome, reply in ((DONE, resp.OK), (Reply(b"-ERR no\r\n"), b"-ERR no\r\n")):
        by_hand: Any = compiled(Waited(), b"a", b"").__await__()
        by_hand.send(None)
        with pytest.raises(StopIteration) as stopped:
            by_hand.send(outcome)
        assert stopped.value.value == reply
    by_hand = compiled(Waited(), b"a", b"").__await__()
    by_hand.send(None)
    with pytest.raises(KeyError, match="no"):
        by_hand.send(Error(KeyError("no")))


async def test_a_program_may_be_traced(wait: Wait) -> None:
    waited, seen = Waited(), list[bytes]()

    async def ask() -> None:
        seen.append(await wait(waited, b"a", b""))

    def trace(_frame: FrameType, _event: str, _value: object) -> Callable[..., Any]:
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            waited.wake()
    finally:
        sys.settrace(before)
    assert seen == [resp.OK]


async def test_where_trio_yields_anything_else_each_wait_is_trios(
    compiled: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    @coroutine
    def by_another_frame(withdraw: object) -> Generator[tuple[object, str], None, None]:
        yield withdraw, "and more"

    assert not isinstance(compiled, FunctionType)
    monkeypatch.setattr(trio.lowlevel, "wait_task_rescheduled", by_another_frame)
    assert isinstance(waiting(DONE), FunctionType)
