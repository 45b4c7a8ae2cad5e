"""Members come and go under load: how long writes pause, and what clients see of it.

Real processes on this machine; each member has its own address of the loopback network. Clients set
new keys at the same time, one write in flight each (:mod:`bench.lib.writers`).

- **walk**: a cluster of three moves onto three new machines. One member after the other is
  replaced, the leader too, with `quorate member replace`.
- **leader**: the leader of three is removed, and another member added, many times.
- **wrong**: a member is added at an address where nobody listens, and writes go on.

The pause is the longest time in which no client got a write acknowledged, from the command on. The
slowest write is what one client waits for, with all its retries. At the end each acknowledged key
is read from each member.

If this machine has etcd, it does the same, in turns with ours: `member add --learner`, `member
promote`, `member remove`. A leader is removed as it is, and after `move-leader`. Its clients use
its JSON gateway, and run in the same program as our RESP clients. Ours are also run with redis-py's
`RedisCluster`, whose default retries must hide every error.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import attrs
import trio
from cyclopts import Parameter

from bench.lib.changing import MEMBERS, Changing, Ended, open_etcd, open_quorate
from bench.lib.harness import USUAL, Bench, Common, make_app, open_bench
from bench.lib.written import Kind, Written, open_writers
from bench.report.results import Row

CLIENTS: Final = 64
STEADY_SECONDS: Final = 1.5
"""Writes before the first change and after the last one. If smaller, the rate before is a guess."""

AFTER_SECONDS: Final = 2.0
"""Writes after the removal of a leader. If smaller, a pause may not have ended; etcd's default
election takes up to two seconds."""

WRONG_SECONDS: Final = 3.0
"""Writes with a wrong address, and without. If smaller, the rates of a busy machine differ more."""

LONGEST_SECONDS: Final = 240.0
"""The clients end after this. A walk takes half a minute."""

Part: TypeAlias = Literal["walk", "leader", "wrong"]
PARTS: Final[tuple[Part, ...]] = ("walk", "leader", "wrong")


@attrs.frozen
class Case:
    """A cluster and its clients.

    Args:
        name: in the tables.
        opener: runs the cluster in a directory.
        kind: of the clients.
    """

    name: str
    opener: Callable[[Path], AbstractAsyncContextManager[Changing]]
    kind: Kind


OURS: Final = (
    Case("quorate, redis-py", open_quorate, "redis-py"),
    Case("quorate", open_quorate, "resp"),
)
THEIRS: Final = (
    Case("etcd", partial(open_etcd, moves=False), "etcd"),
    Case("etcd, move-leader first", partial(open_etcd, moves=True), "etcd"),
)


@attrs.frozen
class Change:
    """What clients saw of one change, or of one walk.

    Args:
        pause_s: the longest time without an acknowledged write.
        steady_s: the same before the change, as a measure of the machine.
        slowest_s: the slowest write of one client.
        rate_before: writes a second before the change.
        rate: writes a second from the change on.
        errors: by their text.
        cut: connections that ended in place of a reply.
        silent: writes without a reply in time.
        change_s: seconds of each replacement or removal, for the operator.
        statuses: with which the removed members ended.
        end_s: seconds until they ended.
        writes: number of acknowledged writes, all of which were found at each member.
        load: the load average at the end.
    """

    pause_s: float
    steady_s: float
    slowest_s: float
    rate_before: float
    rate: float
    errors: dict[str, int]
    cut: int
    silent: int
    change_s: Sequence[float]
    statuses: Sequence[int]
    end_s: Sequence[float]
    writes: int
    load: float


@attrs.define
class Clock:
    """When things happened (`time.monotonic`).

    Args:
        began: the first change.
        ended: the last moment with clients.
        changes: seconds of each change.
    """

    began: float = 0.0
    ended: float = 0.0
    changes: list[float] = attrs.field(factory=list[float])

    async def steady(self) -> None:
        """Let clients write, and note when that ends."""
        await trio.sleep(STEADY_SECONDS)
        self.began = time.monotonic()

    async def change(self, call: Callable[[], Any]) -> None:
        """Time a change."""
        began = time.monotonic()
        await call()
        self.changes.append(time.monotonic() - began)

    async def after(self, seconds: float) -> None:
        """Let clients write on, and note when that ends."""
        await trio.sleep(seconds)
        self.ended = time.monotonic()

    def seen(self, written: Written, gone: Sequence[Ended]) -> Change:
        """Return what clients saw."""
        return Change(
            pause_s=written.pause(self.began, self.ended),
            steady_s=written.pause(self.began - STEADY_SECONDS, self.began),
            slowest_s=written.slowest,
            rate_before=written.rate(self.began - STEADY_SECONDS, self.began),
            rate=written.rate(self.began, self.ended),
            errors=written.errors,
            cut=written.cut,
            silent=written.silent,
            change_s=self.changes,
            statuses=[one.status for one in gone],
            end_s=[one.seconds for one in gone],
            writes=len(written.acknowledged),
            load=os.getloadavg()[0],
        )


async def walk(case: Case, place: Path, name: str) -> Change:
    """Replace all members of a new cluster, one after the other, and check all writes."""
    clock = Clock()
    async with case.opener(place / name) as cluster:
        old = cluster.members
        addresses = [*cluster.addresses, *cluster.next_addresses(MEMBERS)]
        async with open_writers(
            case.kind, place, name, addresses, clients=CLIENTS, seconds=LONGEST_SECONDS
        ) as writers:
            await clock.steady()
            for member in old:
                await clock.change(partial(cluster.replace, member))
            await clock.after(STEADY_SECONDS)
        gone = [await cluster.ended(member) for member in old]
        await cluster.check(writers.found)
    shutil.rmtree(place / name)
    return clock.seen(writers.found, gone)


async def lose_leader(case: Case, cluster: Changing, place: Path, name: str) -> Change:
    """Remove the leader once, check all writes, and add another member."""
    clock, leader = Clock(), await cluster.leader()
    # A client that begins at the leader has to leave it, as one that begins elsewhere has not.
    async with open_writers(
        case.kind, place, name, cluster.addresses, clients=CLIENTS, seconds=LONGEST_SECONDS
    ) as writers:
        await clock.steady()
        await clock.change(partial(cluster.remove, leader))
        await clock.after(AFTER_SECONDS)
    gone = [await cluster.ended(leader)]
    await cluster.add()
    await cluster.check(writers.found)
    return clock.seen(writers.found, gone)


async def misdirect(case: Case, cluster: Changing, place: Path, name: str) -> tuple[float, float]:
    """Add a member at a wrong address; return the writes a second without it, and with it."""
    async with open_writers(
        case.kind, place, name, cluster.addresses, clients=CLIENTS, seconds=LONGEST_SECONDS
    ) as writers:
        stretches = [await _stretch()]
        await cluster.add_wrong()
        stretches.append(await _stretch())
        await cluster.remove_wrong()
        stretches.append(await _stretch())
    await cluster.check(writers.found)
    before, during, after = (writers.found.rate(*stretch) for stretch in stretches)
    return statistics.mean([before, after]), during


async def _stretch() -> tuple[float, float]:
    """Let clients write for a while; return its begin and end."""
    began = time.monotonic()
    await trio.sleep(WRONG_SECONDS)
    return began, time.monotonic()


def together(part: Part, case: Case, changes: Sequence[Change]) -> Row:
    """Return the line of a table."""
    pauses = [one.pause_s for one in changes]
    seconds = [each for one in changes for each in one.change_s]
    statuses = Counter(status for one in changes for status in one.statuses)
    errors = sum((Counter(one.errors) for one in changes), Counter[str]())
    return {
        part: case.name,
        "times": len(changes),
        "median_s": statistics.median(pauses),
        "longest_s": max(pauses),
        "steady_s": max(one.steady_s for one in changes),
        "slowest_s": max(one.slowest_s for one in changes),
        "errors": errors.total(),
        "texts": "; ".join(f"{count} {text}" for text, count in errors.most_common()),
        "cut": sum(one.cut for one in changes),
        "silent": sum(one.silent for one in changes),
        "change_s": statistics.median(seconds),
        "longest_change_s": max(seconds),
        "statuses": ", ".join(f"{status} ({count})" for status, count in statuses.items()),
        "end_s": max(each for one in changes for each in one.end_s),
        "rate_before": statistics.median(one.rate_before for one in changes),
        "rate": statistics.median(one.rate for one in changes),
        "writes": sum(one.writes for one in changes),
        "load": max(one.load for one in changes),
        "runs": [attrs.asdict(one) for one in changes],
    }


def tell(bench: Bench, what: str, change: Change) -> None:
    """Print what clients saw of one change."""
    errors = f", {change.errors}" if change.errors else ""
    bench.console.print(
        f"[dim]{what}: {1000 * change.pause_s:.0f} ms ({1000 * change.steady_s:.0f} before), "
        f"slowest write {1000 * change.slowest_s:.0f} ms, {change.rate:,.0f}/s (before "
        f"{change.rate_before:,.0f}), {change.cut} cut off, {sum(change.errors.values())} errors, "
        f"{change.silent} silent, changes of "
        f"{', '.join(f'{each:.1f}' for each in change.change_s)} s, ended with "
        f"{[*change.statuses]}, load {change.load:.1f}{errors}[/dim]",
        highlight=False,
        markup=True,
    )


async def walks(bench: Bench, cases: Sequence[Case], turns: int) -> None:
    """Have each cluster walk, in turns."""
    found: dict[str, list[Change]] = {case.name: [] for case in cases}
    for turn in range(turns):
        for case in cases:
            change = await walk(case, bench.place, f"walk-{turn}")
            tell(bench, f"walk {turn + 1}/{turns}, {case.name}", change)
            found[case.name].append(change)
    bench.rows += [together("walk", case, found[case.name]) for case in cases]


async def leaders(bench: Bench, cases: Sequence[Case], times: int) -> None:
    """Have each cluster lose its leader, many times."""
    for case in cases:
        changes: list[Change] = []
        async with case.opener(bench.place / "leader") as cluster:
            for turn in range(times):
                changes.append(await lose_leader(case, cluster, bench.place, f"leader-{turn}"))
                tell(bench, f"leader {turn + 1}/{times}, {case.name}", changes[-1])
        shutil.rmtree(bench.place / "leader")
        bench.rows.append(together("leader", case, changes))


async def wrongs(bench: Bench, cases: Sequence[Case], turns: int) -> None:
    """Have each cluster get a member at a wrong address, in turns."""
    for case in cases:
        pairs: list[tuple[float, float]] = []
        async with case.opener(bench.place / "wrong") as cluster:
            await cluster.leader()
            pairs += [
                await misdirect(case, cluster, bench.place, f"wrong-{turn}")
                for turn in range(turns)
            ]
        shutil.rmtree(bench.place / "wrong")
        without, during = zip(*pairs, strict=True)
        bench.found(
            {
                "wrong": case.name,
                "times": turns,
                "without": statistics.median(without),
                "with": statistics.median(during),
                "ratio": statistics.median(b / a for a, b in pairs),
                "load": os.getloadavg()[0],
                "runs": pairs,
            }
        )


def cases_of(bench: Bench, *, ours_only: bool) -> tuple[Case, ...]:
    """Return the clusters that this machine can run."""
    missing = [name for name in ("etcd", "etcdctl") if shutil.which(name) is None]
    if ours_only:
        return OURS
    if missing:
        bench.console.print(
            f"no etcd: {', '.join(missing)} not found; on Debian: apt install etcd-server "
            "etcd-client"
        )
        return OURS
    return OURS + THEIRS


app = make_app()


@app.default
async def main(
    *,
    options: Common = USUAL,
    turns: int = 3,
    times: int = 20,
    part: Annotated[tuple[Part, ...], Parameter(consume_multiple=True, negative="")] = PARTS,
    ours_only: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Measure what clients see while members come and go.

    Parameters
    ----------
    turns
        How often each cluster walks onto new machines, and gets a member at a wrong address.
    times
        How often the leader is removed.
    part
        What to measure. The results of a part are written to the directory of temporary files.
    ours_only
        Leave out etcd.
    """
    if options.quick:
        turns, times = 1, 3
    if set(part) != set(PARTS) or ours_only:
        options = attrs.evolve(options, figures=Path(tempfile.gettempdir()))
    with open_bench("members", options, members=MEMBERS, clients=CLIENTS, turns=turns) as bench:
        cases = cases_of(bench, ours_only=ours_only)
        if "walk" in part:
            await walks(bench, cases, turns)
        if "leader" in part:
            await leaders(bench, cases, times)
        if "wrong" in part:
            plain = [case for case in cases if case.kind != "redis-py" and "first" not in case.name]
            await wrongs(bench, plain, turns)


if __name__ == "__main__":
    sys.exit(app())
