"""Joined commands on their way through a member: parked, forwarded, in the log, read."""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from quorate.keyvalue.limits import AT_ONCE_BYTES
from quorate.keyvalue.protocol.payload import IN_PARTS, PART
from quorate.node import State
from quorate.node.leader.leadership import Leadership
from quorate.node.requests.forwarding import ForwardStatus
from quorate.node.state_machine.applier import SLICE_SECONDS
from quorate.storage import EntryKind, decode_entries_untrusted
from quorate.transport import AppendFlags, CommitPosition, ForwardReply, ForwardRequest, TermSpan
from tests.support.client_port_world import command
from tests.support.joined_world import Port, open_port
from tests.support.peers import log
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from tests.support.joined_world import Client
    from tests.support.peers import Peer

LOG = log((0, 96), (0, 192))
LEVEL = (TermSpan(0, 0, 192), TermSpan(1, 192, -1))  # of a leader that has what LOG has
OK, VALUE = b"+OK\r\n", b"$5\r\nvalue\r\n"
NO_LEADER = b"-CLUSTERDOWN no leader was found in time; nothing was done\r\n"
AT_ONCE = 64  # clients' reads that are answered at a stretch


def write(number: int) -> bytes:
    return command("SET", f"key {number}", "value")


def read(number: int) -> bytes:
    return command("GET", f"key {number}")


def connect(port: Port, count: int) -> list[Client]:
    return [port.connect() for _ in range(count)]


def ask(port: Port, clients: list[Client], call: Callable[[int], bytes]) -> None:
    """Let all of them say what is theirs, in one turn."""
    port.turn(*[(each, call(n)) for n, each in enumerate(clients)])


def answer(leader: Peer, request: ForwardRequest, reply: bytes) -> None:
    leader.say(ForwardReply(request.request_id, ForwardStatus.REPLY, reply))


# --- through a follower


