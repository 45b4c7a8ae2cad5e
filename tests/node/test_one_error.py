"""Errors come out of a member's block as themselves, and one at a time."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio
from trio.testing import MockClock

import quorate
from quorate.errors import SafetyViolationError, StorageError, UnknownOutcomeError
from quorate.local.cluster import free_client_port
from quorate.node.one_error import one_error
from quorate.simulation.ledger import Ledger, open_ledgers


@one_error
@asynccontextmanager
async def tasks(*errors: BaseException, after: float = 1.0) -> AsyncGenerator[str]:
    """Run tasks that fail after a while, in a nursery within a nursery."""

    async def fail(error: BaseException) -> None:
        with trio.CancelScope(shield=True):  # so that each fails, whichever is first
            await trio.sleep(after)
        raise error

    async with trio.open_nursery() as outer, trio.open_nursery() as inner:
        for number, error in enumerate(errors):
            (outer, inner)[number % 2].start_soon(fail, error)
        yield "value"
        outer.cancel_scope.cancel()


async def raised(body: Callable[[], object], *errors: BaseException) -> BaseException:
    """Return what comes out of the block."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011, PT012 - each test says which
        async with tasks(*errors) as value:
            assert value == "value"
            body()
            await trio.sleep_forever()
    return caught.value


def throws(error: BaseException) -> Callable[[], None]:
    def throw() -> None:
        raise error

    return throw


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a"),
        ExceptionGroup("of the caller", [ValueError("a"), OSError("b")]),
        KeyboardInterrupt(),
        StopAsyncIteration(),
    ],
)
async def test_an_error_of_the_body_is_itself(error: BaseException) -> None:
    assert await raised(throws(error)) is error
    assert (error.__cause__, error.__context__) == (None, None)


async def test_a_failure_inside_is_one_error(autojump_clock: MockClock) -> None:
    error = StorageError("a")
    assert await raised(lambda: None, error) is error


async def test_the_gravest_of_several_is_raised(autojump_clock: MockClock) -> None:
    storage, bug, violation = StorageError("a"), ValueError("b"), SafetyViolationError("c")
    assert await raised(lambda: None, storage, bug, violation) is violation
    others = cast("BaseExceptionGroup[Exception]", violation.__cause__)
    assert {*others.exceptions} == {storage, bug}


async def test_what_the_body_raises_of_a_failure_does_not_hide_it(
    autojump_clock: MockClock,
) -> None:
    error = StorageError("a")
    with pytest.raises(StorageError) as caught:  # noqa: PT012
        async with tasks(error):
            try:
                await trio.sleep_forever()
            finally:
                raise UnknownOutcomeError("of a request")
    assert caught.value is error
    assert "of a request" in error.__notes__[0]


async def test_a_failure_while_the_body_fails_is_noted() -> None:
    error = ValueError("a")
    late = StorageError("late")

    @one_error
    @asynccontextmanager
    async def ends_badly() -> AsyncGenerator[None]:
        async def close() -> None:
            try:
                await trio.sleep_forever()
            finally:
                raise late

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            yield

    with pytest.raises(ValueError, match="a") as caught:  # noqa: PT012
        async with ends_badly():
            await trio.lowlevel.checkpoint()
            raise error
    assert caught.value is error
    assert "late" in error.__notes__[0]


async def test_keyboard_interrupt_in_a_task_is_itself(autojump_clock: MockClock) -> None:
    interrupt = KeyboardInterrupt()
    assert await raised(lambda: None, StorageError("a"), interrupt) is interrupt


async def test_a_cancellation_is_one(autojump_clock: MockClock) -> None:
    with trio.move_on_after(0.5) as scope:
        async with tasks(), trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(trio.sleep_forever)
    assert scope.cancelled_caught
    assert trio.current_time() == 0.5


async def test_a_world_raises_what_its_block_raises(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with open_ledgers(tmp_path) as world:
            await world.start()
            raise ZeroDivisionError


def alone(directory: Path) -> quorate.NodeConfig:
    first = free_client_port(2)
    members = (quorate.MemberConfig(0, "127.0.0.1", first, first + 1),)
    return quorate.NodeConfig("alone", 0, directory, members, "test")


async def test_a_node_raises_what_its_block_raises(tmp_path: Path) -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        async with quorate.open_node(alone(tmp_path)) as node:
            await node.kv.set("a", "b")
            raise KeyError


@pytest.mark.parametrize("port", ["member_port", "client_port"])
async def test_a_node_whose_port_is_taken_raises_an_os_error(tmp_path: Path, port: str) -> None:
    config = alone(tmp_path)
    (listener,) = await trio.open_tcp_listeners(getattr(config.members[0], port), host="127.0.0.1")
    async with listener:
        with pytest.raises(OSError, match=r"in use|98"):
            async with quorate.open_node(config):
                pytest.fail("it runs")


class Failing(Ledger):
    """A state machine with a bug."""

    def apply(self, command: quorate.Command) -> bytes:
        raise ZeroDivisionError


async def test_a_service_that_fails_ends_the_block_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with quorate.open_node(alone(tmp_path), Failing()) as node:
            await node.command(b"a")


async def test_a_node_that_is_cancelled(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with quorate.open_node(alone(tmp_path)) as node:
            scope.cancel()
            await node.wait()
    assert scope.cancelled_caught


async def test_an_error_is_never_a_cause_of_itself(autojump_clock: MockClock) -> None:
    """What walks along the causes would never come to an end."""
    shared = StorageError("a disk that two tasks wait for")
    found = await raised(lambda: None, shared, shared)
    assert found is shared
    assert found.__cause__ is None
    later = OSError("what came of it")
    later.__cause__ = ExceptionGroup("", [shared])
    found = await raised(lambda: None, shared, later)
    assert found is shared
    assert found.__cause__ is None
