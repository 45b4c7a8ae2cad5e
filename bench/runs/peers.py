"""Other products compared with ours: the same load on the same machine, in turns.

The clusters have three members each: quorate, quorate with leases, etcd and RedisRaft, as far as
the machine has them (:mod:`competitors`). One of ours and one of theirs are up at a time, and only
one of them is loaded. An idle cluster also uses the processors, which hurts a busy-waiting one
most. Each kind of load runs on both clusters before the next kind, so that a noisy minute affects
both alike. The table shows the medians, and the median of the ratios of ours to theirs, by turn.
After each run, all members of the cluster must have all acknowledged writes. For each cluster the
table has the members' processor time; for ours also writes in a batch, and the leader's commits.

- etcd: Debian's `etcd-server` and `etcd-client`, loaded by `etcd_load/main.go`, which is built
  here against Debian's `golang-etcd-server-dev` with `golang-go`.
- RedisRaft: `--redisraft` names its module, `redisraft.so`, of a version that the machine's
  `redis-server` loads (for 7.0, one of the summer of 2022). Loaded by `redis-benchmark`, as ours.
"""

import os
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import attrs
import trio
from cyclopts import Parameter
from rich.console import Console

from bench.lib.competitors import BOTH, Peer, open_etcd, open_quorate, open_redisraft
from bench.lib.harness import USUAL, Common, make_app, open_bench, stop_without
from bench.lib.measuring import Load, Run, median, processor_seconds, with_batches
from bench.report.results import Row
from bench.report.sections import LEASED, OURS
from bench.runs.cluster import CLIENTS, MEMBERS

LOADS: Final = (
    *(Load(command, clients, 1) for command in BOTH for clients in CLIENTS),
    Load("set", 64, 16),
)
Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[Peer]]
GO: Final = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}


