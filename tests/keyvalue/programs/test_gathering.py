"""SETs of many tasks that travel together: each task gets what became of its own."""

from collections.abc import Awaitable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from quorate.errors import (
    KeyValueError,
    NoLeaderError,
    OversizedRequestError,
    RequestError,
    UnknownOutcomeError,
)
from quorate.keyvalue.limits import AT_ONCE_BYTES, RUN_COMMANDS
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.gathering import Gathering
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import RESP3
from quorate.node.requests.request import COMMAND, still_wanted
from tests.support.gathering_world import OK, Member, Tasks, keys_of, tasks_at


async def test_what_tasks_set_in_one_turn_is_one_request_and_each_goes_on() -> None:
    member = Member()
    async with tasks_at(member) as tasks:
        tasks.set("a", "b", "c")
        assert await tasks.seen() == {}
        (request,) = member.take()
        keys = keys_of(request)
        assert sorted(keys) == ["a", "b", "c"]
        assert request.payload == b"".join(resp.encode_set(key.encode(), b"x") for key in keys)
        assert (request.kind, request.flags, request.session) == (COMMAND, RESP3, 0)
        assert [*still_wanted([request])] == [request]
        tasks.set("d")
        await wait_all_tasks_blocked()
        (later,) = member.take()
        later.done(OK)
        assert await tasks.seen() == {"d": True}
        request.done(OK * 3)
        assert await tasks.seen() == {"a": True, "b": True, "c": True}


