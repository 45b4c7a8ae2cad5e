"""A whole cluster in virtual time: elections, replication, and all the ways back."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from quorate.errors import NoLeaderError, UnknownOutcomeError
from quorate.simulation.ledger import equal, open_ledgers

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.node.requests.status import NodeStatus
    from quorate.simulation import Ledger, World

    Clock = trio.testing.MockClock


async def test_three_members_elect_a_leader_and_replicate(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        for i in range(20):
            assert await world.command(leader, b"c%d" % i) == b"%d" % (i + 1)
        await equal(world, [b"c%d" % i for i in range(20)])


async def load(world: World[Ledger], at: int, count: int, name: str) -> list[bytes]:
    payloads = [b"%s-%d" % (name.encode(), i) for i in range(count)]
    for payload in payloads:
        await world.command(at, payload)
    return payloads


async def test_a_single_member_elects_itself(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        assert await world.settled() == 0
        await load(world, 0, 5, "x")
        assert await world.hosts[0].running.query(b"") == b"5"
        assert world.path(0) == [
            "LEADER_LOG_REPLICATION",
            "LEADER_REPLAY",
            "LEADER_INIT",
            "LEADER_READY",
            "CLOSED",
        ]


async def test_members_count_entries_batches_and_commits(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()

        def said() -> list[NodeStatus]:
            return [host.running.status() for host in world.hosts.values()]

        async def counted(entries: int) -> list[NodeStatus]:
            await world.until(lambda: all(status.entries == entries for status in said()))
            return said()

        before = await counted(1)  # which opens the term
        async with trio.open_nursery() as nursery:
            for i in range(20):
                nursery.start_soon(world.command, leader, b"together-%d" % i)
        await load(world, leader, 5, "alone")
        for old, new in zip(before, await counted(26), strict=True):
            assert 5 < new.batches - old.batches < 25
            assert 5 < new.commits - old.commits <= new.batches - old.batches


async def test_the_others_elect_a_leader_when_theirs_is_killed(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        first = await world.settled()
        written = await load(world, first, 10, "a")
        await world.kill(first)
        second = await world.settled()
        assert second != first
        written += await load(world, second, 10, "b")
        await world.start(first)
        assert await world.settled() == second
        await equal(world, written)


async def test_any_member_takes_commands_and_queries(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        await world.settled()
        for i in world.hosts:
            assert await world.command(i, b"from-%d" % i) == b"%d" % (i + 1)
            assert await world.hosts[i].running.query(b"") == b"%d" % (i + 1)


async def test_a_member_that_missed_terms_replicates_them_one_by_one(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        late = world.others(leader)[0]
        written = await load(world, leader, 5, "a")
        await equal(world, written)
        await world.kill(late)
        for name in "bcd":
            written += await load(world, leader, 5, name)
            await world.kill(leader)
            await world.start(leader)
            leader = await world.settled()
        seen = len(world.transitions)
        await world.start(late)
        await world.settled()
        await equal(world, written)
        assert world.path(late, since=seen).count("FOLLOWER_LOG_REPLICATION") >= 3
        rows = {host.running.store.terms for host in world.hosts.values()}
        assert len({tuple((r.term, r.base, r.end) for r in row) for row in rows}) == 1


async def test_a_member_catches_up_in_the_current_term_under_load(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        late = world.others(leader)[0]
        written = await load(world, leader, 50, "a")
        await world.kill(late)
        written += await load(world, leader, 200, "b")
        seen = len(world.transitions)
        async with trio.open_nursery() as nursery:

            async def more() -> None:
                written.extend(await load(world, leader, 300, "c"))

            nursery.start_soon(more)
            await world.start(late)
        await world.settled()
        await equal(world, written)
        path = world.path(late, since=seen)
        assert path[-7:] == [
            "FOLLOWER_REPLAY",
            "FOLLOWER_CATCHUP_INIT",
            "FOLLOWER_CATCHUP_AWAIT",
            "FOLLOWER_CATCHUP",
            "FOLLOWER_LOG_INIT",
            "FOLLOWER_READY",
            "CLOSED",
        ]


async def test_uncommitted_entries_of_a_cut_off_leader_are_truncated(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        old = await world.settled()
        written = await load(world, old, 5, "a")
        await equal(world, written)
        outcome: list[object] = []

        async def doomed() -> None:
            try:
                await world.command(old, b"doomed")
            except (UnknownOutcomeError, NoLeaderError) as error:
                outcome.append(error)

        async with trio.open_nursery() as nursery:
            for peer in world.others(old):
                world.network.cut(f"h{old}", f"h{peer}")
            nursery.start_soon(doomed)
            await world.until(lambda: set(world.leaders()) & set(world.others(old)) != set())
            new = next(i for i in world.leaders() if i != old)
            written += await load(world, new, 5, "b")
        assert isinstance(outcome[0], UnknownOutcomeError)
        for peer in world.others(old):
            world.network.heal(f"h{old}", f"h{peer}")
        assert await world.settled() == new
        await equal(world, written)


async def test_a_leader_without_its_quorum_steps_down(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.kill(*world.others(leader))
        await world.until(lambda: not world.leaders(), within=2.0)
        with pytest.raises(NoLeaderError):
            await world.command(leader, b"x")


async def test_an_orderly_stop_of_the_leader_is_followed_by_an_election_at_once(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 3, "a")
        since = trio.current_time()
        await world.hosts[leader].running.close()
        await world.until(lambda: world.leaders() not in ([], [leader]))
        assert trio.current_time() - since < 0.5


async def test_a_leader_that_is_told_twice_to_stop_stops_in_order(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 3, "a")
        world.hosts[leader].disk.stall(0.1)  # so that the first stop waits for a write
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.attempt, leader, b"last")
            await trio.sleep(0.01)
            nursery.start_soon(world.hosts[leader].running.close)
            await trio.sleep(0.01)
            nursery.start_soon(world.hosts[leader].running.close)
        assert world.acked[-1] == b"last"
        await world.until(lambda: world.leaders() not in ([], [leader]))


@pytest.mark.parametrize("at", ["leader", "follower"])
async def test_an_orderly_stop_of_the_leader_under_load_leaves_no_outcome_unknown(
    tmp_path: Path, autojump_clock: Clock, at: str
) -> None:
    """What is in the log is answered; what is not was not done, and a follower asks anew."""
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        host = leader if at == "leader" else world.others(leader)[0]
        refused = [0]
        stopping = trio.Event()

        async def write(name: str) -> None:
            for i in range(200):
                try:
                    await world.command(host, b"%s-%d" % (name.encode(), i))
                except NoLeaderError:
                    refused[0] += 1
                    assert stopping.is_set()
                    assert at == "leader"

        async with trio.open_nursery() as nursery:
            for i in range(20):
                nursery.start_soon(write, str(i))
            await trio.sleep(0.05)
            stopping.set()
            await world.hosts[leader].running.close()
        assert bool(refused[0]) is (at == "leader")
        await trio.sleep(1.0)
        payloads = world.hosts[world.others(leader)[0]].service.payloads
        assert len(payloads) == len(set(payloads)) == 20 * 200 - refused[0]


async def test_random_kills_lose_nothing_acknowledged(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    for seed in range(2):
        async with open_ledgers(tmp_path / str(seed), 3, seed=seed) as world:
            await _kills(world)


async def _kills(world: World[Ledger]) -> None:
    rng = random.Random(f"{world.setting.seed}")
    acked: list[bytes] = []
    await world.start()
    await world.settled()
    stop = False

    async def client(name: int) -> None:
        i = 0
        while not stop:
            payload = b"%d-%d" % (name, i)
            i += 1
            alive = [k for k, host in world.hosts.items() if host.member]
            try:
                with trio.move_on_after(1.0):
                    await world.command(rng.choice(alive), payload)
                    acked.append(payload)
            except (UnknownOutcomeError, NoLeaderError):
                pass
            await trio.sleep(0.03)

    async with trio.open_nursery() as nursery:
        for name in range(3):
            nursery.start_soon(client, name)
        for _ in range(6):
            await trio.sleep(rng.uniform(0.1, 2.0))
            victim = rng.choice(list(world.hosts))
            await world.kill(victim)
            await trio.sleep(rng.uniform(0.0, 1.5))
            await world.start(victim)
        stop = True
    await world.settled()
    leader = world.leaders()[0]
    await world.command(leader, b"last")
    await equal(world)
    payloads = world.hosts[leader].service.payloads
    assert set(acked) <= set(payloads)
    assert len(set(payloads)) == len(payloads)
