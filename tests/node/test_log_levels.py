"""A leader or a quorum that is lost is a warning; what happens in order is not. INFO is quiet."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from quorate.simulation.ledger import open_ledgers
from tests.support.logged import events

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from trio.testing import MockClock


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and " -> INIT: " in record.getMessage()
    ]


async def test_a_lost_leader_is_a_warning_of_each_follower(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.kill(leader)
        await world.settled()
        assert len(warnings(caplog)) == 2
        for member in world.others(leader):
            begins = f"member {member}: CLOSED -> INIT: log disconnected from leader"
            assert any(line.startswith(begins) for line in warnings(caplog))


async def test_a_lost_quorum_is_a_warning_of_the_leader(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.kill(*world.others(leader))
        await world.until(lambda: not world.leaders())
        (line,) = warnings(caplog)
        assert line.startswith(f"member {leader}: CLOSED -> INIT: inactive follower quorum")


async def test_a_handover_and_an_orderly_stop_are_no_warnings(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        successor = world.others(leader)[0]
        await world.hosts[leader].running.control(f"transfer {successor}")
        assert await world.settled() == successor
        await world.hosts[successor].running.close()
        await world.until(lambda: world.leaders() not in ([], [successor]))
        assert warnings(caplog) == []


async def test_an_election_is_one_line_of_each_member(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quorate")
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        caplog.clear()
        successor = world.others(leader)[0]
        await world.hosts[leader].running.control(f"transfer {successor}")
        await world.settled()
        await world.until(lambda: len(events(caplog, "leads")) == 3)
        assert len(caplog.records) == 3
        for line in events(caplog, "leads"):
            assert (line["leader"], line["term"]) == (successor, 1)
            assert 0 <= line["took"] < 1
            assert line["cause"]


def links(caplog: pytest.LogCaptureFixture) -> list[tuple[int, bool]]:
    return [(each["peer"], each["up"]) for each in events(caplog, "link")]


async def test_a_lost_member_is_a_warning_of_all_others_and_its_return_a_line(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quorate")
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        lost = world.others(leader)[0]
        await world.kill(lost)
        await trio.sleep(9)
        assert events(caplog, "link") == []
        await trio.sleep(30)
        assert links(caplog) == [(lost, False)] * 2
        caplog.clear()
        await world.start(lost)
        await trio.sleep(5)
        assert links(caplog) == [(lost, True)] * 2
