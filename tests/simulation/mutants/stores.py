"""Schedules of stores that have lost a whole disk with its votes, or the end of a log."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.errors import RequestError
from quorate.node import State
from quorate.simulation.machines.disk import carry_over_journal, rot
from quorate.simulation.world import TIMEOUTS
from quorate.transport import RequestVote, StaleLeader
from tests.simulation.hazards.schedules import append_of, begin, rest
from tests.simulation.members import counts

if TYPE_CHECKING:
    from quorate.simulation import Ledger, World
    from quorate.transport import Message

PATIENCE = 10.0  # seconds within which a member that can become leader does
LONG_BALLOT = attrs.evolve(
    TIMEOUTS, election_timeout=60.0, leader_heartbeat_timeout=60.0, startup_canvass=120.0
)


async def an_old_vote_is_counted_after_an_admission(stage: World[Ledger]) -> None:
    """One of five members must take over even if it is behind, and has the vote of one store.

    Its other vote requests are delayed. In that time the store is lost, and its replacement is
    admitted; then a command is committed with the help of the new store. At last a vote request
    reaches a member that has the admission, but was cut off before the command. If it voted for
    the log that is behind, there would be a quorum: the old vote, this vote and the candidate's
    own. None of these voters' logs has the command.
    """
    leader = await begin(stage)
    candidate, lost, other, asked = stage.others(leader)
    stage.set_timeouts(candidate, LONG_BALLOT)
    late = stage.messages.hold(
        lambda s, r, m: s == candidate and r != lost and isinstance(m, RequestVote)
    )
    # a voter of the new term would inform the leader of it
    stage.messages.drop(lambda s, _r, m: s == lost and isinstance(m, StaleLeader))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_hand_over, stage, leader, candidate)
        store = stage.hosts[lost].running.store
        await stage.until(lambda: store.node_state.voted_for == candidate)
        await trio.sleep(0.01)  # the vote arrives
        alone = {candidate}

        def between(sender: int, receiver: int, _message: Message) -> bool:
            return (sender in alone) != (receiver in alone)

        undo = stage.messages.drop(between)
        await stage.wipe(lost)
        await stage.start(lost)
        await stage.until(lambda: counts(stage, lost))
        await stage.until(lambda: append_of(stage, asked) == append_of(stage, leader))
        assert stage.hosts[asked].running.state.admission.position > 0
        alone.add(asked)  # with the candidate, whose messages do not reach it yet
        assert await stage.attempt(leader, b"x", within=PATIENCE)
        await stage.reached(asked, State.CANVASS)
        assert stage.hosts[candidate].state is State.CANDIDATE_BALLOT
        assert stage.hosts[other].running.store.append_position > append_of(stage, asked)
        held = next(held for held in stage.messages.held if held.receiver == asked)
        stage.messages.deliver(held)
        await trio.sleep(1.0)
        undo()
        late()
        stage.set_timeouts(candidate, TIMEOUTS)
        nursery.cancel_scope.cancel()
    await rest(stage)


async def _hand_over(stage: World[Ledger], leader: int, candidate: int) -> None:
    with contextlib.suppress(RequestError):
        await stage.hosts[leader].running.control(f"transfer {candidate} even-if-behind")


async def the_end_of_a_log_rots(stage: World[Ledger]) -> None:
    """Two members have a command; one of them finds it damaged at its next start.

    That member truncates its log there, and the third member never had the command. If these two
    were a quorum, the command would be lost.
    """
    leader = await begin(stage)
    rotten, short = stage.others(leader)
    await stage.kill(short)
    assert await stage.attempt(leader, b"x")
    raw = [*stage.hosts[leader].running.store.scan(0)][-1]
    await stage.until(lambda: append_of(stage, rotten) == append_of(stage, leader))
    await stage.kill(leader, rotten)
    store = stage.hosts[rotten].config.directory / "log"
    carry_over_journal(store)
    assert rot(store, raw, random.Random(0))
    await stage.start(rotten, short)
    await trio.sleep(PATIENCE)
    await stage.start(leader)
    await rest(stage)
