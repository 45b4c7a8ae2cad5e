"""Other products compared with ours: the same load on the same machine, in turns.

The clusters have three members each: quorate, quorate with leases, etcd and RedisRaft, as far as
the machine has them (:mod:`competitors`). One of ours and one of theirs are up at a time, and only
one of them is loaded. An idle cluster also uses the processors, which hurts a busy-waiting one
most. Each kind of load runs on both clusters before the next kind, so that a noisy minute affects
both alike. The table shows the medians, and the median of the ratios of ours to theirs, by turn.
After each run, all members of the cluster must have all acknowledged writes. For each cluster the
table has the members' processor time; for ours also writes in a batch, and the leader's commits.

- etcd: Debian's `etcd-server` and `etcd-client`, loaded by `etcd_load`, which is built here against
  Debian's `golang-etcd-server-dev` with `golang-go`.
- RedisRaft: `--redisraft` names its module, `redisraft.so`, of a version that the machine's
  `redis-server` loads (for 7.0, one of the summer of 2022). Loaded by `redis-benchmark`, as ours.

These rows load our port for clients of Redis. If etcd is there, the rows of our port for clients of
etcd follow (:mod:`bench.runs.etcd`).
"""

import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import attrs
from cyclopts import Parameter

from bench.lib.competitors import BOTH, Peer, open_quorate, open_redisraft
from bench.lib.etcd_api import build_etcd_load, open_etcd
from bench.lib.harness import USUAL, Common, make_app, open_bench, stop_without
from bench.lib.measuring import Load, Run, median
from bench.lib.turns import Pair, in_turns
from bench.report.results import Row
from bench.report.sections import LEASED, OURS
from bench.runs import etcd
from bench.runs.cluster import CLIENTS, MEMBERS

LOADS: Final = (
    *(Load(command, clients, 1) for command in BOTH for clients in CLIENTS),
    Load("set", 64, 16),
)
Opener: TypeAlias = Callable[[], AbstractAsyncContextManager[Peer]]


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
                        pairs += await in_turns(
                            LOADS,
                            ours,
                            theirs,
                            runs=runs,
                            seconds=seconds,
                            console=bench.console,
                        )
                        await ours.compare()
                    shutil.rmtree(directory)
                await theirs.compare()
        bench.rows += rows_of(pairs)
    if loader is not None:
        await etcd.main(options=options)


if __name__ == "__main__":
    sys.exit(app())
