"""Schedules for mutants that storms do not find in time: each plays the events that do harm."""

from __future__ import annotations

import contextlib
import shutil
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.errors import RequestError
from quorate.node import State
from quorate.simulation.messages import Held
from quorate.simulation.world import TIMEOUTS
from quorate.transport import AppendPosition, CommitPosition, RequestVote, Scout, TimeoutNow
from quorate.transport.fields import MAX_TERM
from quorate.transport.testing.direction import Pace
from tests.simulation.hazards.schedules import PATIENT, begin, rest
from tests.simulation.members import counts

if TYPE_CHECKING:
    from quorate.simulation import Ledger, World
    from quorate.transport import Message

LEASE = 6.0  # seconds
LEASED = attrs.evolve(PATIENT, leader_lease=LEASE)
PATIENCE = 10.0  # seconds within which a member that can become leader does


async def a_leader_wakes_up(stage: World[Ledger]) -> None:
    """A leader is paused while another one is elected; its first event afterwards is a query.

    This is rare in storms. A leader steps down once it receives news of another leader, or notices
    its isolation, so the query must be the first event.

    Raises:
        AssertionError: the answer misses acknowledged commands.
    """
    old = await begin(stage)
    stage.pause(old)
    stage.isolate(old)
    await stage.until(lambda: any(i != old for i in stage.leaders()))
    (new,) = (i for i in stage.leaders() if i != old)
    assert await stage.attempt(new, b"x")
    stage.resume(old)
    await _ask(stage, old)
    stage.mend()
    await rest(stage)


async def a_witness_has_the_longest_log(stage: World[Ledger]) -> None:
    """A witness is elected, and a client asks it while it leads.

    Raises:
        AssertionError: the answer misses acknowledged commands.
    """
    old = await begin(stage)
    (behind,) = stage.others(old)
    order = "member add host=w member_port=7000 client_port=6000 role=witness"
    await stage.hosts[old].running.control(order)
    witness = stage.create(2).member_id
    await stage.start(witness)
    await stage.until(lambda: len(stage.membership.voters) == len(stage.hosts))
    await stage.kill(behind)
    assert await stage.attempt(old, b"x")
    await stage.kill(old)
    await stage.start(behind)

    def leads() -> bool:
        status = stage.hosts[witness].running.status()
        return (status.role, status.state) == ("leader", "CLOSED")

    await stage.until(leads)
    await _ask(stage, witness)
    await stage.start(old)
    await rest(stage)


async def _ask(stage: World[Ledger], member: int) -> None:
    """Send a query to a member, which may refuse it.

    Raises:
        AssertionError: the answer misses acknowledged commands.
    """
    with contextlib.suppress(RequestError):
        reply = await stage.hosts[member].running.query(b"")
        assert int(reply) >= len(stage.acked), "StaleRead: a reply misses acknowledged commands"


async def a_clock_is_years_ahead(stage: World[Ledger]) -> None:
    """The leader's clock is years ahead for a moment, and a write arrives at that time."""
    clock = stage.hosts[await begin(stage)].clock
    clock.leap(10 * 365 * 86_400_000)
    await stage.attempt(await stage.leader(), b"x")
    clock.come_back()
    await rest(stage)


async def the_longer_log_is_silent(stage: World[Ledger]) -> None:
    """A member without an acknowledged entry is a candidate; the member with the entry only votes.

    This is rare in storms, since of two possible candidates the one with the better log is first.
    """
    leader = await begin(stage)
    short, long = stage.others(leader)
    await stage.kill(short)
    assert await stage.attempt(leader, b"x")
    await stage.kill(leader)
    stage.messages.drop(lambda s, _r, m: s == long and isinstance(m, Scout | RequestVote))
    await stage.start(short)
    await trio.sleep(5.0)
    await stage.kill(long)
    await stage.start(leader)
    await rest(stage)


async def a_request_for_a_vote_comes_late(stage: World[Ledger]) -> None:
    """There are two candidates, and the first one's vote request is delayed until a newer term.

    This is rare in storms: the candidate has given up by then, so it does not win by the vote.
    """
    old, held = await begin(stage), stage.messages.held
    await stage.kill(old)

    def asks_first(sender: int, _receiver: int, message: Message) -> bool:
        return isinstance(message, RequestVote) and (not held or sender == held[0].sender)

    stop = stage.messages.hold(asks_first)
    await stage.until(lambda: bool(held))
    late, voter = held[0], held[0].receiver
    await stage.start(old)
    await stage.until(lambda: _promised(stage, voter) > _asked_in(late))
    stop()
    stage.isolate(voter)
    await stage.reached(voter, State.CANVASS)
    stage.messages.deliver(late)
    await trio.sleep(1.0)
    stage.mend()
    await rest(stage)


