"""Leases: reads without a round, and followers that help nobody else to lead meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.node import State
from quorate.node.leader.leadership import Leadership
from quorate.node.leader.lease import HELD_SHARE
from quorate.node.protocol.promise import MAX_LEASE_MS
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.storage import NodeState
from quorate.transport import (
    AppendPosition,
    CommitPosition,
    RequestVote,
    Scout,
    ScoutReply,
    TermSpan,
    TimeoutNow,
    Vote,
    VoteReason,
)
from tests.support.peers import ME
from tests.support.script import Script, scripted

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World
    from tests.support.peers import Peer

LEASE = 2.0  # seconds; the followers of these scripts miss their leader after half a second
LEASE_MS = 2000
LEASED = attrs.evolve(TIMEOUTS, leader_lease=TIMEOUTS.leader_heartbeat_timeout)


async def start(world: World[Ledger]) -> int:
    """Bring a cluster up whose leaders have leases; give the leader, when it has one."""
    for host in world.hosts.values():
        host.config = attrs.evolve(host.config, timeouts=LEASED)
    await world.start()
    leader = await world.settled()
    assert await world.command(leader, b"x") == b"1"
    await trio.sleep(2 * LEASED.leader_heartbeat_interval)
    return leader


async def answers_at_once(world: World[Ledger], leader: int) -> None:
    """Ask a leader, which must not ask anybody."""
    began = trio.current_time()
    assert await world.hosts[leader].running.query(b"") == b"1"
    assert trio.current_time() == began


async def follow(s: Script, lease_ms: int = LEASE_MS) -> Peer:
    """Follow a leader with a lease, and promise."""
    leader = s.peers[1]
    leader.say(attrs.evolve(leader.new_term(0), lease_ms=lease_ms))
    await s.enters(State.FOLLOWER_LOG_AWAIT)
    leader.join(0, s.store.append_position)
    await s.enters(State.CLOSED)
    leader.commit(0, confirm=1)
    await leader.hears(AppendPosition, lambda m: m.confirm_id == 1)
    return leader


def lose(s: Script) -> None:
    """Lose the leader, whose port refuses from now on: nobody waits for it."""
    s.network.refuse("h1")
    s.network.break_links("h0", "h1")


async def would_vote(s: Script, nonce: int) -> VoteReason:
    """Ask the member, as another one, whether it would vote for that."""
    s.peers[2].say(Scout(1, 0, 0, 2, nonce))
    return (await s.peers[2].hears(ScoutReply, lambda m: m.nonce == nonce)).reason


# --- the leader -----------------------------------------------------------------------------------


async def test_a_read_under_a_lease_asks_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path) as world:
        leader = await start(world)
        await answers_at_once(world, leader)


async def test_it_lasts_nine_tenths_of_what_was_promised_and_then_reads_wait(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        leader = await start(world)
        held, began = HELD_SHARE * LEASED.leader_lease, trio.current_time()
        world.isolate(leader)
        await trio.sleep(held - 2 * LEASED.leader_heartbeat_interval)
        assert await world.hosts[leader].running.query(b"") == b"1"
        left = world.hosts[leader].running.status().lease_s
        assert 0 < left <= 2 * LEASED.leader_heartbeat_interval
        assert world.hosts[world.others(leader)[0]].running.status().lease_s == 0
        await trio.sleep_until(began + held)
        assert world.hosts[leader].running.status().lease_s == 0
        with trio.move_on_after(0.02) as scope:
            await world.hosts[leader].running.query(b"")
        assert scope.cancelled_caught
        assert world.leaders() == [leader]


async def test_one_follower_is_enough_for_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path) as world:
        leader = await start(world)
        await world.kill(world.others(leader)[0])
        await trio.sleep(3 * LEASED.leader_lease)
        await answers_at_once(world, leader)


async def test_a_leader_that_dies_is_replaced_when_its_lease_is_over(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        leader = await start(world)
        await world.kill(leader)
        died = trio.current_time()
        await world.leader()
        interval = LEASED.leader_heartbeat_interval
        assert LEASED.leader_lease - interval < trio.current_time() - died < 2 * LEASED.leader_lease


async def test_one_that_closes_in_order_is_replaced_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        leader = await start(world)
        await world.stop(leader)
        stopped = trio.current_time()
        await world.leader()
        assert trio.current_time() - stopped < LEASED.leader_lease / 2


@pytest.mark.parametrize("members", [3, 5])
async def test_it_is_handed_over_at_once(
    tmp_path: Path, autojump_clock: MockClock, members: int
) -> None:
    async with open_ledgers(tmp_path, members) as world:
        leader = await start(world)
        target = world.others(leader)[-1]
        began = trio.current_time()
        await world.hosts[leader].running.control(f"transfer {target}")
        assert await world.leader() == target
        assert trio.current_time() - began < LEASED.leader_lease / 2
        assert await world.command(target, b"y") == b"2"


async def test_a_leader_whose_disk_stands_still_hands_it_over_at_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """It says that it leads no more although it has to wait for its disk."""
    async with open_ledgers(tmp_path, 5) as world:
        leader = await start(world)
        role = world.hosts[leader].running.state.role
        assert isinstance(role, Leadership)
        target = role.handover.best_successor()
        world.hosts[leader].disk.stall(10.0)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(role.handover.to_best, drain=False))
            await world.until(lambda: world.leaders() == [target])
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began < LEASED.leader_lease / 2


async def test_who_comes_back_late_and_is_bound_longer_holds_up_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 5) as world:
        leader = await start(world)
        late = world.others(leader)[0]
        await world.kill(leader, late)
        died = trio.current_time()
        await trio.sleep(0.9 * LEASED.leader_lease)
        await world.start(late)
        await world.leader()
        assert trio.current_time() - died < LEASED.leader_lease + 2 * LEASED.election_timeout


# --- the followers --------------------------------------------------------------------------------


@scripted()
async def test_who_has_promised_votes_for_nobody_until_that_is_over(s: Script) -> None:
    await follow(s)
    promised = trio.current_time()
    assert s.store.node_state == NodeState(0, -1, LEASE_MS)
    lose(s)
    await s.enters(State.CANVASS)
    await trio.sleep_until(promised + LEASE - 0.1)
    assert await would_vote(s, 1) is VoteReason.PROMISED
    s.peers[2].say(RequestVote(0, 0, 1, 2))
    assert (await s.peers[2].hears(Vote)).reason is VoteReason.PROMISED
    await trio.sleep_until(promised + LEASE)
    assert await would_vote(s, 2) is VoteReason.GRANTED


@scripted()
async def test_nor_does_it_stand(s: Script) -> None:
    await follow(s)
    promised = trio.current_time()
    lose(s)
    s.peers[2].canvass(-1, 0)
    await s.enters(State.NOMINATE, within=2 * LEASE)
    assert trio.current_time() - promised >= LEASE - s.config.timeouts.canvass_interval


@scripted(promised=NodeState(0, -1, LEASE_MS))
async def test_a_promise_outlives_a_restart(s: Script) -> None:
    """Whatever it was that had been promised, it is over after so long."""
    began = trio.current_time()
    assert await would_vote(s, 1) is VoteReason.PROMISED
    await trio.sleep_until(began + LEASE)
    assert await would_vote(s, 2) is VoteReason.GRANTED


@scripted()
async def test_a_leader_that_gives_up_is_owed_nothing(s: Script) -> None:
    leader = await follow(s)
    leader.canvass(-1, 0)
    await s.enters(State.CANVASS)
    assert await would_vote(s, 1) is VoteReason.GRANTED


@scripted()
async def test_whom_the_leader_has_asked_has_to_wait_until_the_leader_gives_up(s: Script) -> None:
    """Until then it may have a lease, and the one that it has asked come late."""
    leader, asked = await follow(s), RequestVote(0, 0, 1, 2, force=True)
    s.peers[2].say(asked)
    assert (await s.peers[2].hears(Vote)).reason is VoteReason.PROMISED
    assert s.state is State.CLOSED
    s.peers[2].forget()
    leader.canvass(-1, 0)
    await s.enters(State.CANVASS)
    s.peers[2].say(asked)
    assert (await s.peers[2].hears(Vote)).reason is VoteReason.GRANTED
    assert s.store.node_state == NodeState(1, 2, LEASE_MS)


@scripted()
async def test_so_it_has_where_the_leader_was_lost_but_not_to_ask_whether_it_may_stand(
    s: Script,
) -> None:
    await follow(s)
    lose(s)
    await s.enters(State.CANVASS)
    s.peers[2].say(Scout(1, 0, 0, 2, 1, force=True))
    assert (await s.peers[2].hears(ScoutReply)).reason is VoteReason.GRANTED
    s.peers[2].say(RequestVote(0, 0, 1, 2, force=True))
    assert (await s.peers[2].hears(Vote)).reason is VoteReason.PROMISED


@scripted()
async def test_what_ends_its_role_ends_its_promises_too(s: Script) -> None:
    """What comes behind it in the same turn is not promised: that would be released at once."""
    leader = await follow(s)
    s.member.on_message(1, TimeoutNow(0, 1, ME))
    s.member.on_message(1, CommitPosition(0, 0, 1, 2))
    await s.enters(State.CANDIDATE_BALLOT)
    await trio.sleep(0.1)
    assert leader.messages(AppendPosition)[-1].confirm_id == 1
    assert not s.member.voter.lease_promise.binds


@scripted()
async def test_who_may_not_vote_yet_vetoes_nothing(s: Script) -> None:
    term = await s.stand()
    reason = VoteReason.PROMISED
    s.peers[1].say(Vote(term, -1, 0, ME, 1, False, term - 1, reason))
    s.peers[2].vote(term)
    await s.enters(State.LEADER_LOG_REPLICATION)


@pytest.mark.parametrize(("later", "kept"), [(0.0, LEASE_MS), (LEASE, 100)])
@scripted()
async def test_what_may_have_been_promised_is_forgotten_when_it_is_over(
    s: Script, later: float, kept: int
) -> None:
    await follow(s)
    await trio.sleep(later)
    message = s.peers[2].new_term(1, 0, TermSpan(0, 0, 0), TermSpan(1, 0, -1))
    s.peers[2].say(attrs.evolve(message, lease_ms=100))
    await s.enters(State.FOLLOWER_LOG_AWAIT)
    s.peers[2].join(1, s.store.append_position)
    await s.enters(State.CLOSED)
    assert s.store.node_state == NodeState(1, -1, kept)


@pytest.mark.parametrize("lease_ms", [-1, MAX_LEASE_MS + 1])
@scripted()
async def test_a_leader_that_asks_for_an_absurd_one_is_not_followed(
    s: Script, lease_ms: int
) -> None:
    s.peers[1].say(attrs.evolve(s.peers[1].new_term(0), lease_ms=lease_ms))
    await trio.sleep(0.1)
    assert s.state is State.CANVASS
    assert s.store.node_state == NodeState()