async def build_etcd_load(directory: Path, console: Console) -> Path | None:
    """Build the load program for etcd; None, after a message, if something for it is missing."""
    missing = [name for name in ("etcd", "etcdctl", "go") if shutil.which(name) is None]
    if missing:
        console.print(
            f"no etcd: {', '.join(missing)} not found; on Debian: apt install etcd-server "
            "etcd-client golang-go golang-etcd-server-dev"
        )
        return None
    built = directory / "etcd-load"
    source = Path(__file__).parents[1] / "lib" / "etcd_load" / "main.go"
    done = await trio.run_process(
        ["go", "build", "-o", str(built), str(source)],
        env=os.environ | GO | {"GOCACHE": str(directory / "go")},
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        console.print(f"no etcd: its load is not built: {done.stderr.decode().strip()}")
        return None
    return built


def openers(place: Path, loader: Path | None, redisraft: Path | None) -> list[Opener]:
    """Return how to open each peer that this machine has; first the one that may fail to start."""
    found: list[Opener] = []
    if redisraft is not None:
        found.append(partial(open_redisraft, place / "redisraft", redisraft.absolute()))
    if loader is not None:
        found.append(partial(open_etcd, place / "etcd", loader))
    if not found:
        sys.exit("neither etcd nor RedisRaft found; expected one of them")
    return found


@attrs.frozen
class Pair:
    """The runs of one of our clusters and one of theirs under a load, by turn."""

    load: Load
    our_name: str
    their_name: str
    ours: list[Run] = attrs.field(factory=list[Run])
    theirs: list[Run] = attrs.field(factory=list[Run])

    def ratio(self, of: Callable[[Run], float]) -> float:
        """Return the median of the ratios of ours to theirs in one figure."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return statistics.median(of(our) / of(their) for our, their in pairs)


async def measure(peer: Peer, load: Load, seconds: float) -> Run:
    """Run a load for about `seconds`, and check its writes."""
    guess = await peer.run(load, load.trial())
    requests = max(load.trial(), load.whole(int(guess.rate * seconds)))
    status = peer.status if load.command == "set" else None
    said = await status() if status else None
    before = [*map(processor_seconds, peer.pids)]
    figures = await peer.run(load, requests)
    leader, *followers = (
        (processor_seconds(pid) - spent) / requests * 1e6
        for pid, spent in zip(peer.pids, before, strict=True)
    )
    run = Run(**attrs.asdict(figures), leader_us=leader, follower_us=statistics.mean(followers))
    if status and said:
        run = with_batches(run, requests, said, await status())
    await peer.check(load, (load.trial() + requests) * (load.command == "set"))
    return run


async def in_turns(
    ours: Peer, theirs: Peer, runs: int, seconds: float, console: Console
) -> list[Pair]:
    """Run every load that both clusters support, in turns."""
    loads = [
        load
        for load in LOADS
        if load.command in ours.commands
        and load.command in theirs.commands
        and (load.pipeline == 1 or theirs.pipelines)
    ]
    pairs = [Pair(load, ours.name, theirs.name) for load in loads]
    for turn in range(runs):
        for pair in pairs:
            for peer, taken in ((ours, pair.ours), (theirs, pair.theirs)):
                taken.append(await measure(peer, pair.load, seconds))
                console.print(
                    f"[dim]{turn + 1}/{runs} {pair.load.command} {pair.load.clients} clients, "
                    f"pipeline {pair.load.pipeline}: {peer.name} {taken[-1].rate:,.0f}/s[/dim]"
                )
    return pairs


def rows_of(pairs: list[Pair]) -> Iterator[Row]:
    """Return a line for each load and cluster: medians and each run, for ours over all pairs.

    The line of a peer also has our figures from its pairs, without and with leases, and the ratios.
    """
    for load in LOADS:
        under = [pair for pair in pairs if pair.load == load]
        for name in (OURS, LEASED):
            runs = [run for pair in under if pair.our_name == name for run in pair.ours]
            if runs:
                yield row_of(load, name, runs)
        leased = {pair.their_name: pair for pair in under if pair.our_name == LEASED}
        for pair in under:
            if pair.our_name == OURS:
                row = row_of(load, pair.their_name, pair.theirs) | beside("ours", pair)
                row["p99_ours_to_theirs"] = pair.ratio(lambda run: run.p99_ms)
                if other := leased.get(pair.their_name):
                    row |= beside("leased", other)
                yield row


def row_of(load: Load, cluster: str, runs: list[Run]) -> dict[str, object]:
    """Return the figures of a cluster."""
    each = [*map(attrs.asdict, runs)]
    return {**attrs.asdict(load), "cluster": cluster, **attrs.asdict(median(runs)), "runs": each}


def beside(which: str, pair: Pair) -> dict[str, object]:
    """Return our figures in a pair, and each run of the two clusters."""
    rates = [(our.rate, their.rate) for our, their in zip(pair.ours, pair.theirs, strict=True)]
    return {
        f"{which}_to_theirs": pair.ratio(lambda run: run.rate),
        f"{which}_rate": statistics.median(our for our, _ in rates),
        f"{which}_runs": rates,
    }


app = make_app()


@app.default
async def main(
    *,
    options: Common = USUAL,
    runs: int = 5,
    seconds: float = 3.0,
    redisraft: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> None:
    """Measure quorate and those peers that this machine has.

    Parameters
    ----------
    runs
        Number of runs of each load; the median is shown.
    seconds
        About how long each run lasts.
    redisraft
        The file of RedisRaft's module, redisraft.so; without it RedisRaft is left out.
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        runs, seconds = 1, 1.0
    with open_bench("peers", options, members=MEMBERS, runs=runs, seconds=seconds) as bench:
        loader = await build_etcd_load(bench.place, bench.console)
        pairs: list[Pair] = []
        directory = bench.place / "quorate"
        for opener in openers(bench.place, loader, redisraft):
            async with opener() as theirs:
                for leased in (False, True):
                    async with open_quorate(directory, leased=leased) as ours:
                        pairs += await in_turns(ours, theirs, runs, seconds, bench.console)
                        await ours.compare()
                    shutil.rmtree(directory)
                await theirs.compare()
        bench.rows += rows_of(pairs)


if __name__ == "__main__":
    sys.exit(app())
