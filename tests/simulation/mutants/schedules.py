"""Schedules for mutants that storms do not find in time: each plays the one way to their harm."""

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

if TYPE_CHECKING:
    from quorate.simulation import Ledger, World
    from quorate.transport import Message

LEASE = 6.0  # seconds
LEASED = attrs.evolve(PATIENT, leader_lease=LEASE)
PATIENCE = 10.0  # seconds in which whoever can become leader does


async def a_leader_wakes_up(stage: World[Ledger]) -> None:
    """A leader that stood still, alone meanwhile, finds a query when it goes on.

    A storm comes across it rarely: a leader steps down as soon as it hears of another one, or
    notices how long it has heard nobody, so the query has to be the first that it finds.

    Raises:
        AssertionError: the query was answered without what was acknowledged by then.
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


async def _ask(stage: World[Ledger], member: int) -> None:
    """Send a member a query, which may well be refused.

    Raises:
        AssertionError: it was answered without what was acknowledged by then.
    """
    with contextlib.suppress(RequestError):
        reply = await stage.hosts[member].running.query(b"")
        assert int(reply) >= len(stage.acked), "StaleRead: a reply lacks what was acknowledged"


async def a_clock_is_years_ahead(stage: World[Ledger]) -> None:
    """The leader's clock is years ahead for a moment, in which it takes a write."""
    clock = stage.hosts[await begin(stage)].clock
    clock.leap(10 * 365 * 86_400_000)
    await stage.attempt(await stage.leader(), b"x")
    clock.come_back()
    await rest(stage)


async def the_longer_log_is_silent(stage: World[Ledger]) -> None:
    """A member that lacks an acknowledged entry stands; the one that has it is asked, and no more.

    A storm comes across it rarely: of two that can stand the one with the better log goes first.
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
    """Of two candidates the first one's request is held up until the term is a newer one.

    A storm comes across it rarely: whoever asked has long since gone on, so nobody wins by it.
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
    """A disk hangs once the vote of its member for itself is durable; the member wins.

    A storm comes across it rarely: it is one write of each election.

    Raises:
        AssertionError: nobody takes its place.
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
    """Two of three new members wait for the third.

    In a storm all members are there when the cluster is founded.
    """
    for host in stage.hosts.values():
        shutil.rmtree(host.config.directory)
    first, *others = stage.hosts
    await stage.start(*others)
    await trio.sleep(5.0)
    await stage.start(first)
    await rest(stage)


async def a_term_is_forged(stage: World[Ledger]) -> None:
    """Somebody tells all members, in the name of another one, of the highest term that there is.

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

    A storm comes across it rarely: a candidate has just asked a quorum whether it may stand.
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
    """A leader that reaches nobody is no leader any more, and follows once it hears of another.

    Raises:
        AssertionError: it leads on.
    """
    leader = await begin(stage)
    stage.isolate(leader)
    await trio.sleep(PATIENCE)
    assert leader not in stage.leaders(), "AloneForEver: it leads without a quorum"
    stage.mend()
    await rest(stage)


async def a_wiped_member_meets_the_one_that_lags(stage: World[Ledger]) -> None:
    """A command is on two members, of which one loses its disk while the other is away.

    The one that is left never had the command, and the one with the empty disk not any more; were
    they a quorum, the command would be lost. Once the one that has it is back, all have it.
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
    await stage.until(lambda: stage.hosts[wiped].running.state.votes)
    await stage.kill(leader)  # the two are a quorum now
    await rest(stage)


async def only_a_wiped_member_hears_the_leader(stage: World[Ledger]) -> None:
    """The follower that the leader can still reach has lost its disk: nothing is committed."""
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
    """A leader does not hear that a write is recorded, and gives up; the next one commits it.

    A storm comes across it rarely: the write has to be forwarded, and its client to be told.

    Raises:
        AssertionError: its client was told that it was not done, or it was done twice.
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
    assert b"x" not in stage.refused, "ToldWrong: its client was told that it was not done"


async def a_leader_with_a_lease_is_alone(stage: World[Ledger]) -> None:
    """The followers of a leader that is patient, and has a lease, are not patient.

    A storm comes across it rarely: a leader that hears nobody steps down when others elect one.
    """
    old = await _begin_with_a_lease(stage)
    _lose(stage, old)
    await _another_leads(stage, old)


async def the_followers_of_a_lease_restart(stage: World[Ledger]) -> None:
    """They start anew, and find no leader."""
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
    """The leader hears of promises long after they were given, and when it has gone silent."""
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
    """Whom the leader has asked is elected, and the leader does not hear of it.

    By one that the leader has lost before, and so is bound by nothing any more.
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
    """Whom the leader has asked hears it late, and the heartbeat behind it in the same turn.

    Its echo is heard, and then nothing of it any more: if that were a promise the leader had a
    lease, and would take requests again when nobody has taken over in its time.
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
    """Bring the cluster up, its leader with a lease, the others with little patience."""
    old = await begin(stage, LEASED)
    await trio.sleep(1.0)
    for other in stage.others(old):
        stage.set_timeouts(other, TIMEOUTS)
    return old


def _lose(stage: World[Ledger], old: int) -> None:
    """Cut the leader off; the others notice it."""
    stage.isolate(old)
    for other in stage.others(old):
        stage.network.break_links(f"h{old}", f"h{other}")


async def _another_leads(stage: World[Ledger], old: int) -> None:
    """Ask the old leader as soon as there is another one, and come to rest.

    Raises:
        AssertionError: it answered without what was acknowledged by then.
    """
    await stage.until(lambda: any(i != old for i in stage.leaders()))
    (new,) = (i for i in stage.leaders() if i != old)
    assert await stage.attempt(new, b"x")
    with trio.move_on_after(0.5):
        await _ask(stage, old)
    stage.mend()
    await rest(stage)
