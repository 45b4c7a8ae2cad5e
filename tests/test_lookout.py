"""A wait that begins awake finds what a sleeping one does, and is in nobody's way."""

from __future__ import annotations

import os
import select
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from quorate import ready
from quorate.ready import Lookout

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import ModuleType

needs_native = pytest.mark.skipif(not ready.NATIVE, reason="ready.c was not compiled")
WAIT_SECONDS = 1.0  # as long as a wait may be awake
Readable = list[tuple[int, int]]


@pytest.fixture
def bells() -> Generator[list[int]]:
    """Eventfds, more than are told of at once."""
    made = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(100)]
    yield made
    for file in made:
        os.close(file)


@pytest.fixture
def epoll(bells: list[int]) -> Generator[select.epoll]:
    with select.epoll() as made:
        for file in bells:
            made.register(file, select.EPOLLIN)
        yield made


@contextmanager
def ringing(bell: int) -> Generator[None]:
    """Have another thread ring a little later; it can if it gets the interpreter then."""
    ringer = threading.Timer(0.05, os.eventfd_write, (bell, 1))
    ringer.start()
    try:
        yield
    finally:
        ringer.join()


def look_out(epoll: select.epoll, seconds: float) -> Readable:
    assert ready.look_out is not None
    found, took = ready.look_out(epoll.fileno(), seconds)
    assert took >= (0.0 if found else seconds)
    return found


@needs_native
def test_what_is_readable_is_told_as_by_poll(bells: list[int], epoll: select.epoll) -> None:
    assert look_out(epoll, 0.0) == epoll.poll(0) == []
    for file in bells[3:7]:
        os.eventfd_write(file, 1)
    assert sorted(look_out(epoll, WAIT_SECONDS)) == sorted(epoll.poll(0))


@needs_native
def test_of_very_much_a_part_is_told_at_a_time(bells: list[int], epoll: select.epoll) -> None:
    for file in bells:
        os.eventfd_write(file, 1)
    found: set[int] = set()
    while part := look_out(epoll, 0.0):
        for file, events in part:
            assert events == select.EPOLLIN
            os.eventfd_read(file)
            found.add(file)
    assert found == {*bells}


@needs_native
def test_other_threads_have_the_interpreter_meanwhile(
    bells: list[int], epoll: select.epoll
) -> None:
    with ringing(bells[0]):
        assert look_out(epoll, WAIT_SECONDS) == [(bells[0], select.EPOLLIN)]


@needs_native
def test_what_is_no_epoll_is_refused(bells: list[int]) -> None:
    assert ready.look_out is not None
    with pytest.raises(OSError, match="Invalid argument"):
        ready.look_out(bells[0], 0.0)


@needs_native
@pytest.mark.parametrize("seconds", [-0.1, 1.1, float("inf"), float("nan")])
def test_no_wait_awake_is_long(epoll: select.epoll, seconds: float) -> None:
    with pytest.raises(ValueError, match="expected 0 to 1 seconds"):
        look_out(epoll, seconds)


@needs_native
@pytest.mark.parametrize("arguments", [(), (1,), ("a", 1.0), (1, "a"), (1, 1.0, 1)])
def test_what_makes_no_sense_is_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        cast("Callable[..., object]", ready.look_out)(*arguments)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_comes_in_the_sleep_is_found(
    bells: list[int], epoll: select.epoll, monkeypatch: pytest.MonkeyPatch, *, compiled: bool
) -> None:
    if not compiled:
        monkeypatch.setattr(ready, "look_out", None)
    lookout = Lookout(epoll)
    assert lookout.wait(0.0) == []
    assert lookout.wait(0.001) == []
    with ringing(bells[0]):
        assert lookout.wait(60.0) == [(bells[0], select.EPOLLIN)]


def test_without_the_extension_a_wait_is_a_sleep(
    epoll: select.epoll, load_without: Callable[[ModuleType, str], ModuleType]
) -> None:
    module = load_without(ready, "quorate._ready")
    assert not module.NATIVE
    assert module.Lookout(epoll).wait(0.0) == []


class Processor:
    """A clock, and a look-out that takes as long as it is told; it tells what was done, and when.

    Attributes:
        seconds: that it takes until the processor is given back; 0 for as long as was asked for.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.now = 100.0
        self.found: Readable = []
        self.done: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def look_out(self, _epoll: int, seconds: float) -> tuple[Readable, float]:
        self.done.append("awake")
        took = self.seconds or seconds
        self.now += took
        return self.found, took

    def fileno(self) -> int:
        return 7

    def poll(self, seconds: float) -> Sequence[tuple[int, int]]:
        assert seconds >= 0.0, "that would be for ever"
        self.done.append("asleep")
        self.now += seconds
        return []


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    made = Processor()
    monkeypatch.setattr(ready, "time", SimpleNamespace(perf_counter=made.perf_counter))
    monkeypatch.setattr(ready, "look_out", made.look_out)
    return made


def lookout_on(processor: Processor) -> Lookout:
    return Lookout(processor)  # type: ignore[arg-type]


def test_a_wait_is_awake_for_a_moment_and_no_longer_than_it_may(processor: Processor) -> None:
    lookout = lookout_on(processor)
    assert lookout.wait(5.0) == []
    assert processor.done == ["awake", "asleep"]
    assert processor.now == pytest.approx(105.0)
    lookout.wait(0.0001)
    assert processor.now == pytest.approx(105.0001)


def test_what_is_found_awake_costs_no_sleep(processor: Processor) -> None:
    processor.found = [(3, select.EPOLLIN)]
    assert lookout_on(processor).wait(5.0) == processor.found
    assert processor.done == ["awake"]


def give_way(processor: Processor, seconds: float, times: int) -> Lookout:
    """Give way for so long, so many times."""
    lookout = lookout_on(processor)
    processor.seconds = seconds
    for _ in range(times):
        lookout.wait(0.0)
    return lookout


def lost(processor: Processor, seconds: float) -> float:
    """Give way for so long; return for how long it is asleep then."""
    return sleeps(processor, give_way(processor, seconds, 1))


def sleeps(processor: Processor, lookout: Lookout) -> float:
    """Wait again and again until it is awake; return how long that takes."""
    begin, processor.seconds = processor.now, 0.0
    processor.done.clear()
    while "awake" not in processor.done:
        assert processor.now < begin + 10.0
        lookout.wait(0.001)
    return processor.now - begin


@pytest.mark.parametrize("found", [[], [(3, select.EPOLLIN)]])
def test_beside_somebody_busy_a_thirtieth_of_the_time_is_lost(
    processor: Processor, found: Readable
) -> None:
    processor.found = found
    # What is left of thirty times as long, after a credit of 2 ms, and while it was lost.
    assert lost(processor, 0.004) == pytest.approx(30 * (0.004 - 0.002) - 0.004, abs=0.003)


def test_a_process_that_was_stopped_is_not_asleep_for_long(processor: Processor) -> None:
    assert lost(processor, 0.02) == pytest.approx(30 * (0.02 - 0.002) - 0.02, abs=0.003)
    assert lost(processor, 3600.0) <= 0.002


def test_who_is_back_soon_goes_on_awake(processor: Processor) -> None:
    give_way(processor, 0.0009, 1000)
    assert processor.done.count("awake") == 1000


def test_small_losses_add_up(processor: Processor) -> None:
    lookout = give_way(processor, 0.0015, 3)
    assert processor.done.count("awake") == 2
    assert sleeps(processor, lookout) == pytest.approx(30 * 0.001, abs=0.004)
