"""Schedules for mutants that storms do not find in time: each plays the one way to their harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quorate.errors import RequestError
from quorate.transport import RequestVote, Scout

from ..hazards.schedules import begin, rest

PATIENCE = 10.0  # seconds in which whoever can become leader does

if TYPE_CHECKING:
    from quorate.simulation import Ledger, World


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
    try:
        reply = await stage.hosts[old].running.query(b"")
        assert int(reply) >= len(stage.acked), "StaleRead: a reply lacks what was acknowledged"
    except RequestError:
        pass
    stage.mend()
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
    await stage.until(lambda: stage.hosts[wiped].running.core.votes)
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
    await stage.until(lambda: stage.hosts[wiped].running.core.votes)
