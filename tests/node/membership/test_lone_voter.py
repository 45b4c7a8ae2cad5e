"""A damaged end of the log is cut if other voters have it; the log says so, not the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import DamagedRecordError, leaves
from quorate.simulation.ledger import equal, open_ledgers
from tests.support.changing import complete, gone, grow, order, voters
from tests.support.damage import spoil

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock


async def test_a_cluster_that_shrank_to_one_voter_loses_no_write_by_a_damaged_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, contain=True) as world:
        await world.start()
        leader = await world.settled()
        for other in world.others(leader):
            await order(world, f"remove {other}")
            await gone(world, other)
        await complete(world)
        assert voters(world) == [leader]
        await world.command(leader, b"one")
        await world.kill(leader)
        # Its file still has three members.
        assert len(world.hosts[leader].config.voters) == 3
        spoil(world.hosts[leader].config.directory, [-1])
        for _ in range(2):  # nor is it cut at the second start
            await world.start(leader)
            (failure,) = leaves(world.failures.pop(leader))
            assert isinstance(failure, DamagedRecordError)
            assert "No other member has it" in str(failure)


async def test_a_founder_that_was_alone_is_mended_by_the_members_that_joined(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await world.settled()
        await grow(world, 2)
        await world.command(await world.leader(), b"one")
        await equal(world, [b"one"])
        await world.kill(0)
        # Its file has no other member.
        assert len(world.hosts[0].config.voters) == 1
        spoil(world.hosts[0].config.directory, [-1])
        await world.start(0)
        await equal(world, [b"one"])
