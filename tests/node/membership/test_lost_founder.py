"""A founder that lost its disk founds no second cluster, however old its file is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import LostStoreError, RefusedError, leaves
from quorate.node import Timeouts
from quorate.node.membership.founding import callers_seconds
from quorate.simulation.ledger import equal
from quorate.simulation.world import TIMEOUTS, Setting
from quorate.storage.log.founding import force
from quorate.transport import Founding, LinkLimits
from quorate.transport.testing import Pace
from tests.support.changing import complete, gone, grow, order
from tests.support.founding import new_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World


def lose_disk(world: World[Ledger], *members: int) -> None:
    """Give members that do not run an empty directory."""
    for i in members:
        host = world.hosts[i]
        directory = host.config.directory.with_name(f"empty-{i}")
        host.config = attrs.evolve(host.config, directory=directory)


async def end_of(world: World[Ledger], member: int) -> str:
    """Wait until a member has ended because its store was lost; return its words."""
    await world.until(lambda: world.hosts[member].stopped)
    (failure,) = leaves(world.failures[member])
    assert isinstance(failure, LostStoreError), failure
    return str(failure)


async def test_a_founder_whose_file_names_only_itself_does_not_found_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path, members=1) as world:
        await world.start()
        others = await grow(world, 2)
        await world.kill(0)
        assert await world.attempt(await world.leader(), b"one")
        lose_disk(world, 0)
        # The pause between two dials has grown to its longest.
        await trio.sleep(20 * LinkLimits().backoff_longest)
        for _ in range(2):
            await world.start(0)
            words = await end_of(world, 0)
            assert any(f"member {i} at h{i}:7000 says" in words for i in others), words
            assert "quorate recover" in words
            assert "--connect h" in words
        assert world.leaders()[0] in others


async def test_a_store_that_would_found_alone_listens_longer_on_a_slow_network(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """A dial and a hello take longer there than all pauses between the dials of a member."""
    timeouts = Timeouts(**{name: 8 * value for name, value in attrs.asdict(TIMEOUTS).items()})
    setting = Setting(timeouts=timeouts)
    async with new_cluster(tmp_path, members=1, setting=setting) as world:
        await world.start()
        others = await grow(world, 2)
        await world.kill(0)
        for i in others:
            world.network.set_pace("h0", f"h{i}", Pace(0.6, 0.0), both=True)
        lose_disk(world, 0)
        await trio.sleep(20 * LinkLimits().backoff_longest)
        await world.start(0)
        words = await end_of(world, 0)
        assert any(f"member {i} at h{i}:7000 says" in words for i in others), words


async def test_a_founder_whose_cofounders_are_gone_does_not_begin_without_them(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        await grow(world, 2)
        await order(world, "remove 2")
        await gone(world, 2)
        await world.kill(0)
        lose_disk(world, 0)
        await trio.sleep(10.0)
        await world.start(0)
        # At once: nobody has dialled it yet.
        assert world.hosts[0].running.founders.take(b"found 2", lambda _: None)
        assert "the cluster has a history" in await end_of(world, 0)


async def test_all_founders_but_one_are_lost_and_an_operator_begins_anew(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """With 0, 1, 3, 4 and 5, members 0 and 1 agree that they are new."""
    async with new_cluster(tmp_path) as world:
        await world.start()
        await grow(world, 3)
        await order(world, "remove 2")
        await gone(world, 2)
        await world.kill(0, 1)
        lose_disk(world, 0, 1)
        await trio.sleep(10.0)
        await world.start(0, 1)
        member = world.hosts[0].running
        assert member.founders.take(b"found 2", lambda _: None)
        for i in (0, 1):
            assert "the cluster has a history" in await end_of(world, i)
        assert await world.attempt(await world.leader(), b"one")


async def test_a_member_that_is_known_to_have_a_history_is_named_to_the_operator(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "quorate.node")
    async with new_cluster(tmp_path) as world:
        await world.start()
        await grow(world, 1)
        await world.kill(0)
        lose_disk(world, 0)
        # It hears that they have a history, and not with which stores that began.
        world.messages.drop(lambda _sender, _receiver, message: isinstance(message, Founding))
        await world.start(0)
        founders = world.hosts[0].running.founders
        answers: list[object] = []
        await trio.sleep(1.5)
        assert founders.take(b"found 1", answers.append)
        (answer,) = answers
        assert isinstance(answer, RefusedError)
        assert "the cluster has a history" in str(answer)
        assert "the cluster has a history" in await end_of(world, 0)
    # A founder of its file may just have been quicker, as at each first start; member 3 was none.
    words = r"store is new, but member (\d)"
    found = [(re.search(words, each.getMessage()), each.levelname) for each in caplog.records]
    levels = {(each[1], level) for each, level in found if each}
    assert levels == {("1", "INFO"), ("2", "INFO"), ("3", "WARNING")}


async def test_a_restored_store_and_one_of_the_old_history_say_which_to_stop(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path, members=1) as world:
        await world.start()
        others = await grow(world, 2)
        await world.kill(0)
        force(world.hosts[0].config.directory / "log", instance_id=77, timestamp_ms=5)
        await trio.sleep(10.0)
        await world.start(0)
        words = await end_of(world, 0)
        assert "the quorum was forced with its store" in words
        assert any(f"member {i} at h{i}:7000 has the history from before" in words for i in others)


async def test_a_lone_founder_waits_for_callers_only_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path, members=1) as world:
        began = trio.current_time()
        await world.start()
        await world.leader()
        assert 0.0 <= trio.current_time() - began - callers_seconds(TIMEOUTS) < 0.5
        await world.kill(0)
        began = trio.current_time()
        await world.start()
        await world.leader()
        assert trio.current_time() - began < 0.5


async def test_a_demoted_founder_with_an_empty_disk_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Its file says that it is a voter, and has no `join = true`."""
    async with new_cluster(tmp_path) as world:
        await world.start()
        await grow(world, 1)
        await order(world, "demote 0")
        await complete(world)
        await world.kill(0)
        lose_disk(world, 0)
        await world.start(0)
        assert "quorate recover" in await end_of(world, 0)


