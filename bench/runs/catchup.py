"""A follower that is far behind catches up while clients write.

A follower is killed. The other members write until it is some MB of log behind. Then 64 clients
(`crowd.py`) write without end, and after a while the follower is started. Its append position is
polled until it reaches the leader's. The clients' rate is reported before the kill, while the
follower is away, during the catch-up, and afterwards, once it has had time to write its tables.

There are two ways to catch up. With the usual settings, the leader has dropped that part of the log
behind its snapshots, so it sends a snapshot and the log after it. If all members keep their whole
log, it sends the log alone. At the end, the follower's state must equal that of the other members,
with everything acknowledged. Its log must be complete if all members keep theirs; otherwise the
log of one member, which keeps it, must be complete.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import trio

from bench.lib.checking import Stretch
from bench.lib.crowds import Told, check_crowd, run_crowd
from bench.lib.harness import (
    NEVER,
    USUAL,
    Bench,
    Common,
    lay_out_members,
    make_app,
    open_bench,
    stop_without,
    write,
)
from bench.lib.measuring import Load, benchmark, check_load, level, settled
from bench.report.results import Row
from quorate.client.resp import open_resp
from quorate.local.cluster import LocalCluster, MemberProcess, open_cluster
from quorate.local.survey import SETTLED, ask
from quorate.node.config.config import SnapshotPolicy

MEMBERS: Final = 3
CLIENTS: Final = 64
AWAY: Final = Load("set", 16, 16, value_bytes=1024, keys=100_000)
LEAD_SECONDS: Final = 5.0
USUAL_SECONDS: Final = 15.0
SETTLING_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 300.0
MB: Final = 1_000_000

SNAPSHOT: Final = "a snapshot"
LOG: Final = "the log"
KEEPER: Final = MEMBERS - 1
"""The member that always keeps its whole log; it never leads, and is never killed."""

KEEPING: Final = {SNAPSHOT: SnapshotPolicy(keep=100), LOG: NEVER}
"""The ways to catch up, with the keeper's policy: it takes snapshots like the other members."""


@attrs.define
class Race:
    """The positions of a follower and of the leader over time."""

    began: float = attrs.field(factory=trio.current_time)
    seen: list[tuple[float, int, int]] = attrs.field(factory=list[tuple[float, int, int]])
    started: float = 0.0
    up: float = 0.0
    met: float = 0.0

    async def run(self, leader: MemberProcess, follower: MemberProcess) -> None:
        """Start the follower, and poll until it has reached the leader."""
        await trio.sleep(LEAD_SECONDS)
        self.started = trio.current_time() - self.began
        await follower.start()
        while not self.met:
            await trio.sleep(0.1)
            status = (await ask(leader.address)).status
            own = (await ask(follower.address)).status
            if status is None or own is None:
                continue
            now = trio.current_time() - self.began
            self.seen.append((now, status.append_position, own.append_position))
            self.up = self.up or now
            if own.state == SETTLED and own.append_position >= status.commit_position - MB:
                self.met = now


def rate_between(told: Told, begin: float, end: float) -> float:
    """Return acknowledged SETs a second in the lines of a time range; 0 without lines."""
    lines = told.lines[:-1]
    before = [0.0, *(line["at"] for line in lines)]
    inside = [
        (line["answers"], line["at"] - since)
        for line, since in zip(lines, before, strict=False)
        if since >= begin and line["at"] <= end
    ]
    return sum(n for n, _ in inside) / sum(took for _, took in inside) if inside else 0.0


async def fall_behind(
    there: Sequence[MemberProcess], leader: MemberProcess, megabytes: int
) -> tuple[Stretch, int]:
    """Write some MB of log while a member is away; return the stretch, and the number of writes."""
    position = begin = await level(there)
    writes = 0
    while (left := megabytes * MB - (position - begin)) > 0:
        requests = AWAY.whole(left // (AWAY.value_bytes + 96) + 1)
        await benchmark(AWAY, leader.address.client_port, requests)
        position = await level(there)
        writes += requests
    return Stretch(begin, position), writes


async def under_load(leader: MemberProcess, follower: MemberProcess) -> tuple[Race, Told]:
    """Let the follower catch up while clients write, and continue for some seconds."""
    race, over = Race(), trio.Event()
    told: list[Told] = []

    async def load() -> None:
        port = leader.address.client_port
        told.append(await run_crowd(port, CLIENTS, LONGEST_SECONDS, name="race", until=over))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load)
        race.began = trio.current_time()
        await race.run(leader, follower)
        await trio.sleep(SETTLING_SECONDS + USUAL_SECONDS)
        over.set()
    return race, told[0]


