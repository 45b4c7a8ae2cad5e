"""Figures say what happened: known delays in virtual time, elections, and what is not known."""

from __future__ import annotations

import ast
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import pytest
import trio
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,  # pyright: ignore[reportUnknownVariableType]
)
from prometheus_client.parser import text_string_to_metric_families

import quorate.node
from quorate.metrics import Histogram, exposition
from quorate.node.counts import Counts
from quorate.node.leader.leadership import Leadership
from quorate.node.leader.replication import MARKS
from quorate.node.live.figures import member_families
from quorate.node.live.loop_delay import watch_loop
from quorate.node.live.process import open_files
from quorate.simulation import Ledger, Setting, open_world
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS

if TYPE_CHECKING:
    from trio.testing import MockClock

    from quorate.node import Member
    from quorate.node.live.parts import Parts

LATENCY = 0.020
"""One way between two members."""

FSYNC = 0.005
SLOW = Setting(latency=LATENCY, jitter=0.0, fsync=FSYNC, fsync_jitter=0.0)

Found: TypeAlias = "dict[tuple[str, frozenset[tuple[str, str]]], float]"


def figures(member: Parts) -> Found:
    """Return each sample of a member by its name and labels, as a parser reads them."""
    families = member_families(member)
    # OpenMetrics drops the suffix of counters, so their names may be those of other families.
    assert [*parse_openmetrics(exposition(families, openmetrics=True))]  # type: ignore[no-untyped-call]
    read = text_string_to_metric_families(exposition(families))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in read
        for sample in family.samples
    }


def one(found: Found, name: str, **labels: str) -> float | None:
    """Return one figure; None if it is not there."""
    return found.get((name, frozenset(labels.items())))


def bounds(histogram: Histogram) -> tuple[float, float]:
    """Return the bounds between which all observations lie."""
    filled = [n for n, count in enumerate(histogram.counts) if count]
    limits = [0.0, *histogram.bounds(), float("inf")]
    return limits[filled[0]], limits[filled[-1] + 1]


async def test_a_commit_takes_a_round_trip_and_a_disk(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, Ledger, SLOW) as world:
        await world.start()
        leader = await world.settled()
        member = world.hosts[leader].member
        assert member is not None
        await world.command(leader, b"the entry that opens the term is committed before")
        commits, before = member.state.counts.commit_duration, member.applier.batches
        count, total = commits.count, commits.total
        for n in range(5):
            await world.command(leader, b"%d" % n)
        assert commits.count - count == 5
        # To the follower, its disk, and back.
        assert (commits.total - total) / 5 == pytest.approx(2 * LATENCY + FSYNC, abs=0.004)
        assert member.applier.batches - before == 5
        slow = member.applier.slow.kept[-1]
        assert slow.entries == 1
        assert slow.sync == pytest.approx(FSYNC, abs=0.002)
        assert slow.quorum == pytest.approx(2 * LATENCY, abs=0.004)
        assert slow.receive == slow.apply == slow.reply == 0
        assert slow.took == pytest.approx(2 * LATENCY + FSYNC, abs=0.004)
        syncs = member.store.syncs
        assert bounds(syncs)[0] < FSYNC <= bounds(syncs)[1]
        # A follower measures its disk, and no commits: it does not know when the leader began.
        other = next(host.member for i, host in world.hosts.items() if i != leader)
        assert other is not None
        assert other.state.counts.commit_duration.count == 0
        assert other.store.syncs.count > 0
        assert other.applier.slow.count == 0