async def test_the_only_voter_with_an_empty_disk_does_not_found_next_to_a_standby_with_its_data(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The standby has never had a vote, so its hello names no history."""
    async with new_cluster(tmp_path, members=2, setting=Setting(standbys=1)) as world:
        await world.start()
        assert await world.attempt(await world.leader(), b"one")
        await equal(world, [b"one"])
        await world.kill(0)
        await world.start(0)  # with its disk
        assert await world.attempt(await world.leader(), b"two")
        await equal(world, [b"one", b"two"])
        await world.kill(0)
        lose_disk(world, 0)
        await trio.sleep(10.0)
        await world.start(0)
        words = await end_of(world, 0)
        assert "member 1 at h1:7000, a standby, has log of cluster 'simulated' up to" in words
        assert "quorate restore --from" in words
        # Once nobody needs its data, the cluster may begin anew.
        await world.kill(1)
        lose_disk(world, 1)
        await world.start(0, 1)
        assert await world.attempt(await world.leader(), b"three")
        await equal(world, [b"three"])


@pytest.mark.parametrize("late", [False, True], ids=["in the file", "added later"])
async def test_a_founder_that_was_slow_to_note_the_founding_is_let_in_by_any_member(
    tmp_path: Path, autojump_clock: MockClock, *, late: bool
) -> None:
    """It crashed before it was durable that it is a founder; the others have its store."""
    async with new_cluster(tmp_path) as world:
        world.hosts[2].disk.latency = 1.0
        await world.start()
        await world.until(
            lambda: all(world.hosts[i].running.status().standing == "member" for i in (0, 1))
        )
        assert world.hosts[2].running.status().standing == "fresh"
        await world.kill(2)
        world.hosts[2].disk.latency = 0.0
        if late:
            await grow(world, 2)
            for i in (0, 1):
                world.network.cut("h2", f"h{i}")
        await world.start(2)
        await world.until(lambda: world.hosts[2].running.state.votes)
