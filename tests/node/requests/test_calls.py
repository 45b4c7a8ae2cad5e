"""Calls of tasks of this process: each task goes on with what became of its own request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from quorate.errors import NoLeaderError, RequestError, UnknownOutcomeError
from quorate.node.requests.request import Request, RequestKind
from quorate.node.requests.task_calls import Calls, Reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

COMMAND = RequestKind.COMMAND


class Member:
    """Takes requests and keeps them; what is refused is done at once."""

    def __init__(self) -> None:
        self.taken: list[Request] = []
        self.refuses = False
        self.answers = False
        self.calls = Calls(self.submit)

    def submit(self, request: Request) -> None:
        if self.refuses:
            request.done(NoLeaderError("no leader"))
        elif self.answers:
            request.done(b"at once")
        else:
            self.taken.append(request)

    async def ask(self, payload: bytes, results: dict[bytes, bytes | RequestError]) -> None:
        try:
            results[payload] = await self.calls.ask(COMMAND, payload, 3)
        except RequestError as error:
            results[payload] = error


async def test_each_task_gets_its_own_result_and_all_of_a_turn_go_on_together() -> None:
    member = Member()
    results = dict[bytes, bytes | RequestError]()
    async with trio.open_nursery() as nursery:
        for n in range(5):
            nursery.start_soon(member.ask, b"%d" % n, results)
        await wait_all_tasks_blocked()
        assert sorted(request.payload for request in member.taken) == [b"%d" % n for n in range(5)]
        assert {(request.kind, request.flags) for request in member.taken} == {(COMMAND, 3)}
        for request in member.taken:
            if request.payload == b"3":
                request.done(UnknownOutcomeError("lost"))
            else:
                request.done(b"reply to " + request.payload)
        assert not results
    assert isinstance(results.pop(b"3"), UnknownOutcomeError)
    assert results == {b"%d" % n: b"reply to %d" % n for n in (0, 1, 2, 4)}


async def test_what_is_done_at_once_is_returned_or_raised_after_a_checkpoint() -> None:
    member = Member()
    member.answers = True
    with trio.testing.assert_checkpoints():
        assert await member.calls.ask(COMMAND, b"a", 0) == b"at once"
    member.answers, member.refuses = False, True
    with trio.testing.assert_checkpoints(), pytest.raises(NoLeaderError):
        await member.calls.ask(COMMAND, b"b", 0)
    member.refuses = False
    results = dict[bytes, bytes | RequestError]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.ask, b"c", results)
        await wait_all_tasks_blocked()
        member.taken[0].done(b"later")
    assert results == {b"c": b"later"}


async def test_a_cancelled_call_is_withdrawn_and_may_still_be_done() -> None:
    member = Member()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.calls.ask, COMMAND, b"a", 0)
            await wait_all_tasks_blocked()
            scope.cancel()
    (request,) = member.taken
    assert request.cancelled
    request.done(b"too late")
    await trio.lowlevel.checkpoint()


async def test_a_result_that_came_before_the_cancellation_is_returned() -> None:
    member = Member()
    results = dict[bytes, bytes | RequestError]()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.ask, b"a", results)
            await wait_all_tasks_blocked()
            member.taken[0].done(b"done")
            scope.cancel()
    assert results == {b"a": b"done"}
    assert not member.taken[0].cancelled


async def test_a_task_that_is_cancelled_already_leaves_a_request_that_is_not_sent() -> None:
    member = Member()
    with trio.CancelScope() as scope:
        scope.cancel()
        await member.calls.ask(COMMAND, b"a", 0)
    assert scope.cancelled_caught
    assert [request.cancelled for request in member.taken] == [True]


async def test_a_payload_of_a_subclass_of_bytes_is_copied_and_a_stamp_is_passed_on() -> None:
    class Text(bytes):
        __slots__ = ()

    member = Member()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(member.calls.ask, COMMAND, Text(b"a"), 0, (7, 8))
        await wait_all_tasks_blocked()
        (request,) = member.taken
        assert type(request.payload) is bytes
        assert (request.session, request.sequence) == (7, 8)
        request.done(b"")


async def test_a_reply_is_an_outcome_that_can_be_taken_again() -> None:
    def echo() -> Generator[bytes, bytes]:
        yield (yield b"")

    async def echo_later() -> AsyncGenerator[bytes, bytes]:
        yield (yield b"")

    reply, taker, later = Reply(b"a"), echo(), echo_later()
    assert [reply.unwrap(), reply.unwrap()] == [b"a", b"a"]
    assert (next(taker), reply.send(taker)) == (b"", b"a")
    assert (await anext(later), await reply.asend(later)) == (b"", b"a")
    await later.aclose()


async def test_ctrl_c_does_not_come_between_a_request_and_its_wait() -> None:
    """Who is not protected from it might be rescheduled though it never came to wait."""
    protected = list[bool]()

    def submit(request: Request) -> None:
        protected.append(trio.lowlevel.currently_ki_protected())
        request.done(b"reply")

    assert not trio.lowlevel.currently_ki_protected()
    assert await Calls(submit).ask(COMMAND, b"a", 0) == b"reply"
    assert protected == [True]
