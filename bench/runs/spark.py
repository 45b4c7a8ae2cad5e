"""The speed of the pipeline: its source on a log, and its check of histories.

A log with SETs of 100 bytes to a million keys is written, and read completely in several ways: by
plain Python in one process, by Spark from the source, and by Spark from Parquet made of it. The
source has 1, 2 and 4 partitions. Each way reads three columns, and all columns; the table has the
median of several runs. A longer log is used for a count and a sum, and for the state of the store.
The memory is the maximum of this process, its JVM and its Python workers together; shared pages
count for each process.

Histories of single keys with five clients are checked by plain Python and by Spark.

All ways must read as many rows as were written. The Parquet must have the written keys and lengths,
which proves that the source delivers them to Spark.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyspark
import trio
from pyspark.sql import DataFrame, SparkSession

from bench.lib.checking import LostError
from bench.lib.harness import USUAL, Bench, Common, make_app, open_bench
from quorate.histories.history import HistoryWriter, Operation, read_history_untrusted
from quorate.histories.linearizability import check_key
from quorate.histories.specification import Strings
from quorate.keyvalue.protocol.resp import encode_command
from quorate.pipeline import open_session
from quorate.pipeline.jobs.check import check_history
from quorate.pipeline.jobs.versions import moment_at, state
from quorate.pipeline.source.decode import decode
from quorate.pipeline.source.logs import open_log
from quorate.storage import Entry, EntryKind, Store, encode_batch

PER_BATCH: Final = 64
VALUE_BYTES: Final = 100
KEYS: Final = 1_000_000
NARROW: Final = "term bigint, position bigint, length bigint"
CLIENTS: Final = 5
PER_KEY: Final = 200
MEMORY: Final = "2g"


# The log ------------------------------------------------------------------------------------------


async def write_log(directory: Path, count: int) -> None:
    """Write a log with a number of entries."""
    store = Store.open(directory, cluster="bench", member_id=0, rng=random.Random(0))
    chance, position = random.Random(1), 0
    value = chance.randbytes(VALUE_BYTES)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for at in range(0, count + PER_BATCH, PER_BATCH):  # the last one may be uncommitted
            keys = (b"key:%07d" % chance.randrange(KEYS) for _ in range(PER_BATCH))
            entries = [
                Entry(EntryKind.COMMAND, encode_command((b"SET", key, value))) for key in keys
            ]
            data = encode_batch(
                entries, term=0, position=position, timestamp_ms=at, commit_position=position
            )
            store.append(data)
            position += len(data)
            if not at % (PER_BATCH * 256):
                await store.settled()
        await store.settled()
        nursery.cancel_scope.cancel()
    store.close()


# Memory -------------------------------------------------------------------------------------------


def family(pid: int) -> Iterator[int]:
    """Return a process and all its descendants."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def resident_mib() -> float:
    """Return the resident memory of this process and its descendants."""
    total = 0
    try:
        for pid in family(os.getpid()):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # one has just ended
        pass
    return total * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@contextmanager
def watched() -> Generator[list[float]]:
    """Read the memory five times a second; at the end, the list has the highest value."""
    done, peak = threading.Event(), [resident_mib()]

    def look() -> None:
        while not done.wait(0.2):
            peak[0] = max(peak[0], resident_mib())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def measure(bench: Bench, what: str, call: Callable[[], int], runs: int = 1) -> int:
    """Time a call that returns its number of rows; return the median of the runs."""
    rows, seconds = 0, list[float]()
    load = os.getloadavg()[0]
    with watched() as peak:
        for _ in range(runs):
            began = time.perf_counter()
            rows = call()
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    spread = {"lowest_s": min(seconds), "highest_s": max(seconds)} if runs > 1 else {}
    bench.found(
        {
            "what": what,
            "rows": rows,
            "seconds": median,
            **spread,
            "rate": rows / median,
            "peak_mib": peak[0],
            "load_before": load,
            "runs": seconds,
        }
    )
    return rows


# Reading ------------------------------------------------------------------------------------------


def plain(directory: Path, table: str, names: list[str] | None) -> int:
    """Read a log in this process, as the source does."""
    rows = 0
    with open_log(directory) as log:
        group: list[bytes] = []
        for batch in log.batches(log.facts.start, log.facts.committed):
            group.append(batch)
            if len(group) * PER_BATCH >= 8192:
                rows += decode(group, table, names=names).num_rows
                group = []
        return rows + (decode(group, table, names=names).num_rows if group else 0)


