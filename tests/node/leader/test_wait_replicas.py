"""WAIT: who wants an acknowledged write on more members than a quorum waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import RefusedError
from quorate.simulation.ledger import open_ledgers
from tests.support.settled import settled

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World


@pytest.mark.parametrize("asked", ["leader", "follower"])
@settled
async def test_it_ends_when_the_followers_have_it_or_the_time_is_over(
    world: World[Ledger], asked: str
) -> None:
    (leader,) = world.leaders()
    away, other = world.others(leader)
    member = world.hosts[leader if asked == "leader" else other].running
    for one in (leader, other):
        world.network.cut(f"h{one}", f"h{away}")
    await world.command(leader, b"a")
    assert await member.control("wait 1 0") == "1"
    began = trio.current_time()
    assert await member.control("wait 2 300") == "1"
    assert trio.current_time() - began == pytest.approx(0.3, abs=0.1)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def heal() -> None:
            await trio.sleep(1)
            for one in (leader, other):
                world.network.heal(f"h{one}", f"h{away}")

        began = trio.current_time()
        assert await member.control("wait 2 0") == "2"
        assert trio.current_time() - began > 1


@settled
async def test_another_leader_is_asked_when_the_first_has_gone(world: World[Ledger]) -> None:
    (leader,) = world.leaders()
    away, other = world.others(leader)
    for one in (leader, other):
        world.network.cut(f"h{one}", f"h{away}")
    await world.command(leader, b"a")
    member = world.hosts[leader].running
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def change() -> None:
            await trio.sleep(0.2)
            assert "takes over" in await member.control(f"transfer {other}")
            await trio.sleep(1)
            for one in (leader, other):
                world.network.heal(f"h{one}", f"h{away}")

        assert await member.control("wait 2 0") == "2"
    assert await world.settled() == other


@pytest.mark.parametrize("words", ["wait 1", "wait 1 -1", "wait x 1", "wait 1 " + "9" * 400])
@settled
async def test_nonsense_is_refused(world: World[Ledger], words: str) -> None:
    (leader,) = world.leaders()
    with pytest.raises(RefusedError, match="wait takes a number"):
        await world.hosts[leader].running.control(words)


@pytest.mark.parametrize("asked", ["leader", "follower", "nobody"])
async def test_words_that_are_none_are_refused_wherever_they_are_asked(
    tmp_path: Path, autojump_clock: MockClock, asked: str
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        if asked == "nobody":  # parked, until there is a leader
            member = world.hosts[0].running
        else:
            leader = await world.settled()
            member = world.hosts[leader if asked == "leader" else world.others(leader)[0]].running
        for words in ("wait \xff", "transfer \xff"):
            with pytest.raises(RefusedError, match="ASCII"):
                await member.control(words)
        await world.command(await world.settled(), b"a")
