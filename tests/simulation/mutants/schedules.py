"""Schedules for mutants that storms do not find in time: each plays the one way to their harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quorate.errors import RequestError
from quorate.transport import RequestVote, Scout

from ..hazards.schedules import begin, rest

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
