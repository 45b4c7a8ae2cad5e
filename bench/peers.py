"""Peers beside us: the same load on the same machine, in turns.

Three members each of quorate, once more with leases, of etcd and of RedisRaft, as far as the
machine has them
(:mod:`peer_clusters`). They are all up for the whole time, but one is loaded at a time; each kind
of load goes round them before the next, so that a noisy minute hits all alike. Shown are the
medians, and the median of the ratios of ours to theirs, turn by turn. After each run all members
of the cluster must have as many writes more as were acknowledged.

- etcd: Debian's `etcd-server` and `etcd-client`, loaded by `etcd_load/main.go`, which is built
  here against Debian's `golang-etcd-server-dev` with `golang-go`.
- RedisRaft: `--redisraft` names its module, `redisraft.so`, of a version that the machine's
  `redis-server` loads (for 7.0, one of the summer of 2022). Loaded by `redis-benchmark`, as ours.
"""

import os
import shutil
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import attrs
import trio
from cluster import CLIENTS, MEMBERS
from cyclopts import Parameter
from harness import USUAL, Common, make_app, open_bench, stop_without
from measuring import Load, Run, median, processor_seconds
from peer_clusters import BOTH, Peer, open_etcd, open_quorate, open_redisraft
from results import Row
from rich.console import Console
from sections import LEASED, OURS

LOADS: Final = (
    *(Load(command, clients, 1) for command in BOTH for clients in CLIENTS),
    Load("set", 64, 16),
)
Found: TypeAlias = dict[Load, dict[str, list[Run]]]
Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[Peer]]
GO: Final = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}


async def build_etcd_load(directory: Path, console: Console) -> Path | None:
    """Build what loads etcd; None, with words, if this machine lacks something for it."""
    missing = [name for name in ("etcd", "etcdctl", "go") if shutil.which(name) is None]
    if missing:
        console.print(
            f"no etcd: {', '.join(missing)} not found; on Debian: apt install etcd-server "
            "etcd-client golang-go golang-etcd-server-dev"
        )
        return None
    built = directory / "etcd-load"
    source = Path(__file__).parent / "etcd_load" / "main.go"
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
    """What opens each cluster that this machine has."""
    found: list[Opener] = [
        partial(open_quorate, place / "quorate"),
        partial(open_quorate, place / "leased", leased=True),
    ]
    if loader is not None:
        found.append(partial(open_etcd, place / "etcd", loader))
    if redisraft is not None:
        found.append(partial(open_redisraft, place / "redisraft", redisraft.absolute()))
    return found


async def measure(peer: Peer, load: Load, seconds: float) -> Run:
    """One run of about so many seconds, and a look for what it wrote."""
    guess = await peer.run(load, load.trial())
    requests = max(load.trial(), load.whole(int(guess.rate * seconds)))
    before = [*map(processor_seconds, peer.pids)]
    figures = await peer.run(load, requests)
    leader, *followers = (
        (processor_seconds(pid) - spent) / requests * 1e6
        for pid, spent in zip(peer.pids, before, strict=True)
    )
    await peer.check(load, (load.trial() + requests) * (load.command == "set"))
    return Run(**attrs.asdict(figures), leader_us=leader, follower_us=statistics.mean(followers))


async def run_all(peers: list[Peer], runs: int, seconds: float, console: Console) -> Found:
    """Measure every load, in turns."""
    found: Found = {load: {peer.name: [] for peer in peers} for load in LOADS}
    for turn in range(runs):
        for load in LOADS:
            for peer in peers:
                if load.command not in peer.commands:
                    continue
                if load.pipeline > 1 and not peer.pipelines:
                    continue
                run = await measure(peer, load, seconds)
                found[load][peer.name].append(run)
                console.print(
                    f"[dim]{turn + 1}/{runs} {load.command} {load.clients} clients, pipeline "
                    f"{load.pipeline}: {peer.name} {run.rate:,.0f}/s[/dim]"
                )
    return found


def ratio(ours: list[Run], theirs: list[Run], of: Callable[[Run], float]) -> float:
    """The median of the ratios of one figure, turn by turn."""
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(of(our) / of(their) for our, their in pairs)


def rows_of(found: Found) -> list[Row]:
    """A line for each load and cluster: medians, ratios, and each run."""
    return [
        {
            **attrs.asdict(load),
            "cluster": name,
            **attrs.asdict(median(runs)),
            "ours_to_theirs": ratio(by_name[OURS], runs, lambda run: run.rate),
            "p99_ours_to_theirs": ratio(by_name[OURS], runs, lambda run: run.p99_ms),
            "leased_to_theirs": ratio(by_name[LEASED], runs, lambda run: run.rate)
            if by_name[LEASED]
            else None,
            "runs": [*map(attrs.asdict, runs)],
        }
        for load, by_name in found.items()
        for name, runs in by_name.items()
        if runs
    ]


app = make_app()


@app.default
async def main(
    *,
    options: Common = USUAL,
    runs: int = 5,
    seconds: float = 3.0,
    redisraft: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> None:
    """Measure us beside those peers that this machine has.

    Parameters
    ----------
    runs
        Runs of each load; the median is shown.
    seconds
        About how long each run lasts.
    redisraft
        Its module, redisraft.so; left out if not given.
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        runs, seconds = 1, 1.0
    with open_bench("peers", options, members=MEMBERS, runs=runs, seconds=seconds) as bench:
        loader = await build_etcd_load(bench.place, bench.console)
        async with AsyncExitStack() as stack:
            peers = [
                await stack.enter_async_context(opener())
                for opener in openers(bench.place, loader, redisraft)
            ]
            bench.rows += rows_of(await run_all(peers, runs, seconds, bench.console))
            for peer in peers:
                await peer.compare()


if __name__ == "__main__":
    sys.exit(app())
