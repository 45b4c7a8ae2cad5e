"""How calls are sent: once, in order, again when their outcome is unknown; and what is known."""

from collections.abc import Callable

import pytest
import trio

from quorate import (
    CallError,
    ConfigurationError,
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from quorate.objects import Counter, Replicated, ReplicatedQueue, replicated, wire
from quorate.objects import sessions as session_rules
from quorate.objects.caller import Caller

from .test_calls import running

LOST = UnknownOutcomeError("lost")


async def test_calls_of_many_tasks_share_entries_and_keep_their_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    queue = ReplicatedQueue("q", int)
    async with running(queue) as world, trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(queue.put, number)
            if number % 10 == 0:
                await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(trio.sleep, 1)
    assert sorted(queue.local) == list(range(100))
    assert len(world.log) < 30
    first = [number for number in queue.local if number < 1]
    assert first == list(queue.local[:1])


@pytest.mark.parametrize("done", [True, False])
async def test_a_call_of_unknown_outcome_is_sent_again_and_done_once(
    autojump_clock: trio.testing.MockClock,
    *,
    done: bool,
) -> None:
    counter = Counter("c")
    async with running(counter) as world:
        await counter.add(1)
        world.fail = [(LOST, done), (NoLeaderError("none"), False), (RefusedError("no"), False)]
        assert await counter.add(1) == 2
        assert await counter.add(1) == 3


async def test_a_call_that_was_never_sent_says_so(autojump_clock: trio.testing.MockClock) -> None:
    counter = Counter("c")
    async with running(counter, patience_s=1.0) as world:
        world.fail = [(NoLeaderError("none"), False)] * 100
        with pytest.raises(NoLeaderError):
            await counter.add(1)
        world.fail = [(RefusedError("suspended"), False)]
        with pytest.raises(RefusedError):
            await counter.add(1)
        world.fail = [(OversizedRequestError("large"), False)]
        with pytest.raises(OversizedRequestError):
            await counter.add(1)
        assert await counter.add(1) == 1


async def test_a_call_that_is_never_answered_is_unknown_and_the_next_ones_go_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counter = Counter("c")
    async with running(counter, patience_s=1.0) as world:
        await counter.add(1)
        world.fail = [(LOST, True), *[(NoLeaderError("none"), False)] * 7]
        with pytest.raises(UnknownOutcomeError):
            await counter.add(1)
        world.fail = []
        assert await counter.add(1) == 3


async def test_a_session_that_others_have_pushed_out_is_replaced(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(session_rules, "MAX_SESSIONS", 2)
    counter = Counter("c")

    async with running(counter) as world:

        def push_out() -> None:
            for _ in range(2):
                world.apply(wire.encode(wire.Batch(0, 0, ())))

        await counter.add(1)
        push_out()
        assert await counter.add(1) == 2
        push_out()
        world.fail = [(LOST, False)]
        with pytest.raises(UnknownOutcomeError, match="the session ended before"):
            await counter.add(1)
        assert await counter.add(1) == 3


async def test_a_call_that_is_cancelled_before_it_is_sent_is_never_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counter = Counter("c")
    async with running(counter) as world:
        await counter.add(1)
        world.fail = [(NoLeaderError("none"), False)] * 3
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter.add, 10)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0.001):
                await counter.add(100)
        assert await counter.add(1) == 12


async def test_a_call_whose_task_is_cancelled_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counter = Counter("c")
    async with running(counter) as world:
        await counter.add(1)
        world.fail = [(NoLeaderError("none"), False)] * 3
        with trio.move_on_after(0.001):
            await counter.add(10)
        await trio.sleep(1)
        assert counter.local == 11


async def test_calls_that_wait_when_the_member_stops_have_an_unknown_outcome(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counter = Counter("c")
    seen: list[Exception] = []

    async def add() -> None:
        try:
            await counter.add(1)
        except UnknownOutcomeError as error:
            seen.append(error)

    async with trio.open_nursery() as nursery, running(counter) as world:
        world.fail = [(NoLeaderError("none"), False)] * 100
        for _ in range(2):
            nursery.start_soon(add)
            await trio.sleep(0.1)
    assert len(seen) == 2


class Texts(Replicated):
    count: int

    def __init__(self, name: str = "texts") -> None:
        super().__init__(name)
        self.count = 0

    @replicated
    def long(self, size: int) -> str:
        self.count += 1
        return "x" * size


async def test_long_results_are_cut_into_several_replies(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(wire, "ENOUGH_BYTES", 100)
    monkeypatch.setattr(wire, "MAX_RESULT_BYTES", 1000)
    texts = Texts()
    sizes: list[int] = []

    async def ask(size: int) -> None:
        sizes.append(len(await texts.long(size)))

    async with running(texts) as world, trio.open_nursery() as nursery:
        for size in range(300, 310):
            nursery.start_soon(ask, size)
        await trio.sleep(1)
        assert sorted(sizes) == list(range(300, 310))
        with pytest.raises(CallError, match="at most 1000 are sent"):
            await texts.long(2000)
        assert texts.count == 10
        monkeypatch.setattr(session_rules, "LONGEST_KEPT", 100)
        world.fail = [(LOST, True)]
        with pytest.raises(UnknownOutcomeError, match="it was done, once"):
            await texts.long(500)
        assert texts.count == 11


@pytest.mark.parametrize("wrong", [0, -1.0, float("inf"), True])
def test_a_patience_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(ConfigurationError, match="patience_s = "):
        Caller(wrong)


@pytest.mark.parametrize(
    "reply", [b"", b"\x92\x09\x01", wire.encode(wire.Done(0, ())), wire.encode(wire.Malformed("x"))]
)
async def test_a_reply_to_something_else_is_an_error(
    reply: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter("c")
    async with running(counter) as world:
        await counter.add(1)
        spoil: Callable[..., bytes] = lambda *_: reply  # noqa: E731
        monkeypatch.setattr(world, "apply", spoil)
        with pytest.raises(RequestError):
            await counter.add(1)
