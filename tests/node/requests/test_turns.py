"""Requests that come in one turn of the event loop are one batch of the log, formed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import OversizedRequestError, RequestError
from quorate.node import State
from quorate.node.leader.leadership import Leadership
from quorate.node.requests.forwarding import ForwardStatus
from quorate.node.requests.request import Request, RequestKind
from quorate.simulation import Ledger, Setting, open_world
from quorate.simulation.world import TIMEOUTS
from quorate.storage import EntryKind, decode_entries_untrusted
from quorate.transport import AppendFlags, ForwardReply, ForwardRequest, TermSpan
from tests.support.peers import log
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node import Member
    from quorate.simulation import World
    from quorate.storage import Store

LOG = log((0, 96), (0, 192))
LEVEL = (TermSpan(0, 0, 192), TermSpan(1, 192, -1))  # of a leader that has what LOG has
TOO_LARGE = bytes((32 << 20) + 1)


@attrs.define(eq=False)
class Turn:
    """Requests, and what became of each."""

    results: dict[bytes, bytes | RequestError] = attrs.field(
        factory=dict["bytes", "bytes | RequestError"]
    )

    def asks(self, kind: RequestKind, *payloads: bytes) -> list[Request]:
        return [self._ask(kind, payload) for payload in payloads]

    def _ask(self, kind: RequestKind, payload: bytes) -> Request:
        def done(result: bytes | RequestError) -> None:
            assert payload not in self.results
            self.results[payload] = result

        return Request(kind, payload, 0, done)

    def commands(self, *payloads: bytes) -> list[Request]:
        return self.asks(RequestKind.COMMAND, *payloads)

    def queries(self, *payloads: bytes) -> list[Request]:
        return self.asks(RequestKind.QUERY, *payloads)


def batches(store: Store, start: int = 0) -> list[list[bytes]]:
    """The payloads of the commands in each durable batch, from a position on."""
    found = [decode_entries_untrusted(raw) for raw in store.scan(start)]
    return [
        [entry.payload for entry in entries]
        for entries in found
        if any(entry.kind is EntryKind.COMMAND for entry in entries)
    ]


def numbered(count: int) -> Iterable[bytes]:
    return (b"%d" % n for n in range(count))


async def leader_of(world: World[Ledger]) -> tuple[Member, Leadership]:
    """The member that leads, and how, once it has committed something of its term."""
    await world.start()
    leader = await world.settled()
    assert await world.attempt(leader, b"first")
    member = world.hosts[leader].running
    assert isinstance(member.state.role, Leadership)
    return member, member.state.role


async def test_a_leader_makes_one_batch_of_a_turn_there_and_then(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, Ledger, Setting(members=3)) as world:
        member, role = await leader_of(world)
        store = member.store
        start, turn = role.publication_position, Turn()
        member.submit_all(
            [
                *turn.commands(b"0", b"1", TOO_LARGE, b"2"),
                *turn.queries(b"asked"),
                *turn.commands(b"3"),
            ]
        )
        # nothing else has run since
        assert isinstance(turn.results.pop(TOO_LARGE), OversizedRequestError)
        assert role.publication_position > start
        assert not role.replication.window.waiting
        assert not role.reads.waiting
        await world.until(lambda: len(turn.results) == 5)
        assert batches(store, start) == [[b"0", b"1", b"2", b"3"]]
        assert [turn.results[payload] for payload in numbered(4)] == [b"2", b"3", b"4", b"5"]
        assert turn.results[b"asked"] in {b"1", b"5"}


async def test_a_leader_takes_what_it_can_and_the_rest_when_there_is_room(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, Ledger, Setting(members=3)) as world:
        member, role = await leader_of(world)
        most = member.state.config.limits.batches_in_flight
        start, turn = role.publication_position, Turn()
        for payload in numbered(most + 3):
            member.submit_all(turn.commands(payload))
        assert role.replication.window.waiting
        await world.until(lambda: len(turn.results) == most + 3)
        late = [b"%d" % n for n in range(most, most + 3)]
        alone = [[payload] for payload in numbered(most)]
        assert batches(member.store, start) == [*alone, late]


async def test_a_request_that_was_withdrawn_is_not_in_the_batch(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, Ledger, Setting(members=3)) as world:
        member, _ = await leader_of(world)
        start, turn = member.store.append_position, Turn()
        requests = turn.commands(*numbered(3))
        requests[1].cancel()
        member.submit_all(requests)
        await world.until(lambda: len(turn.results) == 2)
        assert batches(member.store, start) == [[b"0", b"2"]]
        member.submit_all([])
        await trio.sleep(1)
        assert batches(member.store, start) == [[b"0", b"2"]]


@scripted(batches=LOG)
async def test_a_follower_forwards_all_of_a_turn(s: Script) -> None:
    leader = await s.follow(1, 1, *LEVEL, log_term=0)
    turn = Turn()
    s.member.submit_all([*turn.commands(b"0", TOO_LARGE, b"1"), *turn.queries(b"asked")])
    assert isinstance(turn.results.pop(TOO_LARGE), OversizedRequestError)
    for payload in (b"0", b"1", b"asked"):
        request = await leader.hears(ForwardRequest)
        assert request.payload == payload
        leader.say(ForwardReply(request.request_id, ForwardStatus.REPLY, b"done " + payload))
    await s.until(lambda: len(turn.results) == 3)
    assert all(result == b"done " + payload for payload, result in turn.results.items())
    assert s.member.status().forwarded == 0


@scripted()
async def test_without_a_leader_all_of_a_turn_wait(s: Script) -> None:
    turn = Turn()
    s.member.submit_all([*turn.commands(b"0", TOO_LARGE, b"1"), *turn.queries(b"asked")])
    assert [*turn.results] == [TOO_LARGE]
    assert s.member.status().parked == 3
    await trio.sleep(4.2)
    assert {*turn.results} == {b"0", b"1", b"asked", TOO_LARGE}
    assert all(isinstance(result, RequestError) for result in turn.results.values())


@scripted()
async def test_a_turn_that_comes_before_the_election_is_closed_is_in_the_log_behind_it(
    s: Script,
) -> None:
    term = await s.win()
    await s.enters(State.LEADER_READY)
    turn = Turn()
    s.member.submit_all(turn.commands(b"0", b"1"))
    assert batches(s.store) == []
    for peer in s.peers.values():
        peer.append_position(term, 0, AppendFlags.READY)
    await s.enters(State.CLOSED)
    await s.until(lambda: batches(s.store) == [[b"0", b"1"]])


@pytest.mark.parametrize(("members", "lease"), [(1, 0.0), (3, 0.5), (3, 0.0)])
async def test_a_client_that_asks_upon_each_answer_is_answered_again_and_again(
    tmp_path: Path, autojump_clock: MockClock, members: int, lease: float
) -> None:
    """A long pipeline of large replies is read in parts, each of which is a request."""
    timeouts = attrs.evolve(TIMEOUTS, leader_lease=lease)
    setting = Setting(members=members, timeouts=timeouts)
    async with open_world(tmp_path, Ledger, setting) as world:
        member, _ = await leader_of(world)
        await trio.sleep(timeouts.leader_heartbeat_interval)
        left, all_done = 20, trio.Event()

        def ask() -> None:
            member.submit(Request(RequestKind.QUERY, b"", 0, done))

        def done(result: bytes | RequestError) -> None:
            nonlocal left
            assert isinstance(result, bytes)
            left -= 1
            if left:
                ask()
            else:
                all_done.set()

        ask()
        began = trio.current_time()
        with trio.fail_after(10):
            await all_done.wait()
        took = trio.current_time() - began
        assert took < (0.05 if lease or members == 1 else 1)
