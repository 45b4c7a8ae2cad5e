"""Requests that a member forwards or parks: none waits for what will not come."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import NoLeaderError, OversizedRequestError, RequestError, UnknownOutcomeError
from quorate.node import State
from quorate.node.requests import router
from quorate.node.requests.forwarding import ForwardStatus
from quorate.node.requests.request import RequestKind
from quorate.simulation import Ledger, Setting, open_world
from quorate.simulation.ledger import open_ledgers
from quorate.transport import (
    MAX_BATCH_BYTES,
    ForwardReply,
    ForwardRequest,
    LeadershipCession,
    TermSpan,
)
from tests.support.peers import ME, batch, log
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from trio.testing import MockClock

    from tests.support.peers import Peer

LOG = log((0, 96), (0, 192))
LEVEL = (TermSpan(0, 0, 192), TermSpan(1, 192, -1))  # of a leader that has what LOG has
BIG = 11 << 20  # three requests of this size are more than half a queue of a link

QUERY, COMMAND = RequestKind.QUERY, RequestKind.COMMAND


async def ask(
    s: Script, kind: RequestKind, answers: list[bytes | RequestError], payload: bytes = b"x"
) -> None:
    """Ask the member, and note what comes of it."""
    call = s.member.query if kind is QUERY else s.member.command
    try:
        answers.append(await call(payload))
    except RequestError as error:
        answers.append(error)


@asynccontextmanager
async def forwarded(
    s: Script, kind: RequestKind
) -> AsyncGenerator[tuple[Peer, ForwardRequest, list[bytes | RequestError]]]:
    """Follow a leader that has a request of ours; give both, and what comes of it.

    The block ends when it is answered.
    """
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    answers: list[bytes | RequestError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, s, kind, answers)
        yield leader, await leader.hears(ForwardRequest), answers


@pytest.mark.parametrize("kind", [QUERY, COMMAND])
@scripted(batches=LOG)
async def test_a_request_that_is_sent_back_again_and_again_keeps_its_first_deadline(
    s: Script, kind: RequestKind
) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    answers: list[bytes | RequestError] = []
    asked, started = 0, trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, s, kind, answers)
        while not answers:
            assert trio.current_time() - started < 10
            leader.commit(1)
            with trio.move_on_after(0.05):
                request = await leader.hears(ForwardRequest)
                asked += 1
                leader.say(ForwardReply(request.request_id, ForwardStatus.RETRY, b""))
    assert isinstance(answers[0], NoLeaderError)
    assert 4.0 <= trio.current_time() - started < 4.2
    assert asked > 20
    assert (s.member.status().parked, s.member.status().forwarded) == (0, 0)


@scripted(batches=LOG)
async def test_a_stamp_travels_to_the_leader_and_into_its_log(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(s.member.command, b"x", 3, (2**63, 77))
        request = await leader.hears(ForwardRequest)
        assert (request.session, request.sequence, request.flags) == (2**63, 77, 3)
        leader.say(ForwardReply(request.request_id, ForwardStatus.REPLY, b""))


@scripted(batches=LOG)
async def test_a_query_that_is_lost_is_asked_anew_once(s: Script) -> None:
    async with forwarded(s, QUERY) as (leader, first, answers):
        s.member.links.disconnect(1)
        second = await leader.hears(ForwardRequest)
        assert second.request_id != first.request_id
        s.member.links.disconnect(1)
        await s.until(lambda: bool(answers), within=0.1)
    assert isinstance(answers[0], NoLeaderError)
    assert s.state is State.CLOSED
    assert len(leader.messages(ForwardRequest)) == 2


@scripted(batches=LOG)
async def test_a_query_does_not_go_through_all_leaders(s: Script) -> None:
    answers: list[bytes | RequestError] = []
    async with trio.open_nursery() as nursery:
        one = await s.follow(1, 1, *LEVEL, log_term=0)
        nursery.start_soon(ask, s, QUERY, answers)
        await one.hears(ForwardRequest)
        s.stop_peer(1)
        await s.enters(State.CANVASS)
        spans = LEVEL[0], TermSpan(1, 192, 192), TermSpan(2, 192, -1)
        two = await s.follow(2, 2, *spans, log_term=1)
        await two.hears(ForwardRequest)
        s.stop_peer(2)
        await s.enters(State.CANVASS)
        await s.until(lambda: bool(answers), within=0.1)
    assert isinstance(answers[0], NoLeaderError)


@scripted(batches=LOG)
async def test_a_command_that_is_lost_has_an_unknown_outcome(s: Script) -> None:
    async with forwarded(s, COMMAND) as (leader, _, answers):
        s.member.links.disconnect(1)
    assert isinstance(answers[0], UnknownOutcomeError)
    assert len(leader.messages(ForwardRequest)) == 1


@scripted(batches=LOG)
async def test_a_leader_that_goes_in_order_and_has_not_answered_leaves_an_unknown_outcome(
    s: Script,
) -> None:
    async with forwarded(s, COMMAND) as (leader, _, answers):
        leader.say(LeadershipCession(1, 192, 1))
        s.stop_peer(1)  # both are heard before the follower's role has ended
        await s.until(lambda: bool(answers), within=0.01)
    assert isinstance(answers[0], UnknownOutcomeError)
    assert s.member.status().forwarded == 0


@scripted(batches=LOG)
async def test_a_leader_that_lives_answers_though_we_failed_to_follow_it(s: Script) -> None:
    async with forwarded(s, COMMAND) as (leader, request, answers):
        leader.live(batch(1, 288, 384))
        await s.enters(State.INIT)
        leader.say(ForwardReply(request.request_id, ForwardStatus.REPLY, b"done"))
        await s.until(lambda: bool(answers), within=0.01)
    assert answers == [b"done"]


@scripted(batches=LOG)
async def test_what_it_has_not_answered_is_given_up_though_it_leads_again(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    early: list[bytes | RequestError] = []
    late: list[bytes | RequestError] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, s, COMMAND, early)
        await leader.hears(ForwardRequest)
        leader.live(batch(1, 288, 384))
        await s.enters(State.CANVASS)
        failed = trio.current_time()
        await s.follow(1, 1, *LEVEL, log_term=1)
        leader.forget()
        nursery.start_soon(ask, s, COMMAND, late)
        request = await leader.hears(ForwardRequest)
        while not early:
            assert trio.current_time() - failed < 10
            leader.commit(1)
            await trio.sleep(0.05)
        assert 3.9 < trio.current_time() - failed < 4.2
        assert late == []
        leader.say(ForwardReply(request.request_id, ForwardStatus.REPLY, b"done"))
    assert isinstance(early[0], UnknownOutcomeError)
    assert late == [b"done"]
    assert s.member.status().forwarded == 0


@scripted(batches=LOG)
async def test_who_leads_no_more_and_does_not_answer_is_not_waited_for_for_ever(s: Script) -> None:
    async with forwarded(s, COMMAND) as (leader, _, answers):
        leader.say(LeadershipCession(1, 192, 1))
        started = trio.current_time()
        await s.until(lambda: bool(answers), within=10)
    assert isinstance(answers[0], UnknownOutcomeError)
    assert 3.9 < trio.current_time() - started < 4.2
    assert s.member.status().forwarded == 0


@pytest.mark.parametrize("kind", [QUERY, COMMAND])
@scripted(batches=LOG)
async def test_nothing_waits_for_a_link_to_the_leader_that_does_not_come_back(
    s: Script, kind: RequestKind
) -> None:
    """The leader is heard all the time, over its own link."""
    async with forwarded(s, kind) as (leader, _, answers):
        s.network.refuse("h1")
        s.member.links.disconnect(1)
        started = trio.current_time()
        while not answers:
            assert trio.current_time() - started < 10
            leader.commit(1)
            await trio.sleep(0.05)
    assert s.state is State.CLOSED
    assert s.member.status().forwarded == 0
    passed = trio.current_time() - started
    if kind is COMMAND:
        assert isinstance(answers[0], UnknownOutcomeError)
        assert passed < 0.2
    else:  # it waits for the link like one that was never sent
        assert isinstance(answers[0], NoLeaderError)
        assert 3.9 < passed < 4.2


@scripted(batches=LOG)
async def test_what_nobody_waits_for_is_not_asked_anew(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    with trio.move_on_after(0.1):
        await s.member.query(b"x")
    assert s.member.status().forwarded == 1
    s.member.links.disconnect(1)
    await trio.sleep(0.3)
    assert len(leader.messages(ForwardRequest)) == 1
    assert s.member.status().forwarded == 0


@scripted(batches=LOG)
async def test_requests_for_which_the_link_has_no_room_are_parked(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    answers: list[bytes | RequestError] = []
    s.network.cut(f"h{ME}", "h1", both=False)
    async with trio.open_nursery() as nursery:
        for payload in [bytes(BIG)] * 5 + [b"small"]:
            nursery.start_soon(ask, s, COMMAND, answers, payload)
        await s.until(lambda: s.member.status().parked == 2, within=0.1)
        assert s.member.status().forwarded == 4
        s.network.heal(f"h{ME}", "h1")
        for _ in range(6):
            leader.commit(1)
            request = await leader.hears(ForwardRequest)
            leader.say(ForwardReply(request.request_id, 0, b"+"))
    assert answers == [b"+"] * 6


@scripted(batches=LOG)
async def test_what_is_forwarded_at_once_is_bounded_in_bytes(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    answers: list[bytes | RequestError] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router, "MAX_FORWARDED_BYTES", 1000)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, s, COMMAND, answers, bytes(400))
            await s.until(lambda: s.member.status().parked == 1, within=0.1)
            for _ in range(3):
                request = await leader.hears(ForwardRequest, within=0.2)
                leader.say(ForwardReply(request.request_id, 0, b"+"))
        assert answers == [b"+"] * 3
        for _ in range(2):  # what is lost does not count any more
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(ask, s, COMMAND, answers, bytes(400))
                for _ in range(2):
                    await leader.hears(ForwardRequest, within=0.2)
                s.member.links.disconnect(1)
            await s.until(lambda: s.member.links.connected(1), within=0.2)
        assert len(answers) == 7


@scripted()
async def test_what_is_parked_is_bounded_in_bytes_and_forgotten_with_its_client(s: Script) -> None:
    answers: list[bytes | RequestError] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router, "MAX_PARKED_BYTES", 1000)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for _ in range(200):
                    nursery.start_soon(ask, s, COMMAND, answers, bytes(5))
                await s.until(lambda: s.member.status().parked == 200, within=0.01)
                await ask(s, COMMAND, answers, b"x")
                nursery.cancel_scope.cancel()
            await s.until(lambda: s.member.status().parked == 0, within=0.06)
    assert [str(each) for each in answers] == [
        "no leader, and parked requests fill 1000 bytes already; nothing was done"
    ] * 3


@scripted(batches=LOG)
async def test_a_request_that_no_leader_would_take_is_refused_at_once(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    with pytest.raises(OversizedRequestError, match="33554433 bytes: expected at most 33554432"):
        await s.member.command(bytes((32 << 20) + 1))
    with pytest.raises(OversizedRequestError):
        await s.member.query(bytes(MAX_BATCH_BYTES + 1))
    assert leader.messages(ForwardRequest) == []


@scripted(batches=LOG)
async def test_a_leader_without_room_is_not_asked_by_all_again_and_again(s: Script) -> None:
    """Those that wait longest ask at each look, and two more with every reply."""
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    answers: list[bytes | RequestError] = []
    count = 3 * router.SENT_PER_LOOK
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, s, QUERY, answers, b"%d" % number)
            await trio.lowlevel.checkpoint()
        first = [await leader.hears(ForwardRequest) for _ in range(count)]
        for request in first:
            leader.say(ForwardReply(request.request_id, ForwardStatus.RETRY, b""))
        await s.until(lambda: len(leader.messages(ForwardRequest)) > count)  # one look
        again = leader.messages(ForwardRequest)[count:]
        longest = [request.payload for request in first[: router.SENT_PER_LOOK]]
        assert [request.payload for request in again] == longest
        leader.commit(1)
        leader.say(ForwardReply(again[0].request_id, ForwardStatus.REPLY, b"+"))
        await trio.sleep(0.01)
        more = leader.messages(ForwardRequest)[count + len(again) :]
        assert [request.payload for request in more] == [
            request.payload for request in first[len(again) : len(again) + 2]
        ]
        nursery.cancel_scope.cancel()
    assert answers == [b"+"]


async def test_those_that_read_much_through_one_follower_are_served_in_turn(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Twice as many as the link has room for, each of whom asks anew as soon as it has a reply."""
    slow = Setting(latency=0.0025)  # 50 MB/s
    async with open_world(tmp_path, Ledger, slow) as world:
        await world.start()
        leader = await world.settled()
        service = world.hosts[leader].service
        service.query = lambda *_: bytes(1 << 20)  # type: ignore[method-assign]
        follower = world.hosts[(leader + 1) % 3].running
        waited: list[float] = []

        async def read() -> None:
            for _ in range(5):
                asked = trio.current_time()
                await follower.query(b"")
                waited.append(trio.current_time() - asked)

        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(read)
        assert max(waited[64:-64]) < 1.2 * min(waited[64:-64])


async def test_many_large_replies_through_one_follower_all_arrive(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        seen = len(world.transitions)
        service = world.hosts[leader].service
        service.query = lambda payload, _: payload * (1 << 18)  # type: ignore[method-assign,assignment]
        follower = world.hosts[(leader + 1) % 3].running
        right: list[int] = []

        async def one(number: int) -> None:
            reply = await follower.query(b"%04d" % number)
            assert reply == b"%04d" % number * (1 << 18)
            right.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(80):
                nursery.start_soon(one, number)
        assert sorted(right) == list(range(80))
        assert (follower.status().parked, follower.status().forwarded) == (0, 0)
        assert world.transitions[seen:] == []