async def measure(place: Path, megabytes: int, way: str) -> Row:
    """Measure one catch-up; return the results."""
    configs = lay_out_members(place, MEMBERS, snapshot=NEVER if way == LOG else None)
    write(keeper := attrs.evolve(configs[KEEPER], snapshot=KEEPING[way]))
    configs[KEEPER] = keeper
    async with open_cluster(configs) as cluster:
        leader, position = await leader_of(cluster)
        follower = next(one for one in cluster.members[:KEEPER] if one is not leader)
        port = leader.address.client_port
        whole = await run_crowd(port, CLIENTS, USUAL_SECONDS, name="whole")
        await follower.kill()
        there = [one for one in cluster.members if one is not follower]
        away, writes = await fall_behind(there, leader, megabytes)
        race, told = await under_load(leader, follower)
        end = (await settled(cluster))[0].append_position
        keepers = cluster.members if way == LOG else cluster.members[KEEPER:]
        rest = [one.address for one in cluster.members if one not in keepers]
        before, after = Stretch(position, away.begin), Stretch(away.end, end)
        await check_crowd(whole, keepers, before, addresses=rest)
        await check_load(keepers, AWAY, away, writes, rest)
        await check_crowd(told, keepers, after, addresses=rest)
    came = race.seen[-1][2] - away.begin
    during = rate_between(told, race.started, race.met)
    rate = rate_between(whole, 1, USUAL_SECONDS)
    return {
        "way": way,
        "behind_mb": megabytes,
        "caught_up_mb": came / MB,
        "start_s": race.up - race.started,
        "catch_up_s": race.met - race.up,
        "mb_per_s": came / MB / (race.met - race.up),
        "rate_whole": rate,
        "rate_away": rate_between(told, 1, race.started),
        "rate_during": during,
        "during_to_whole": during / rate,
        "rate_after": rate_between(told, race.met + SETTLING_SECONDS, LONGEST_SECONDS),
        "errors": sum(told.errors.values()) + told.dropped,
        "samples": {"positions": race.seen, "lines": told.lines},
    }


async def leader_of(cluster: LocalCluster) -> tuple[MemberProcess, int]:
    """Return the leader, which must not be the keeper, and the end of the log."""
    while (status := (await settled(cluster))[0]).member_id == KEEPER:
        at = cluster.members[KEEPER].address
        async with open_resp(at.host, at.client_port) as client:
            await client.call("QUORATE.CONTROL", "transfer", "0")
    leader = next(one for one in cluster.members if one.member_id == status.member_id)
    return leader, status.append_position


async def measure_all(bench: Bench, megabytes: int, rounds: int) -> None:
    """Measure several catch-ups of each way, in turns; keep the median one of each."""
    found: dict[str, list[Row]] = {way: [] for way in KEEPING}
    for n in range(rounds):
        for way, rows in found.items():
            rows.append(await measure(bench.place / f"{way.split()[-1]}{n}", megabytes, way))
    for rows in found.values():
        rows.sort(key=lambda row: row["during_to_whole"])
        ranges = {
            f"{name}_range": [min(row[name] for row in rows), max(row[name] for row in rows)]
            for name in ("mb_per_s", "during_to_whole")
        }
        bench.found({**rows[rounds // 2], **ranges})


app = make_app()


@app.default
async def main(*, options: Common = USUAL, megabytes: int = 1000, rounds: int = 5) -> None:
    """Measure catch-ups under load.

    Parameters
    ----------
    megabytes
        How far the follower is behind when it is started, in MB (10^6 bytes).
    rounds
        Number of catch-ups of each way.
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        megabytes, rounds = 100, 1
    with open_bench("catchup", options, members=MEMBERS, clients=CLIENTS, rounds=rounds) as bench:
        await measure_all(bench, megabytes, rounds)


if __name__ == "__main__":
    sys.exit(app())
