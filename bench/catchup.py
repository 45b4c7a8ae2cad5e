"""A follower that is far behind catches up while clients write.

A follower is killed. The others write until it is so many MB of log behind; the whole log is kept,
so that it comes back by the log and not by a snapshot. Then 64 clients (`crowd.py`) write without
end, and after a while it is started. Its append position is asked for again and again until it has
met the leader's. The clients' rate is told before the kill, while it is away, while it catches up,
and afterwards, when it has had some seconds to write its tables. In the end its log must be that of
the others, with all that was acknowledged, and so must be its state.
"""

import sys
from collections.abc import Sequence
from typing import Final

import attrs
import trio
from checking import Stretch
from crowds import Told, check_crowd, run_crowd
from harness import (
    NEVER,
    USUAL,
    Bench,
    Common,
    lay_out_members,
    make_app,
    open_bench,
    stop_without,
)
from measuring import Load, benchmark, check_load, level, settled

from quorate.cluster import MemberProcess, open_cluster
from quorate.status import SETTLED, ask

MEMBERS: Final = 3
CLIENTS: Final = 64
AWAY: Final = Load("set", 16, 16, value_bytes=1024, keys=100_000)
LEAD_SECONDS: Final = 5.0
USUAL_SECONDS: Final = 15.0
SETTLING_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 300.0
MB: Final = 1_000_000


@attrs.define
class Race:
    """Where a follower is, and the leader, at which moment of the load."""

    began: float = attrs.field(factory=trio.current_time)
    seen: list[tuple[float, int, int]] = attrs.field(factory=list[tuple[float, int, int]])
    started: float = 0.0
    up: float = 0.0
    met: float = 0.0

    async def run(self, leader: MemberProcess, follower: MemberProcess) -> None:
        """Start the follower, and look until it has met the leader."""
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
    """Acknowledged SETs a second in the lines that lie within; 0 if there are none."""
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
    """Write so many MB of log with a member away; return where, and how many writes it took."""
    position = begin = await level(there)
    writes = 0
    while (left := megabytes * MB - (position - begin)) > 0:
        requests = AWAY.whole(left // (AWAY.value_bytes + 96) + 1)
        await benchmark(AWAY, leader.address.client_port, requests)
        position = await level(there)
        writes += requests
    return Stretch(begin, position), writes


async def under_load(leader: MemberProcess, follower: MemberProcess) -> tuple[Race, Told]:
    """Have the follower come back while clients write, and for some seconds after that."""
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


async def measure_all(bench: Bench, megabytes: int) -> None:
    """One catch-up."""
    configs = lay_out_members(bench.place, MEMBERS, snapshot=NEVER)
    async with open_cluster(configs) as cluster:
        status, _ = await settled(cluster)
        leader = next(one for one in cluster.members if one.member_id == status.member_id)
        follower = next(one for one in cluster.members if one is not leader)
        port = leader.address.client_port
        whole = await run_crowd(port, CLIENTS, USUAL_SECONDS, name="whole")
        await follower.kill()
        there = [one for one in cluster.members if one is not follower]
        away, writes = await fall_behind(there, leader, megabytes)
        race, told = await under_load(leader, follower)
        end = (await settled(cluster))[0].append_position
        await check_crowd(whole, cluster.members, Stretch(status.append_position, away.begin))
        await check_load(cluster.members, AWAY, away, writes)
        await check_crowd(told, cluster.members, Stretch(away.end, end))
    came = race.seen[-1][2] - away.begin
    during = rate_between(told, race.started, race.met)
    before = rate_between(whole, 1, USUAL_SECONDS)
    bench.found(
        {
            "behind_mb": megabytes,
            "caught_up_mb": came / MB,
            "start_s": race.up - race.started,
            "catch_up_s": race.met - race.up,
            "mb_per_s": came / MB / (race.met - race.up),
            "rate_whole": before,
            "rate_away": rate_between(told, 1, race.started),
            "rate_during": during,
            "during_to_whole": during / before,
            "rate_after": rate_between(told, race.met + SETTLING_SECONDS, LONGEST_SECONDS),
            "errors": sum(told.errors.values()) + told.dropped,
            "samples": {"positions": race.seen, "lines": told.lines},
        }
    )


app = make_app()


@app.default
async def main(*, options: Common = USUAL, megabytes: int = 1000) -> None:
    """Measure a catch-up under load.

    Parameters
    ----------
    megabytes
        How much log the follower lacks when it is started, in MB (10^6 bytes).
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        megabytes = 100
    with open_bench("catchup", options, members=MEMBERS, clients=CLIENTS) as bench:
        await measure_all(bench, megabytes)


if __name__ == "__main__":
    sys.exit(app())