async def the_winners_disk_hangs(stage: World[Ledger]) -> None:
    """A candidate's disk hangs after its own vote became durable; the candidate wins.

    This is rare in storms, since it is one write of each election.

    Raises:
        AssertionError: no other member replaces the winner.
    """
    old = await begin(stage)
    hanging: list[int] = []

    def look(i: int) -> None:
        host = stage.hosts[i]
        if not hanging and i != old and host.member and host.state is State.CANDIDATE_BALLOT:
            hanging.append(i)
            host.disk.stall(10 * PATIENCE)

    stage.after_every_event(look)
    await stage.kill(old)
    await stage.start(old)
    await trio.sleep(PATIENCE)
    assert hanging
    assert stage.leaders() not in ([], hanging), "Liveness: nobody takes the winner's place"
    stage.hosts[hanging[0]].disk.mend()
    await rest(stage)


async def a_founder_comes_late(stage: World[Ledger]) -> None:
    """Two of three new members wait for the third one.

    In a storm, all members are present when the cluster is founded.
    """
    for host in stage.hosts.values():
        shutil.rmtree(host.config.directory)
    first, *others = stage.hosts
    await stage.start(*others)
    await trio.sleep(5.0)
    await stage.start(first)
    await rest(stage)


async def a_term_is_forged(stage: World[Ledger]) -> None:
    """A forged message in the name of a member announces the highest possible term to all members.

    A storm does not forge messages.
    """
    await begin(stage)
    for receiver in stage.hosts:
        sender = stage.others(receiver)[0]
        forged = CommitPosition(MAX_TERM, 0, sender, 0)
        stage.messages.deliver(Held(sender, receiver, forged))
    await trio.sleep(1.0)
    await rest(stage)


def _promised(stage: World[Ledger], member: int) -> int:
    return stage.hosts[member].running.store.node_state.candidate_term


def _asked_in(held: Held) -> int:
    assert isinstance(held.message, RequestVote)
    return held.message.candidate_term_id


async def two_stand_in_one_term(stage: World[Ledger]) -> None:
    """A candidate's requests are lost, and it is cut off; the other two elect in the same term.

    This is rare in storms, since a quorum has just granted the candidate its pre-vote.
    """
    old = await begin(stage)
    others, term = stage.others(old), _promised(stage, old)
    await stage.kill(old)
    stop = stage.messages.drop(lambda _s, _r, m: isinstance(m, RequestVote))
    await stage.until(lambda: any(_promised(stage, i) > term for i in others))
    stage.isolate(max(others, key=lambda i: _promised(stage, i)))
    stop()
    await stage.start(old)
    await trio.sleep(PATIENCE)
    stage.mend()
    await rest(stage)


async def a_leader_is_alone(stage: World[Ledger]) -> None:
    """A leader that reaches no other member must step down, and later follow the new leader.

    Raises:
        AssertionError: it continues to lead.
    """
    leader = await begin(stage)
    stage.isolate(leader)
    await trio.sleep(PATIENCE)
    assert leader not in stage.leaders(), "AloneForEver: it leads without a quorum"
    stage.mend()
    await rest(stage)


async def a_wiped_member_meets_the_one_that_lags(stage: World[Ledger]) -> None:
    """Two members have a command; one of them loses its disk while the other one is away.

    The third member never had the command, and the wiped one has lost it. If these two were a
    quorum, the command would be lost. Once the member with the command is back, all have it.
    """
    leader = await begin(stage)
    lagging, wiped = stage.others(leader)
    await stage.kill(lagging)
    assert await stage.attempt(leader, b"x")
    await stage.kill(leader)
    await stage.wipe(wiped)
    await stage.start(lagging, wiped)
    await trio.sleep(PATIENCE)
    await stage.start(leader)
    await rest(stage)
    await stage.until(lambda: counts(stage, wiped))
    await stage.kill(leader)  # the remaining two are a quorum now
    await rest(stage)


async def only_a_wiped_member_hears_the_leader(stage: World[Ledger]) -> None:
    """The leader reaches only a follower that has lost its disk, so nothing may be committed."""
    leader = await begin(stage)
    away, wiped = stage.others(leader)
    await stage.wipe(wiped)
    stage.isolate(away)
    await stage.start(wiped)
    await stage.attempt(leader, b"x", within=PATIENCE)
    stage.mend()
    await rest(stage)
    await stage.until(lambda: stage.hosts[wiped].running.state.votes)


async def a_write_outlives_its_leader(stage: World[Ledger]) -> None:
    """A leader does not learn that a write is recorded, and gives up; the next one commits it.

    This is rare in storms: the write must be forwarded, and its client must get an answer.

    Raises:
        AssertionError: the client learned that the write was refused, or it was applied twice.
    """
    old = await begin(stage)
    hear = stage.messages.drop(lambda _s, r, m: r == old and isinstance(m, AppendPosition))
    async with trio.open_nursery() as nursery:
        at = stage.others(old)[0]
        nursery.start_soon(partial(stage.attempt, at, b"x", within=PATIENCE))
        await stage.until(lambda: any(i != old for i in stage.leaders()))
        hear()
    await rest(stage)
    (done,) = {host.service.payloads.count(b"x") for host in stage.hosts.values()}
    assert done == 1, f"Twice: it was done {done} times"
    assert b"x" not in stage.refused, "ToldWrong: its client learned that it was refused"


