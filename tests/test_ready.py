"""Callbacks for what is readable: as a loop of `wait_readable`, for trio and for all its tasks."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import threading
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from quorate import ready
from quorate.ready import forget, look_into_trio, whenever_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@pytest.fixture(autouse=True, params=["stays", "returns", "sleeps"])
def hub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is known of trio's loop, as if it were not, and where nothing was compiled."""
    if request.param == "returns":
        monkeypatch.setattr(ready, "look_into_trio", lambda: None)
    if request.param == "sleeps":
        monkeypatch.setattr(ready, "look_out", None)


class Bell:
    """A descriptor that is readable once it was rung."""

    def __init__(self) -> None:
        self.file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        os.eventfd_write(self.file, 1)

    def heard(self) -> int:
        return os.eventfd_read(self.file)


@pytest.fixture
def bells() -> Generator[list[Bell]]:
    made = [Bell(), Bell()]
    yield made
    for bell in made:
        os.close(bell.file)


class Passes(trio.abc.Instrument):
    """Counts the passes of trio's loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.count += 1


async def test_trio_is_known() -> None:
    """If a new version of trio hides its epoll, everything works, and slower: to be seen here."""
    assert look_into_trio() is not None


async def test_a_callback_is_called_for_what_it_leaves_too(bells: list[Bell]) -> None:
    bell, calls, done = bells[0], 0, trio.Event()

    def heed() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            bell.heard()
            done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(whenever_readable, bell.file, heed)
        await trio.sleep(0.01)
        assert calls == 0
        bell.ring()
        await done.wait()
        await trio.sleep(0.01)
        assert calls == 5
        nursery.cancel_scope.cancel()
    bell.ring()
    await trio.sleep(0.01)
    assert calls == 5
    bell.heard()


async def test_what_a_callback_raises_arrives_where_it_is_waited_for(bells: list[Bell]) -> None:
    bell, calls = bells[0], 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        raise KeyError("a bug")

    bell.ring()
    with pytest.raises(KeyError, match="a bug"):
        await whenever_readable(bell.file, fail)
    await trio.sleep(0.01)
    assert calls == 1
    with trio.move_on_after(0.05) as scope:  # the descriptor is free for somebody else
        await whenever_readable(bell.file, bell.heard)
    assert scope.cancelled_caught
    with pytest.raises(BlockingIOError):
        bell.heard()


async def test_what_the_system_has_no_room_for_is_nowhere(
    bells: list[Bell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be readable for ever, and nobody would be called."""
    bell = bells[0]
    made: list[Full] = []
    real = select.epoll

    class Full:
        """An epoll; the second that is made takes no bell."""

        def __init__(self) -> None:
            self._epoll = real()
            self.files: list[int] = []
            made.append(self)

        def register(self, file: int, events: int) -> None:
            if len(made) == 2 and self is made[1] and file == bell.file:
                raise OSError(errno.ENOSPC, "no more")
            self._epoll.register(file, events)
            self.files.append(file)

        def unregister(self, file: int) -> None:
            self._epoll.unregister(file)
            self.files.remove(file)

        def __getattr__(self, name: str) -> object:
            return getattr(self._epoll, name)

    monkeypatch.setattr(ready, "look_into_trio", lambda: None)  # it wants real ones
    monkeypatch.setattr(select, "epoll", Full)
    bell.ring()
    with pytest.raises(OSError, match="no more"):
        await whenever_readable(bell.file, bell.heard)
    assert len(made) == 2
    assert bell.file not in made[0].files


async def test_who_waits_for_what_is_closed_is_told(bells: list[Bell]) -> None:
    one, other = bells
    ended: list[int] = []

    async def wait(bell: Bell) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await whenever_readable(bell.file, heed)
        ended.append(bell.file)

    def heed() -> None:
        forget(one.file)
        forget(other.file)  # perhaps its callback is to be called in this very moment

    forget(one.file)  # nobody waits
    one.ring()
    other.ring()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, one)
        nursery.start_soon(wait, other)
    assert sorted(ended) == sorted((one.file, other.file))


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_callback_that_ends_the_wait_and_then_fails_is_not_silent(
    bells: list[Bell], how: str
) -> None:
    scope = trio.CancelScope()

    def fail() -> None:
        if how == "closed":
            forget(bells[0].file)
        else:
            scope.cancel()
        raise KeyError("a bug")

    bells[0].ring()
    with pytest.raises(KeyError, match="a bug"), scope:
        await whenever_readable(bells[0].file, fail)


async def test_a_callback_may_end_its_own_wait(bells: list[Bell]) -> None:
    scope = trio.CancelScope()
    for bell in bells:
        bell.ring()
    with scope:
        await whenever_readable(bells[0].file, scope.cancel)
    assert scope.cancelled_caught
    with pytest.raises(trio.ClosedResourceError):
        await whenever_readable(bells[1].file, lambda: forget(bells[1].file))