def drained(frame: DataFrame) -> None:
    """Make Spark compute all rows and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def reading(bench: Bench, spark: SparkSession, directory: Path, count: int, runs: int) -> None:
    """Measure all ways to read a log."""
    parquet = bench.place / "parquet"

    def source(partitions: int, schema: str | None) -> DataFrame:
        reader = spark.read.format("quorate").option("partitions", partitions)
        table = reader.option("table", "entries" if schema else "commands")
        return (table.schema(schema) if schema else table).load(str(directory))

    def drain(frame: DataFrame) -> int:
        drained(frame)
        return count

    narrow = [one.split()[0] for one in NARROW.split(", ")]
    for names, table, what in ((narrow, "entries", "3 columns"), (None, "commands", "commands")):
        rows = measure(
            bench, f"plain Python, {what}", partial(plain, directory, table, names), runs
        )
        expect(f"rows of {table} in plain Python", rows, count)
    drained(source(2, None))  # the first query is slower
    for partitions in (1, 2, 4):
        name = f"Spark, {partitions} partition{'s' * (partitions > 1)}"
        for schema, what in ((NARROW, "3 columns"), (None, "commands")):
            measure(bench, f"{name}, {what}", partial(drain, source(partitions, schema)), runs)
        expect(f"rows in {partitions} partitions", source(partitions, NARROW).count(), count)
    source(4, None).write.mode("overwrite").parquet(str(parquet))
    stored = spark.read.parquet(str(parquet))
    found = stored.selectExpr("count(*)", "sum(length(value))", "count(distinct key)").first()
    expect("rows of Parquet, bytes and keys", found and tuple(found), contents(count))
    drained(stored)
    measure(bench, "Parquet, 3 columns", partial(drain, stored.select(*narrow)), runs)
    measure(bench, "Parquet, commands", partial(drain, stored), runs)


def long_log(bench: Bench, spark: SparkSession, directory: Path, count: int) -> None:
    """Measure queries on a long log."""
    _, size, keys = contents(count)

    def ask() -> int:
        log = spark.read.format("quorate").load(str(directory))
        row = log.where("operation = 'SET'").selectExpr("count(*)", "sum(length(value))").first()
        expect("SETs of a long log, and their bytes", row and tuple(row), (count, size))
        return count

    def hold() -> int:
        row = state(spark, directory, moment_at(directory)).selectExpr("count(*)").first()
        expect("keys of a long log", row and row[0], keys)
        return count

    measure(bench, "Spark, count and sum over a long log", ask)
    measure(bench, "Spark, state of a long log", hold)


def contents(count: int) -> tuple[int, int, int]:
    """Return the number of SETs in the first entries of a log, their bytes, and their keys."""
    chance = random.Random(1)
    chance.randbytes(VALUE_BYTES)
    return count, VALUE_BYTES * count, len({chance.randrange(KEYS) for _ in range(count)})


def expect(what: str, found: object, written: object) -> None:
    """Check that a figure equals what was written.

    Raises:
        LostError: it differs.
    """
    if found != written:
        raise LostError(f"{what}: {found!r} in place of {written!r}")


# Checking -----------------------------------------------------------------------------------------


def write_history(file: Path, count: int) -> None:
    """Write a linearizable history: on each key five clients set and get at overlapping times."""
    chance = random.Random(2)
    with file.open("wb") as out:
        writer = HistoryWriter(out)
        for number in range(0, count, PER_KEY):
            key, now = b"key:%d" % (number // PER_KEY), 1000
            value: bytes | None = None
            for at in range(min(PER_KEY, count - number)):
                now += 100
                op, args, result = "get", tuple[bytes, ...](), value
                if chance.random() < 0.5:
                    value = b"%d" % at
                    op, args, result = "set", (value,), b"OK"
                begin, end = now - chance.randrange(200), now + chance.randrange(1, 200)
                one = Operation(at % CLIENTS, op, key, args, result, begin, end, "ok")
                writer.append(one)


def check_plainly(file: Path) -> int:
    """Check a history in this process."""
    by_key: dict[bytes, list[Operation]] = {}
    with file.open("rb") as source:
        for one in read_history_untrusted(source):
            by_key.setdefault(one.key, []).append(one)
    for key, operations in by_key.items():
        verdict = check_key(key, operations, Strings()).verdict.value
        expect(f"the history of {key!r}", verdict, "linearizable")
    return sum(map(len, by_key.values()))


def check_on_spark(spark: SparkSession, file: Path) -> int:
    """Check a history on Spark."""
    rows = check_history(spark, file).groupBy("verdict").sum("operations").collect()
    expect("the histories on Spark", [row[0] for row in rows], ["linearizable"])
    return int(rows[0][1])


def checking(bench: Bench, spark: SparkSession, sizes: list[int]) -> None:
    """Measure checks of histories of several lengths."""
    for count in sizes:
        file = bench.place / f"history-{count}.jsonl"
        write_history(file, count)
        rows = measure(bench, "plain Python, check of a history", partial(check_plainly, file))
        expect("operations that were checked", rows, count)
        rows = measure(bench, "Spark, check of a history", partial(check_on_spark, spark, file))
        expect("operations that were checked on Spark", rows, count)


def written(directory: Path, count: int) -> int:
    """Write a log and print its length."""
    trio.run(write_log, directory / "log", count)
    return count


app = make_app()


@app.default
def main(
    *,
    options: Common = USUAL,
    entries: int = 2_000_000,
    long: int = 10_000_000,
    operations: int = 1_000_000,
    runs: int = 3,
) -> None:
    """Measure the pipeline's source, and its check of histories.

    Parameters
    ----------
    entries
        Entries of the log that is read in all ways; a multiple of 64.
    long
        Entries of the long log; a multiple of 64; 0 to leave it out.
    operations
        Operations of the longest history; two others have a tenth and a hundredth of them.
    runs
        Number of runs of each way to read.
    """
    if options.quick:
        entries, long, operations, runs = 64_000, 128_000, 10_000, 1
    settings = {"entries": entries, "value_bytes": VALUE_BYTES, "keys": KEYS, "runs": runs}
    versions = {"spark": pyspark.__version__, "pyarrow": pa.__version__}
    with open_bench("spark", options, **settings, **versions, driver_memory=MEMORY) as bench:
        for size in dict.fromkeys((entries, long)):
            if size:
                measure(bench, "writing a log", partial(written, bench.place / str(size), size))
        with open_session(settings={"spark.driver.memory": MEMORY}) as spark:
            reading(bench, spark, bench.place / str(entries), entries, runs)
            if long:
                long_log(bench, spark, bench.place / str(long), long)
            checking(bench, spark, [operations // 100, operations // 10, operations])


if __name__ == "__main__":
    sys.exit(app())
