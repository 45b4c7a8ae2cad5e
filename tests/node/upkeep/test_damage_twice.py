"""Damage that more than one member has, and journals that are gone, or older than their LMDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quorate.simulation import Ledger
from quorate.simulation.ledger import equal, open_ledgers
from quorate.simulation.observer import Observer
from quorate.storage import EMPTY_LOG
from quorate.storage.log.journal import JOURNAL_FILE
from tests.support.damage import filled, spoil, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from trio.testing import MockClock

PATIENCE = 30.0


async def test_two_members_with_the_same_damage_ask_the_third(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await filled(world, 20)
        await world.kill(*world.hosts)
        for victim in (0, 1):
            spoil(world.hosts[victim].config.directory, [5])
        for host in world.hosts.values():
            host.make_service = lambda _place: Ledger()  # who has nothing, and reads the whole log
        await world.start()
        await trio.sleep(PATIENCE)
        assert all(host.member is not None for host in world.hosts.values())
        await equal(world)


async def test_who_has_caught_up_after_its_journal_was_lost_is_whole_again(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_ledgers(tmp_path) as world:
        leader = await filled(world, 5)
        victim = world.others(leader)[0]
        await world.kill(victim)
        (world.hosts[victim].config.directory / "log" / JOURNAL_FILE).unlink()
        await world.start(victim)
        await trio.sleep(PATIENCE)
        assert "the journal is damaged at byte 0" in caplog.text
        member = world.hosts[victim].running
        assert member.store.recorded.lost == EMPTY_LOG
        assert member.election.may_stand
        await world.kill(leader)  # in the same term: the two that are left must do
        assert await world.settled() != leader


async def test_who_has_an_older_journal_votes_for_nobody_who_lacks_what_was_in_the_right_one(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, observer=Observer([0, 1, 2])) as world:
        leader = await filled(world, 1)
        holder, late = world.others(leader)
        journal = world.hosts[holder].config.directory / "log" / JOURNAL_FILE
        older = journal.read_bytes()
        await write(world, leader, 20)  # it is carried over twice
        await world.kill(late)
        assert await world.attempt(leader, b"last")
        await world.kill(leader, holder)
        journal.write_bytes(older)
        await world.start(holder, late)
        await trio.sleep(PATIENCE)
        assert world.leaders() == []
        await world.start(leader)
        assert await world.settled() == leader
        await equal(world, [b"0", *(b"%d" % i for i in range(20)), b"last"])
        assert world.hosts[holder].running.election.may_stand