async def test_a_descriptor_that_was_closed_can_still_be_given_up() -> None:
    file = os.eventfd(0)
    with trio.move_on_after(0.02) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(whenever_readable, file, lambda: None)
            await trio.testing.wait_all_tasks_blocked()
            os.close(file)
    assert scope.cancelled_caught


def test_waits_that_outlive_the_hub_end_with_the_run(bells: list[Bell]) -> None:
    ends: list[str] = []

    async def system_task() -> None:
        try:
            with trio.CancelScope(shield=True), trio.move_on_after(0.05):
                await whenever_readable(bells[0].file, lambda: None)
        finally:
            ends.append("in order")

    async def main() -> None:
        trio.lowlevel.spawn_system_task(system_task)
        await trio.sleep(0.01)

    trio.run(main)
    assert ends == ["in order"]


async def test_a_deadline_that_a_callback_has_set_is_kept(bells: list[Bell]) -> None:
    """Also while there is always something to call back for."""
    scope, calls = trio.CancelScope(), 0

    def heed() -> None:
        nonlocal calls
        calls += 1
        if calls == 10:
            scope.deadline = trio.current_time() + 0.01
        assert calls < 10_000_000, "the deadline is held up"

    bells[0].ring()
    with scope:
        await whenever_readable(bells[0].file, heed)
    assert scope.cancelled_caught


def test_the_loop_of_which_trio_is_the_guest_is_not_held_up(bells: list[Bell]) -> None:
    async def main() -> None:
        bells[0].ring()
        with trio.move_on_after(0.2):
            await whenever_readable(bells[0].file, lambda: None)

    async def host() -> int:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        trio.lowlevel.start_guest_run(
            main,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=lambda _outcome: done.set(),
        )
        turns = 0
        while not done.is_set():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(host()) > 100


async def in_time(bell: Bell, other_work: Callable[[], object], nursery: trio.Nursery) -> None:
    """Have a descriptor always readable, and see that other work goes on."""
    nursery.start_soon(whenever_readable, bell.file, other_work)
    bell.ring()
    with trio.fail_after(20):
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.0001)
            await trio.to_thread.run_sync(lambda: None)
        left, right = trio.testing.memory_stream_pair()
        sockets = trio.socket.socketpair()
        for number in range(100):
            await left.send_all(b"x")
            assert await right.receive_some(1) == b"x"
            await sockets[0].send(b"%d" % number)
            assert await sockets[1].recv(10) == b"%d" % number
        for end in sockets:
            end.close()


async def test_what_is_always_readable_holds_up_nobody(bells: list[Bell]) -> None:
    calls = 0

    def heed() -> None:
        nonlocal calls
        calls += 1

    async with trio.open_nursery() as nursery:
        await in_time(bells[0], heed, nursery)
        assert calls > 100
        nursery.cancel_scope.cancel()


async def test_callbacks_that_are_waited_for_hold_up_nobody(bells: list[Bell]) -> None:
    """The same with a pause before each, so that the hub waits for the next one."""
    stop = threading.Event()

    def ring() -> None:
        while not stop.wait(0.0003):
            bells[0].ring()

    thread = threading.Thread(target=ring)
    thread.start()
    try:
        async with trio.open_nursery() as nursery:
            await in_time(bells[0], bells[0].heard, nursery)
            nursery.cancel_scope.cancel()
    finally:
        stop.set()
        thread.join()


async def test_a_chain_of_callbacks_takes_few_passes_of_trio(
    bells: list[Bell], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = bells
    calls, done = 0, trio.Event()

    def heed(bell: Bell, to: Bell) -> None:
        nonlocal calls
        calls += bell.heard()
        if calls < 1000:
            to.ring()
        else:
            done.set()

    looked, look_out = 0, ready.look_out

    def count(epoll: int, seconds: float) -> tuple[list[tuple[int, int]], float]:
        nonlocal looked
        looked += 1
        assert look_out is not None
        return look_out(epoll, seconds)

    if look_out is not None:
        monkeypatch.setattr(ready, "look_out", count)
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(whenever_readable, one.file, lambda: heed(one, other))
        nursery.start_soon(whenever_readable, other.file, lambda: heed(other, one))
        one.ring()
        await done.wait()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(passes)
    if "returns" in request.node.name:
        assert passes.count >= 500
    else:
        assert passes.count < 50
    assert (looked > 0) == ("stays" in request.node.name and ready.NATIVE)


async def test_a_callback_wakes_a_task(bells: list[Bell]) -> None:
    bell, rung = bells[0], trio.Event()

    def heed() -> None:
        bell.heard()
        rung.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(whenever_readable, bell.file, heed)
        bell.ring()
        with trio.fail_after(5):
            await rung.wait()
        nursery.cancel_scope.cancel()
