"""Storage: durable appends, replay, truncation, pruning and reopening, against three others.

The store (with its writer thread, as in a member) is compared with a raw file with fdatasync,
SQLite (WAL, synchronous=FULL) and RocksDB (synced WAL), on the same disk and with the same batches.
An append is one batch, which is encoded, written and made durable before the next one begins. So
the figure is the latency of a lone client, and group commit helps none of them. The contestants
take turns in every round, and the table shows the median of the rounds, so that a noisy minute
affects all of them alike. Whole logs are read from the page cache; reading verifies every checksum.
Everything appended, truncated and pruned is read back and checked, outside the measured time.

It must be a real disk (--dir): on a RAM disk a sync costs nothing.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import attrs
import lmdb

from bench.lib.checking import LostError
from bench.lib.harness import USUAL, Common, make_app, open_bench
from bench.lib.storage_peers import CONTESTANTS
from quorate.storage import Entry, EntryKind, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from bench.lib.storage_peers import Contestant, Opener
    from bench.report.results import Row

ENTRY_BYTES: Final = 256
BIG_BYTES: Final = 1 << 20
WARM_UP: Final = 5
LOG_ENTRIES: Final = 64
BASELINE: Final = "raw file"


@attrs.frozen
class Load:
    """A kind of append: the number and the size of the entries in each batch."""

    entries: int
    entry_bytes: int

    @property
    def name(self) -> str:
        """Return its name in the table."""
        size = "1 MiB" if self.entry_bytes == BIG_BYTES else f"{self.entry_bytes} B"
        return f"append {self.entries} x {size}"


LOADS: Final = (*(Load(n, ENTRY_BYTES) for n in (1, 16, 64, 256)), Load(1, BIG_BYTES))


@attrs.frozen
class Plan:
    """How long to measure."""

    rounds: int
    seconds: float
    log_bytes: int


DEFAULT: Final = Plan(rounds=5, seconds=0.6, log_bytes=64 << 20)
QUICK: Final = Plan(rounds=2, seconds=0.15, log_bytes=16 << 20)


@attrs.frozen
class Appends:
    """One load and one contestant; MB are 10^6 bytes of payload.

    `of_raw` is the rate divided by that of the raw file in the same round.
    """

    commits_per_s: float
    entries_per_s: float
    mb_per_s: float
    p50_us: float
    p99_us: float
    of_raw: float = 1.0


@attrs.frozen
class Handling:
    """Figures for a whole log; None if not supported. MB are 10^6 bytes of the log."""

    replay_mb_per_s: float
    truncate_ms: float
    prune_ms: float | None
    reopen_ms: float | None


def make_entries(load: Load) -> list[Entry]:
    """Return the entries of a batch; their bytes are random, so no contestant can compress them."""
    rng = Random(1)
    return [
        Entry(EntryKind.COMMAND, rng.randbytes(load.entry_bytes), 0, 1, i)
        for i in range(load.entries)
    ]


def make_log(size: int) -> Iterator[tuple[int, bytes]]:
    """Yield batches of `LOG_ENTRIES` entries with their positions, `size` bytes in all."""
    entries = make_entries(Load(LOG_ENTRIES, ENTRY_BYTES))
    position = 0
    while position < size:
        batch = encode_batch(entries, term=0, position=position, timestamp_ms=0, commit_position=0)
        yield position, batch
        position += len(batch)


async def run_appends(opener: Opener, directory: Path, load: Load, seconds: float) -> Appends:
    """Append for some seconds to a new log."""
    entries = make_entries(load)
    times: list[int] = []
    async with opener(directory) as contestant:
        position, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until or len(times) <= WARM_UP:
            begin = time.perf_counter_ns()
            batch = encode_batch(
                entries, term=0, position=position, timestamp_ms=0, commit_position=0
            )
            await contestant.append(position, batch)
            times.append(time.perf_counter_ns() - begin)
            position += len(batch)
        await check(contestant, position)
    times = times[WARM_UP:]
    commits = len(times) * 1e9 / sum(times)
    return Appends(
        commits_per_s=commits,
        entries_per_s=commits * load.entries,
        mb_per_s=commits * load.entries * load.entry_bytes / 1e6,
        p50_us=statistics.median(times) / 1e3,
        p99_us=sorted(times)[len(times) * 99 // 100] / 1e3,
    )


async def check(contestant: Contestant, size: int) -> None:
    """Read everything back.

    Raises:
        LostError: the log is not the one written.
    """
    if (found := await contestant.replay()) != size:
        raise LostError(f"{type(contestant).__name__} holds {found} bytes, expected {size}")


async def run_handling(opener: Opener, directory: Path, log: list[tuple[int, bytes]]) -> Handling:
    """Replay, truncate by a tenth, reopen, and prune a quarter of a log."""
    size = log[-1][0] + len(log[-1][1])
    end, start = log[len(log) * 9 // 10][0], log[len(log) // 4][0]
    async with opener(directory) as contestant:
        await contestant.load(log)
        begin = time.perf_counter()
        await check(contestant, size)
        replay = time.perf_counter() - begin
        begin = time.perf_counter()
        await contestant.truncate(end)
        truncate = time.perf_counter() - begin
    begin = time.perf_counter()
    async with opener(directory) as contestant:
        found = contestant.last()
        reopen = time.perf_counter() - begin
        await check(contestant, end)
        prune = await run_prune(contestant, start)
        await check(contestant, end if prune is None else end - start)
    return Handling(
        replay_mb_per_s=size / replay / 1e6,
        truncate_ms=truncate * 1e3,
        prune_ms=prune,
        reopen_ms=reopen * 1e3 if found else None,
    )


async def run_prune(contestant: Contestant, position: int) -> float | None:
    """Return the milliseconds of a pruning, None if not supported."""
    begin = time.perf_counter()
    pruned = await contestant.prune(position)
    return (time.perf_counter() - begin) * 1e3 if pruned else None


def median_appends(runs: list[Appends], raw: list[Appends]) -> Appends:
    """Return the median of each figure; `raw` holds the raw file's runs of the same rounds."""
    ratios = [one.commits_per_s / other.commits_per_s for one, other in zip(runs, raw, strict=True)]
    return Appends(
        commits_per_s=statistics.median(one.commits_per_s for one in runs),
        entries_per_s=statistics.median(one.entries_per_s for one in runs),
        mb_per_s=statistics.median(one.mb_per_s for one in runs),
        p50_us=statistics.median(one.p50_us for one in runs),
        p99_us=statistics.median(one.p99_us for one in runs),
        of_raw=statistics.median(ratios),
    )