async def a_leader_with_a_lease_is_alone(stage: World[Ledger]) -> None:
    """A leader with a lease has a long timeout, and its followers have short ones.

    This is rare in storms: an isolated leader steps down at about the time of the next election.
    """
    old = await _begin_with_a_lease(stage)
    _lose(stage, old)
    await _another_leads(stage, old)


async def the_followers_of_a_lease_restart(stage: World[Ledger]) -> None:
    """The followers restart, and find no leader."""
    old = await _begin_with_a_lease(stage)
    _lose(stage, old)
    others = stage.others(old)
    await stage.kill(*others)
    for other in others:
        host = stage.hosts[other]
        host.config = attrs.evolve(host.config, timeouts=TIMEOUTS)
    await stage.start(*others)
    await _another_leads(stage, old)


async def echoes_of_a_lease_are_slow(stage: World[Ledger]) -> None:
    """The leader receives promises late, when the followers no longer receive its heartbeats."""
    old, late = await _begin_with_a_lease(stage), 2.0
    for other in stage.others(old):
        stage.network.set_pace(f"h{other}", f"h{old}", Pace(late, 0.0), both=False)
    await trio.sleep(2 * late)
    for other in stage.others(old):
        stage.network.cut(f"h{old}", f"h{other}", both=False)
    await trio.sleep(late)
    _lose(stage, old)
    for other in stage.others(old):
        stage.network.set_pace(f"h{other}", f"h{old}", None, both=False)
    await _another_leads(stage, old)


async def a_lease_is_handed_over_in_vain(stage: World[Ledger]) -> None:
    """The nominated successor is elected, and the leader does not learn of it.

    The deciding vote is from a member that lost the leader earlier, so no promise binds it.
    """
    old = await _begin_with_a_lease(stage)
    target, third = stage.others(old)
    stage.network.cut(f"h{old}", f"h{third}")
    await trio.sleep(LEASE + 1)
    stage.network.cut(f"h{target}", f"h{old}", both=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hand_over, stage, old, target)
        await stage.until(lambda: target in stage.leaders())
        await _another_leads(stage, old)


async def a_lease_is_handed_over_by_one_held_up(stage: World[Ledger]) -> None:
    """The nominated successor receives the nomination late, together with the next heartbeat.

    Its echo arrives, and nothing after it. If the echo counted as a promise, the leader would have
    a lease, and would serve again after the nomination's time limit.
    """
    old = await _begin_with_a_lease(stage)
    target, third = stage.others(old)
    stage.network.cut(f"h{old}", f"h{third}")
    await trio.sleep(LEASE + 1)
    async with trio.open_nursery() as nursery:
        stage.messages.hold(lambda _s, r, m: r == target and isinstance(m, TimeoutNow))
        nursery.start_soon(_hand_over, stage, old, target)
        await stage.until(lambda: bool(stage.messages.held))
        heartbeats = stage.messages.hold(
            lambda s, _r, m: s == old and isinstance(m, CommitPosition)
        )
        await stage.until(lambda: len(stage.messages.held) > 1)
        heartbeats()
        for held in [*stage.messages.held]:
            stage.messages.deliver(held)
        await trio.sleep(0.002)
        stage.network.cut(f"h{target}", f"h{old}", both=False)
        await stage.until(lambda: target in stage.leaders())
        await _another_leads(stage, old)


async def _hand_over(stage: World[Ledger], old: int, target: int) -> None:
    with contextlib.suppress(RequestError):
        await stage.hosts[old].running.control(f"transfer {target}")


async def _begin_with_a_lease(stage: World[Ledger]) -> int:
    """Start the cluster: a leader with a lease, and followers with short timeouts."""
    old = await begin(stage, LEASED)
    await trio.sleep(1.0)
    for other in stage.others(old):
        stage.set_timeouts(other, TIMEOUTS)
    return old


def _lose(stage: World[Ledger], old: int) -> None:
    """Cut the leader off, and wait until the followers notice."""
    stage.isolate(old)
    for other in stage.others(old):
        stage.network.break_links(f"h{old}", f"h{other}")


async def _another_leads(stage: World[Ledger], old: int) -> None:
    """Query the old leader as soon as there is another one, then wait for rest.

    Raises:
        AssertionError: the answer misses acknowledged commands.
    """
    await stage.until(lambda: any(i != old for i in stage.leaders()))
    (new,) = (i for i in stage.leaders() if i != old)
    assert await stage.attempt(new, b"x")
    with trio.move_on_after(0.5):
        await _ask(stage, old)
    stage.mend()
    await rest(stage)