async def test_an_election_is_counted_with_its_cause(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        old = await world.settled()
        members = {i: host.member for i, host in world.hosts.items()}
        for i, member in members.items():
            assert member is not None
            outcome = "leader" if i == old else "follower"
            assert member.state.counts.elections["start", outcome] == 1
            assert member.state.counts.leader_changes == 0
        # Cut off, not killed: its followers see no link end, and miss its heartbeats.
        for i in world.hosts:
            if i != old:
                world.network.cut(f"h{old}", f"h{i}")
        await world.until(lambda: world.leaders() not in ([], [old]))
        await trio.sleep(2 * TIMEOUTS.leader_heartbeat_timeout)
        (new,) = (i for i in world.leaders() if i != old)
        member = members[new]
        assert member is not None
        counts = member.state.counts
        assert counts.elections["heartbeat-timeout", "leader"] == 1
        assert counts.leader_changes == 1
        assert counts.heartbeats_missed > 0
        found = figures(member)
        assert one(found, "quorate_is_leader") == 1
        labels = {"cause": "heartbeat-timeout", "outcome": "leader"}
        assert one(found, "quorate_elections_total", **labels) == 1
        assert one(found, "quorate_election_duration_seconds_count") == 2
        # The old leader was heard by nobody: it does not lead, and says so.
        cut_off = members[old]
        assert cut_off is not None
        found = figures(cut_off)
        assert one(found, "quorate_is_leader") == one(found, "quorate_has_leader") == 0
        failed = [each for each in cut_off.state.counts.elections if each[0] == "quorum-silent"]
        assert cut_off.election.cause == "inactive follower quorum"
        assert not failed  # it is still under way


async def test_only_a_leader_knows_how_far_peers_are_behind(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        behind, near = (i for i in world.hosts if i != leader)
        await world.command(leader, b"x")
        await trio.sleep(1.0)
        member = world.hosts[leader].member
        assert member is not None
        for i in (behind, near):
            assert one(figures(member), "quorate_peer_lag_bytes", peer=str(i)) == 0
            assert one(figures(member), "quorate_peer_lag_seconds", peer=str(i)) == 0
        world.network.cut(f"h{leader}", f"h{behind}")
        appended = trio.current_time()
        await world.command(leader, b"y" * 1000)
        await trio.sleep(0.5)
        found = figures(member)
        assert (one(found, "quorate_peer_lag_bytes", peer=str(behind)) or 0) >= 1000
        waited = trio.current_time() - appended
        late = one(found, "quorate_peer_lag_seconds", peer=str(behind)) or 0
        assert waited <= late <= waited + 2 * TIMEOUTS.leader_heartbeat_interval
        assert one(found, "quorate_peer_lag_bytes", peer=str(near)) == 0
        # It was silent for longer than the timeout: one more, and there is no quorum.
        assert one(found, "quorate_voters_heard") == one(found, "quorate_quorum") == 2
        # What a follower does not know, it does not show.
        follower = world.hosts[near].member
        assert follower is not None
        found = figures(follower)
        names = {name for name, _ in found}
        assert not names & {"quorate_peer_lag_bytes", "quorate_peer_lag_seconds"}
        assert "quorate_voters_heard" not in names
        assert one(found, "quorate_has_leader") == 1
        assert one(found, "quorate_peer_connected", peer=str(leader)) == 1
        assert (one(found, "quorate_peer_received_bytes_total", peer=str(leader)) or 0) > 1000
        assert one(found, "quorate_peer_last_heard_timestamp_seconds", peer=str(behind)) is None
        assert one(found, "quorate_role", role="follower") == 1
        assert one(found, "quorate_election_state", state="CLOSED") == 1
        assert sum(v for (name, _), v in found.items() if name == "quorate_election_state") == 1
        pages = one(found, "process_resident_memory_bytes") or 0
        assert 1 << 20 < pages <= 2 * 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def test_a_new_leader_does_not_know_for_how_long_a_follower_has_been_behind(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"x")
        member = world.hosts[leader].running
        assert isinstance(member.state.role, Leadership)
        replication, base = member.state.role.replication, member.state.role.base
        assert replication.lag_seconds(base - 1) is None
        assert replication.lag_seconds(replication.end) == 0
        # Once it has led for as long as it remembers, that is the least that it can be.
        await trio.sleep((MARKS + 2) * TIMEOUTS.leader_heartbeat_interval)
        late = replication.lag_seconds(base - 1) or 0
        assert late >= (MARKS - 1) * TIMEOUTS.leader_heartbeat_interval


async def test_times_are_those_of_the_wall_clock_also_if_the_log_is_ahead_of_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    leased = attrs.evolve(TIMEOUTS, leader_lease=TIMEOUTS.leader_heartbeat_timeout)
    async with open_world(tmp_path, Ledger, Setting(timeouts=leased)) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"x")
        follower = next(i for i in world.hosts if i != leader)
        for i in world.hosts:
            world.hosts[i].clock.jump(-4000)
        wall = world.hosts[follower].clock.now_ms() / 1000
        found = figures(world.hosts[follower].running)
        heard = one(found, "quorate_peer_last_heard_timestamp_seconds", peer=str(leader))
        assert heard == pytest.approx(wall, abs=0.2)
        found = figures(world.hosts[leader].running)
        lease = one(found, "quorate_lease_expiry_timestamp_seconds")
        assert lease == pytest.approx(wall, abs=1.0)


async def test_requests_are_counted_where_they_go(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        follower = next(i for i in world.hosts if i != leader)
        here, there = world.hosts[leader].member, world.hosts[follower].member
        assert here is not None
        assert there is not None
        await here.query(b"")
        await there.query(b"")
        await there.command(b"x")
        assert here.state.counts.reads["quorum"] == 2
        assert there.state.counts.reads["forwarded"] == 1
        assert there.state.counts.forwarded == 2
        assert there.state.counts.unknown_outcomes == 0


async def test_a_timer_that_fires_late_is_a_delay(nursery: trio.Nursery) -> None:
    counts = Counts()
    nursery.start_soon(watch_loop, counts, 0.4)
    await trio.sleep(0.01)
    time.sleep(0.2)  # noqa: ASYNC251 - holds up the loop
    await trio.sleep(0.03)
    assert counts.loop_delay.count == 1
    assert 0.1 < counts.loop_delay.total < 5
    assert counts.clock_stalls == 1


def test_each_end_of_a_role_has_a_cause() -> None:
    """A call without one would be counted as another cause, which says nothing."""
    folder = Path(quorate.node.__file__).parent
    without: list[str] = []
    found = 0
    for path in folder.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name, text = ast.unparse(call.func), ast.unparse(call)
            if name.endswith(("self.end", "role.end")) or name == "Ended":
                found += 1
                if "Cause." not in text and "cause=" not in text:
                    without.append(text)
    assert found > 15
    # These end a role before there was an election to count.
    assert set(without) == {"role.end('cancelled')", "role.end('term replicated')"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
async def test_promtool_finds_nothing_wrong(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"x")
        member: Member | None = world.hosts[leader].member
        assert member is not None
        text = exposition(member_families(member))
    checked = subprocess.run(  # noqa: ASYNC221 - nothing else runs
        ["promtool", "check", "metrics"],
        input=text,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


async def test_a_scrape_asks_no_disk(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await world.settled()
        member = world.hosts[0].running
        system = os.statvfs(world.hosts[0].config.directory)

        def hang(_path: object) -> None:
            raise AssertionError("a scrape must not ask the disk, which may hang")

        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", hang)
            found = figures(member)
        size = one(found, "quorate_disk_size_bytes") or 0
        assert 0 < size <= system.f_blocks * system.f_frsize


def test_open_files_are_counted_without_a_list_if_the_kernel_can() -> None:
    there = len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - and not the one of the list
    assert abs(open_files() - there) <= 1
    with Path("/dev/null").open() as _, Path("/dev/null").open() as _:
        assert abs(open_files() - there - 2) <= 1