def median_handling(runs: list[Handling]) -> Handling:
    """Return the median of each figure that exists."""

    def middle(figures: list[float | None]) -> float | None:
        there = [figure for figure in figures if figure is not None]
        return statistics.median(there) if there else None

    return Handling(
        replay_mb_per_s=statistics.median(one.replay_mb_per_s for one in runs),
        truncate_ms=statistics.median(one.truncate_ms for one in runs),
        prune_ms=middle([one.prune_ms for one in runs]),
        reopen_ms=middle([one.reopen_ms for one in runs]),
    )


async def measure(
    plan: Plan, directory: Path, console: Console
) -> tuple[dict[Load, dict[str, Appends]], dict[str, Handling]]:
    """Run everything, the contestants in turns."""
    appends: dict[Load, dict[str, Appends]] = {}
    for load in LOADS:
        console.print(f"[dim]{load.name} ...[/dim]")  # a live display needs a thread
        runs: dict[str, list[Appends]] = {name: [] for name in CONTESTANTS}
        for _ in range(plan.rounds):
            for name, opener in CONTESTANTS.items():
                with tempfile.TemporaryDirectory(dir=directory) as fresh:
                    runs[name].append(await run_appends(opener, Path(fresh), load, plan.seconds))
        raw = runs[BASELINE]
        appends[load] = {name: median_appends(one, raw) for name, one in runs.items()}
    console.print("[dim]whole logs ...[/dim]")
    log = list(make_log(plan.log_bytes))
    handled: dict[str, list[Handling]] = {name: [] for name in CONTESTANTS}
    for _ in range(plan.rounds):
        for name, opener in CONTESTANTS.items():
            with tempfile.TemporaryDirectory(dir=directory) as fresh:
                handled[name].append(await run_handling(opener, Path(fresh), log))
    return appends, {name: median_handling(runs) for name, runs in handled.items()}


def rows_of(appends: dict[Load, dict[str, Appends]], handled: dict[str, Handling]) -> list[Row]:
    """Return a line for each load and contestant, then one for each contestant's whole log."""
    raw = handled[BASELINE].replay_mb_per_s
    loads: list[Row] = [
        {"load": load.name, **attrs.asdict(load), "contestant": name, **attrs.asdict(one)}
        for load, medians in appends.items()
        for name, one in medians.items()
    ]
    logs: list[Row] = [
        {"log": name, **attrs.asdict(one), "of_raw": one.replay_mb_per_s / raw}
        for name, one in handled.items()
    ]
    return loads + logs


app = make_app()


@app.default
async def main(*, options: Common = USUAL) -> None:
    """Measure durable appends, replay and more, side by side; --dir must be on a real disk."""
    plan = QUICK if options.quick else DEFAULT
    lmdb_version = ".".join(map(str, lmdb.version()))
    with open_bench("storage", options, **attrs.asdict(plan), lmdb=lmdb_version) as bench:
        bench.rows += rows_of(*await measure(plan, bench.place, bench.console))


if __name__ == "__main__":
    sys.exit(app())
