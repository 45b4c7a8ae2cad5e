"""What other members forward to a leader: each is answered, whatever the links can carry."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.node import State
from quorate.node.requests.forwarding import SMALL_BYTES, ForwardStatus
from quorate.node.requests.request import RequestKind
from quorate.storage import decode_entries_untrusted
from quorate.transport import (
    MAX_BATCH_BYTES,
    AppendFlags,
    CommitPosition,
    ForwardReply,
    ForwardRequest,
    LogBatch,
    encode,
)
from tests.support.peers import ME
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.support.peers import Peer

BIG = 11 << 20  # three replies of this size are more than half a queue of a link

QUERY, COMMAND = RequestKind.QUERY, RequestKind.COMMAND


async def support(s: Script, peer: Peer, term: int) -> None:
    """Report all that the leader has, and echo what it asks, for ever."""
    while True:
        message = await peer.hears(CommitPosition)
        end = s.store.append_position
        peer.append_position(term, end, AppendFlags.READY, confirm=message.confirm_id)


@asynccontextmanager
async def leading(s: Script) -> AsyncGenerator[Peer, None]:
    """Make the member leader by the support of peer 2; peer 1 forwards requests to it."""
    term = await s.lead()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(support, s, s.peers[2], term)
        await s.until(lambda: s.member.status().commit_position > 0)
        yield s.peers[1]
        nursery.cancel_scope.cancel()


def reply_with(s: Script, size: int) -> list[bytes]:
    """Give the member's service large replies; return what it was asked, as that grows."""
    asked: list[bytes] = []

    def query(payload: bytes, _flags: int) -> bytes:
        asked.append(payload)
        return bytes(size)

    s.service.query = query  # type: ignore[method-assign,assignment]
    s.service.apply = lambda command: query(command.payload, 0)  # type: ignore[method-assign]
    return asked


async def replies(peer: Peer, count: int) -> dict[int, ForwardReply]:
    """Wait until a peer has so many replies, and give them by the numbers of their requests."""
    while len(peer.messages(ForwardReply)) < count:
        await peer.hears(ForwardReply)
    assert len(peer.messages(ForwardReply)) == count
    return {each.request_id: each for each in peer.messages(ForwardReply)}


@scripted()
async def test_a_query_is_not_worked_on_while_too_much_waits_for_its_sender(s: Script) -> None:
    async with leading(s) as peer:
        asked = reply_with(s, BIG)
        s.network.cut(f"h{ME}", "h1", both=False)
        for number in range(5):
            peer.say(ForwardRequest(number, QUERY, 0, b"%d" % number))
        await trio.sleep(1.0)
        assert asked == [b"0", b"1", b"2"]
        s.network.heal(f"h{ME}", "h1")
        answers = await replies(peer, 5)
        statuses = [answers[number].status for number in range(5)]
        assert statuses == [ForwardStatus.REPLY] * 3 + [ForwardStatus.RETRY] * 2
        peer.say(ForwardRequest(5, QUERY, 0, b"5"))
        assert (await replies(peer, 6))[5].payload == bytes(BIG)


@scripted()
async def test_the_stamp_of_a_forwarded_command_is_in_the_log(s: Script) -> None:
    async with leading(s) as peer:
        asked = reply_with(s, 0)
        peer.say(ForwardRequest(1, COMMAND, 5, b"x", 2**63, 77))
        await s.until(lambda: len(asked) == 1)
        batches = await s.member.store.read(0, end=s.member.store.append_position)
        entry = decode_entries_untrusted(batches[-1])[-1]
        assert (entry.payload, entry.flags) == (b"x", 5)
        assert (entry.session, entry.sequence) == (2**63, 77)


@scripted()
async def test_a_commands_reply_may_wait_longer_and_is_then_an_unknown_outcome(s: Script) -> None:
    async with leading(s) as peer:
        asked = reply_with(s, BIG)
        s.network.cut(f"h{ME}", "h1", both=False)
        for number in range(8):
            peer.say(ForwardRequest(number, COMMAND, 0, b"%d" % number))
        await s.until(lambda: len(asked) == 8)
        s.network.heal(f"h{ME}", "h1")
        answers = await replies(peer, 8)
        statuses = [answers[number].status for number in range(8)]
        assert statuses == [ForwardStatus.REPLY] * 6 + [ForwardStatus.UNKNOWN] * 2
        assert answers[7].payload.startswith(b"this write took effect, but its reply of 11534336 ")


@scripted()
async def test_a_small_reply_is_sent_however_much_bulk_waits(s: Script) -> None:
    async with leading(s) as peer:
        reply_with(s, BIG)
        s.network.cut(f"h{ME}", "h1", both=False)
        for number in range(8):
            peer.say(ForwardRequest(number, COMMAND, 0, b"%d" % number))
        await trio.sleep(1.0)
        reply_with(s, SMALL_BYTES)
        peer.say(ForwardRequest(8, COMMAND, 0, b"8"))
        await trio.sleep(1.0)
        s.network.heal(f"h{ME}", "h1")
        assert (await replies(peer, 9))[8] == ForwardReply(8, 0, bytes(SMALL_BYTES))