async def test_a_request_takes_so_many_commands_and_so_many_bytes() -> None:
    member = Member()
    async with tasks_at(member) as tasks:
        names = [f"{n}" for n in range(RUN_COMMANDS + 1)]
        tasks.set(*names, value="")
        await wait_all_tasks_blocked()
        requests = member.take()
        assert [len(keys_of(request)) for request in requests] == [RUN_COMMANDS, 1]
        assert sorted(key for request in requests for key in keys_of(request)) == sorted(names)
        for request in requests:
            request.done(OK * len(keys_of(request)))
        assert await tasks.seen() == dict.fromkeys(names, True)
        tasks.set("a", "b", "c", value="x" * (AT_ONCE_BYTES // 2 - 50))
        await wait_all_tasks_blocked()
        requests = member.take()
        assert [len(keys_of(request)) for request in requests] == [2, 1]
        assert max(len(request.payload) for request in requests) <= AT_ONCE_BYTES


@pytest.mark.parametrize(("room", "most"), [(1 << 20, AT_ONCE_BYTES), (1000, 1000)])
async def test_what_is_longer_than_a_request_goes_alone(room: int, most: int) -> None:
    member = Member()
    async with tasks_at(member, room) as tasks:
        fits = most - resp.SET_FRAME_BYTES - len("a")
        tasks.set("a", value="x" * fits)
        await wait_all_tasks_blocked()
        (request,) = member.take()
        assert most - 20 < len(request.payload) <= most
        request.done(OK)
        assert await tasks.seen() == {"a": True}
        tasks.set("a", value="x" * (fits + 1))
        assert await tasks.seen() == {"a": True}
        assert member.alone == [resp.encode_set(b"a", b"x" * (fits + 1))]
        assert not member.turns


async def test_a_task_that_is_cancelled_before_the_turn_ends_sends_nothing() -> None:
    member = Member()
    async with tasks_at(member) as tasks:
        for keys in (["a", "b"], ["b"]):
            with trio.CancelScope() as scope:
                scope.cancel()
                await tasks.kv.set("a", "x")
            assert scope.cancelled_caught
            tasks.set(*(key for key in keys if key != "a"))
            await wait_all_tasks_blocked()
            (request,) = member.take()
            assert keys_of(request) == ["b"]
            request.done(OK)
            assert await tasks.seen() == {"b": True}
        with trio.CancelScope() as scope:
            scope.cancel()
            await tasks.kv.set("a", "x")
        await wait_all_tasks_blocked()
        assert not member.turns, "nothing is left to be submitted"


async def test_a_task_that_was_cancelled_may_set_again_in_the_same_turn() -> None:
    member = Member()
    async with tasks_at(member) as tasks:

        async def insist() -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await tasks.kv.set("a", "1")
            tasks.results["a"] = await tasks.kv.set("a", "2")

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(insist)
            await wait_all_tasks_blocked()
            for turn in member.turns:
                for request in turn:
                    assert b"\r\n1\r\n" not in request.payload
                    request.done(OK * len(keys_of(request)))
    assert tasks.results == {"a": True}


async def test_a_task_that_is_cancelled_before_its_request_was_sent_takes_its_set_out() -> None:
    member = Member()
    async with tasks_at(member) as tasks:
        tasks.set("a", "b", "c", "d")
        await wait_all_tasks_blocked()
        (request,) = member.take()
        request.deadline, request.losses = 5.0, 1
        keys = keys_of(request)
        tasks.cancel(keys[1])
        assert await tasks.seen() == {keys[1]: "cancelled"}
        assert request.cancelled
        (left,) = still_wanted([request])
        assert (keys_of(left), left.deadline, left.losses) == ([*keys[:1], *keys[2:]], 5.0, 1)
        assert not left.cancelled
        tasks.cancel(keys[3])
        await wait_all_tasks_blocked()
        (left,) = still_wanted([left])
        assert keys_of(left) == [keys[0], keys[2]]
        left.done(OK + b"-ERR no\r\n")
        seen = await tasks.seen()
        assert (seen[keys[0]], str(seen[keys[2]])) == (True, "ERR no")


async def test_a_request_that_nobody_waits_for_is_not_sent() -> None:
    member = Member()
    async with tasks_at(member) as tasks:
        tasks.set("a", "b")
        await wait_all_tasks_blocked()
        (request,) = member.take()
        tasks.cancel("a", "b")
        assert await tasks.seen() == {"a": "cancelled", "b": "cancelled"}
        assert [*still_wanted([request])] == []
        request.done(NoLeaderError("late"))


async def test_a_task_that_is_cancelled_after_its_request_was_sent_takes_nothing_from_others() -> (
    None
):
    member = Member()
    async with tasks_at(member) as tasks:
        for replies in (OK * 3, OK + b"-ERR no\r\n" + OK):
            tasks.set("a", "b", "c")
            await wait_all_tasks_blocked()
            (request,) = member.take()
            first, second, third = keys_of(request)
            tasks.cancel(second)
            assert await tasks.seen() == {second: "cancelled"}
            request.done(replies)
            assert await tasks.seen() == {first: True, third: True}


async def test_each_task_has_the_reply_to_its_own_set() -> None:
    member = Member()
    async with tasks_at(member) as tasks:
        tasks.set("a", "b", "c")
        await wait_all_tasks_blocked()
        (request,) = member.take()
        first, second, third = keys_of(request)
        request.done(OK + b"-ERR no\r\n" + OK)
        seen = await tasks.seen()
        assert (seen[first], seen[third]) == (True, True)
        assert isinstance(seen[second], KeyValueError)


@pytest.mark.parametrize(
    "error", [NoLeaderError("none"), UnknownOutcomeError("lost"), OversizedRequestError("large")]
)
async def test_an_error_is_raised_in_each_task_as_its_own(error: RequestError) -> None:
    member = Member()
    async with tasks_at(member) as tasks:
        tasks.set("a", "b", "c", "d")
        await wait_all_tasks_blocked()
        (request,) = member.take()
        tasks.cancel("d")
        await wait_all_tasks_blocked()
        request.done(error)
        seen = await tasks.seen()
        assert seen.pop("d") == "cancelled"
        assert {(type(one), str(one)) for one in seen.values()} == {(type(error), str(error))}
        assert len({id(one) for one in [*seen.values(), error]}) == 4


@pytest.mark.parametrize("replies", [b"", OK, b"-ERR Protocol error\r\n", OK * 3])
async def test_replies_that_are_not_as_many_leave_the_outcome_unknown(replies: bytes) -> None:
    member = Member()
    async with tasks_at(member) as tasks:
        tasks.set("a", "b")
        await wait_all_tasks_blocked()
        (request,) = member.take()
        request.done(replies)
        assert {type(one) for one in (await tasks.seen()).values()} == {UnknownOutcomeError}


@pytest.mark.parametrize("result", [OK, NoLeaderError("this member stops")])
async def test_what_is_done_while_it_is_submitted_wakes_its_task(
    result: bytes | RequestError,
) -> None:
    member = Member()
    member.at_once = result
    async with tasks_at(member) as tasks:
        tasks.set("a")
        (seen,) = (await tasks.seen()).values()
        assert seen is True if result == OK else isinstance(seen, NoLeaderError)


async def test_what_has_gathered_when_it_ends_is_submitted_and_then_each_goes_alone() -> None:
    member = Member()
    gathering = Gathering(member, 1 << 20)
    async with trio.open_nursery() as nursery:
        tasks = Tasks(member, gathering, nursery)
        tasks.set("before")
        assert await tasks.seen() == {"before": True}
        async with trio.open_nursery() as running:
            await running.start(gathering.run)

            async def end_and_set() -> None:
                running.cancel_scope.cancel()
                tasks.results["a"] = await tasks.kv.set("a", "x")

            nursery.start_soon(end_and_set)
        (request,) = member.take()
        assert keys_of(request) == ["a"]
        request.done(OK)
        assert await tasks.seen() == {"a": True}
        tasks.set("after")
        assert await tasks.seen() == {"after": True}
    assert member.alone == [resp.encode_set(key, b"x") for key in (b"before", b"after")]
    assert not member.turns


async def test_ctrl_c_does_not_come_between_a_set_and_its_wait() -> None:
    """Who is not protected from it might be rescheduled though it never came to wait."""

    class Watched(Gathering):
        protected = False

        def send(self, key: bytes, value: bytes) -> Awaitable[bytes]:
            self.protected = trio.lowlevel.currently_ki_protected()
            return super().send(key, value)

    watched = Watched(Member(), 1 << 20)
    assert not trio.lowlevel.currently_ki_protected()
    assert await KeyValue(Member(), watched).set("a", "x")
    assert watched.protected