@scripted(batches=LOG)
async def test_a_follower_forwards_what_is_joined_as_one(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    with open_port(s.member) as port:
        clients = connect(port, 3)
        ask(port, clients, write)
        request = await leader.hears(ForwardRequest)
        assert request.payload == write(0) + write(1) + write(2)
        assert request.flags == IN_PARTS
        answer(leader, request, OK * 3)
        await s.until(lambda: clients[0].idle)
        assert [each.take() for each in clients] == [OK] * 3
        assert s.member.status().forwarded == 0


@scripted(batches=LOG)
async def test_what_a_leader_did_in_part_goes_to_it_again_for_each_client(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    with open_port(s.member) as port:
        clients = connect(port, 3)
        ask(port, clients, lambda n: write(n) * 2)
        answer(leader, await leader.hears(ForwardRequest), PART + b"3\r\n" + OK * 3)
        rest = [await leader.hears(ForwardRequest) for _ in range(2)]
        assert [each.payload for each in rest] == [write(1), write(2) * 2]
        assert [each.flags for each in rest] == [0, IN_PARTS]
        for each in reversed(rest):
            answer(leader, each, OK * (1 + (each.flags > 0)))
        await s.until(lambda: all(each.idle for each in clients))
        assert [each.take() for each in clients] == [OK * 2] * 3


@pytest.mark.parametrize("left", [None, 1])
@scripted(batches=LOG)
async def test_what_is_sent_back_is_sent_again_for_those_that_are_left(
    s: Script, left: int | None
) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    with open_port(s.member) as port:
        clients = connect(port, 3)
        ask(port, clients, write)
        first = await leader.hears(ForwardRequest)
        if left is not None:
            clients[left].connection.close()
        leader.say(ForwardReply(first.request_id, ForwardStatus.RETRY, b""))
        await s.until(lambda: s.member.status().parked > 0)
        leader.commit(1)
        if left is None:
            again = await leader.hears(ForwardRequest)
            assert again.payload == first.payload
            answer(leader, again, OK * 3)
        else:
            for n in (0, 2):
                again = await leader.hears(ForwardRequest)
                assert again.payload == write(n)
                answer(leader, again, OK)
        await s.until(lambda: all(each.idle for each in clients))
        received = [each.take() for n, each in enumerate(clients) if n != left]
        assert received == [OK] * len(received)
        status = s.member.status()
        assert (status.parked, status.forwarded) == (0, 0)


@scripted(batches=LOG)
async def test_joined_writes_that_are_lost_have_an_unknown_outcome_for_each(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    with open_port(s.member) as port:
        clients = connect(port, 3)
        ask(port, clients, write)
        await leader.hears(ForwardRequest)
        clients[0].connection.close()
        s.member.links.disconnect(1)
        await s.until(lambda: clients[1].idle and clients[2].idle)
        assert clients[1].take().startswith(b"-UNKNOWN ")
        assert clients[2].take() == clients[1].received


@scripted(batches=LOG)
async def test_joined_reads_that_are_lost_are_asked_anew_once_for_those_that_are_left(
    s: Script,
) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    with open_port(s.member) as port:
        clients = connect(port, 3)
        ask(port, clients, read)
        await leader.hears(ForwardRequest)
        clients[0].connection.close()
        s.member.links.disconnect(1)
        again = [(await leader.hears(ForwardRequest)).payload for _ in range(2)]
        assert again == [read(1), read(2)]
        s.member.links.disconnect(1)
        await s.until(lambda: clients[1].idle and clients[2].idle)
        assert clients[1].take() == clients[2].take() == NO_LEADER


# --- without a leader


@scripted()
async def test_what_is_joined_is_parked_as_one_and_ends_for_each(s: Script) -> None:
    with open_port(s.member) as port:
        clients = connect(port, 4)
        port.turn((clients[0], write(0)), (clients[1], write(1)), (clients[2], read(2)))
        await trio.sleep(2)
        port.turn((clients[3], write(3)))
        assert s.member.status().parked == 3
        clients[1].connection.close()
        await trio.sleep(2.2)
        assert clients[0].take() == clients[2].take() == NO_LEADER
        assert s.member.status().parked == 1
        await trio.sleep(2)
        assert clients[3].take() == NO_LEADER
        assert all(each.idle for each in clients)


@scripted(batches=LOG)
async def test_of_what_is_parked_only_those_that_are_left_are_sent(s: Script) -> None:
    with open_port(s.member) as port:
        clients = connect(port, 3)
        ask(port, clients, write)
        clients[1].connection.close()
        leader = await s.follow(1, 1, *LEVEL, log_term=0)
        sent = [(await leader.hears(ForwardRequest)).payload for _ in range(2)]
        assert sent == [write(0), write(2)]


# --- on the leader


async def support(s: Script, peer: Peer, term: int) -> None:
    """Report all that the leader has, and echo what it asks, for ever."""
    while True:
        message = await peer.hears(CommitPosition, within=math.inf)
        end = s.store.append_position
        peer.append_position(term, end, AppendFlags.READY, confirm=message.confirm_id)


@asynccontextmanager
async def leading(s: Script) -> AsyncGenerator[Port]:
    """Make the member leader; give a port of it."""
    term = await s.lead()
    s.service.apply = lambda command: OK * command.payload.count(b"SET")  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(support, s, s.peers[2], term)
        await s.until(lambda: s.member.status().commit_position > 0)
        with open_port(s.member) as port:
            yield port
        nursery.cancel_scope.cancel()


def read_slowly(s: Script, then: Callable[[], None] = lambda: None) -> list[bytes]:
    """Let so many reads take two slices, and then something happen; return what was asked."""
    asked: list[bytes] = []
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)

    def query(payload: bytes, _flags: int) -> bytes:
        asked.append(payload)
        clock.jump(2 * SLICE_SECONDS / AT_ONCE)
        if len(asked) == AT_ONCE:
            then()
        return VALUE

    s.service.query = query  # type: ignore[method-assign,assignment]
    return asked


def commands_in_log(s: Script) -> list[bytes]:
    """The payloads of all commands that are in the log."""
    entries = (entry for raw in s.store.scan(0) for entry in decode_entries_untrusted(raw))
    return [entry.payload for entry in entries if entry.kind is EntryKind.COMMAND]


@scripted()
async def test_what_is_joined_is_one_entry_of_the_log(s: Script) -> None:
    async with leading(s) as port:
        clients = connect(port, 3)
        ask(port, clients, write)
        await s.until(lambda: all(each.idle for each in clients))
        assert commands_in_log(s) == [write(0) + write(1) + write(2)]
        assert [each.take() for each in clients] == [OK] * 3


@scripted()
async def test_who_has_gone_before_there_was_room_is_not_in_the_log(s: Script) -> None:
    async with leading(s) as port:
        clients = connect(port, 12)
        turns = [clients[n : n + 3] for n in range(0, 12, 3)]
        for n, each in enumerate(turns):  # one more than may be in flight
            port.turn(*[(one, write(3 * n + m)) for m, one in enumerate(each)])
        clients[10].connection.close()
        await s.until(lambda: all(each.idle for each in clients))
        assert commands_in_log(s)[3:] == [write(9), write(11)]
        assert [each.take() for n, each in enumerate(clients) if n != 10] == [OK] * 11


@scripted()
async def test_reads_of_many_are_answered_some_at_a_time(s: Script) -> None:
    """Between them others have a turn. Who goes meanwhile is not read for."""
    async with leading(s) as port:
        asked = read_slowly(s)
        clients = connect(port, 3 * AT_ONCE)
        ask(port, clients, read)
        await s.until(lambda: bool(asked))
        assert len(asked) == AT_ONCE
        assert sum(each.idle for each in clients) == AT_ONCE
        clients[-1].connection.close()
        await s.until(lambda: all(each.idle for each in clients))
        assert asked == [read(n) for n in range(3 * AT_ONCE - 1)]
        assert all(each.take() == VALUE for each in clients[:-1])


@pytest.mark.parametrize("left", [2, 3])
@scripted()
async def test_reads_that_a_deposed_leader_had_answered_are_not_asked_anew(
    s: Script, left: int
) -> None:
    async with leading(s) as port:
        clients = connect(port, AT_ONCE + 3)

        def depose() -> None:
            if left < 3:
                clients[AT_ONCE].connection.close()
            s.member.state.role.end("deposed by the test")

        asked = read_slowly(s, depose)
        ask(port, clients, read)
        await s.until(lambda: s.member.status().parked > 0)
        assert s.state is not State.CLOSED
        assert s.member.status().parked == left
        await trio.sleep(5)
        assert len(asked) == AT_ONCE
        assert [each.take() for each in clients[:AT_ONCE]] == [VALUE] * AT_ONCE
        assert [each.take() for each in clients[-left:]] == [NO_LEADER] * left


@scripted()
async def test_large_values_are_read_for_fewer_clients_at_a_time(s: Script) -> None:
    async with leading(s) as port:
        value = b"$50000\r\n%b\r\n" % bytes(50_000)
        assert len(value) <= AT_ONCE_BYTES < 2 * len(value)
        s.service.query = lambda payload, flags: value  # type: ignore[method-assign] # noqa: ARG005
        clients = connect(port, 5)
        ask(port, clients, read)
        role = s.member.state.role
        assert isinstance(role, Leadership)
        (request,) = role.reads.rounds[0].reads
        assert not request.answer(s.service.query)
        assert [len(each.take()) for each in clients] == [len(value)] * 2 + [0] * 3
        assert len(request.remaining()) == 3