@scripted()
async def test_a_reply_that_no_frame_can_carry_is_an_error_and_the_leader_stays(s: Script) -> None:
    async with leading(s) as peer:
        asked = reply_with(s, MAX_BATCH_BYTES + 1)
        peer.say(ForwardRequest(1, QUERY, 0, b"q"), ForwardRequest(2, COMMAND, 0, b"c"))
        answers = await replies(peer, 2)
        assert sorted(asked) == [b"c", b"q"]
        words = b"a reply of 67108865 bytes is too large to be forwarded"
        assert answers[1] == ForwardReply(1, ForwardStatus.OVERSIZED, words)
        assert answers[2] == ForwardReply(2, ForwardStatus.UNKNOWN, words)
        assert s.state is State.CLOSED


@scripted()
async def test_a_request_of_an_unknown_kind_is_answered(s: Script) -> None:
    async with leading(s) as peer:
        peer.say(ForwardRequest(1, 77, 0, b""))
        answer = (await replies(peer, 1))[1]
        assert answer.status == ForwardStatus.REFUSED
        assert b"kind 77" in answer.payload


@scripted()
async def test_an_answer_that_does_not_fit_closes_the_link_so_that_its_sender_learns_of_it(
    s: Script,
) -> None:
    async with leading(s) as peer:
        links = s.member.links
        s.network.cut(f"h{ME}", "h1", both=False)
        assert links.send_frame(1, encode(LogBatch(0, 0, bytes(MAX_BATCH_BYTES))))
        for filler in (CommitPosition(0, 0, ME, 0), ForwardReply(0, 0, b"")):
            while links.send(1, filler):
                pass
        peer.say(ForwardRequest(1, COMMAND, 0, b"x"))
        await s.until(lambda: not links.connected(1), within=1.0)


@scripted()
async def test_a_leader_that_stops_in_order_sends_what_it_has_answered(s: Script) -> None:
    async with leading(s) as peer:
        asked = reply_with(s, BIG)
        s.network.cut(f"h{ME}", "h1", both=False)
        peer.say(ForwardRequest(1, QUERY, 0, b"q"))
        await s.until(lambda: bool(asked))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(s.member.close)
            await trio.sleep(0.5)
            s.network.heal(f"h{ME}", "h1")
        s.member.links.disconnect(1)  # as the end of the process does
        assert (await replies(peer, 1))[1].payload == bytes(BIG)


@scripted()
async def test_a_leader_does_not_put_off_its_end_for_a_member_that_does_not_read(s: Script) -> None:
    async with leading(s) as peer:
        asked = reply_with(s, BIG)
        s.network.cut(f"h{ME}", "h1", both=False)
        peer.say(ForwardRequest(1, QUERY, 0, b"q"))
        await s.until(lambda: bool(asked))
        with trio.fail_after(1.5):
            await s.member.close()


@scripted()
async def test_a_member_that_loses_its_seat_is_asked_to_retry(s: Script) -> None:
    async with leading(s) as peer:
        asked = reply_with(s, 0)
        state = s.member.state
        seats = tuple(seat for seat in state.membership.seats if seat.member_id != 1)
        state.membership = attrs.evolve(state.membership, version=1, seats=seats)
        peer.say(ForwardRequest(1, COMMAND, 0, b"x"))
        assert (await replies(peer, 1))[1].status == ForwardStatus.RETRY
        assert asked == []


@scripted()
async def test_a_request_that_comes_before_we_lead_waits_until_we_do(s: Script) -> None:
    # A follower is ready before its leader is. If it had to try again, its client would wait for a
    # heartbeat interval.
    position, term = s.store.append_position, await s.win()
    forwarder, other = s.peers[1], s.peers[2]
    forwarder.say(ForwardRequest(1, COMMAND, 0, b"early", 0, 0))
    await s.until(lambda: s.member.requests.parked == 1)
    other.append_position(term, position, AppendFlags.READY)
    await s.enters(State.CLOSED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(support, s, other, term)
        (reply,) = (await replies(forwarder, 1)).values()
        nursery.cancel_scope.cancel()
    assert reply.status == ForwardStatus.REPLY


@scripted()
async def test_a_request_that_comes_before_we_lead_goes_back_if_we_never_do(s: Script) -> None:
    await s.win()
    forwarder = s.peers[1]
    forwarder.say(ForwardRequest(1, COMMAND, 0, b"early", 0, 0))
    await s.until(lambda: s.member.requests.parked == 1)
    await s.enters(State.INIT)  # nobody has our log in time
    (reply,) = (await replies(forwarder, 1)).values()
    assert reply.status == ForwardStatus.RETRY
    assert s.member.requests.parked == 0
