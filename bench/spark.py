"""What the pipeline does in a second: its source on a log, and its check of histories.

A log is written, of SETs of 100 bytes to a million keys, and read whole: by plain Python in one
process, by Spark from the source in 1, 2 and 4 partitions, and by Spark from Parquet that was made
of it. Each is read for three of its columns and for all. The memory is that of this process, its
JVM and its Python workers, together, at most; pages that they share count for each.

Histories of single keys with five clients are checked by plain Python and by Spark.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio
from harness import USUAL, Common, make_app, open_bench
from pyspark.sql import DataFrame, SparkSession

from quorate.keyvalue.resp import encode_command
from quorate.pipeline import open_session
from quorate.pipeline.check import check_history
from quorate.pipeline.decode import decode
from quorate.pipeline.logs import open_log
from quorate.simulation.history import HistoryWriter, Operation, read_history_untrusted
from quorate.simulation.linearizability import check_key
from quorate.simulation.specification import Strings
from quorate.storage import Entry, EntryKind, Store, TermRow, encode_batch

PER_BATCH: Final = 64
KEYS: Final = 1_000_000
NARROW: Final = "term bigint, position bigint, length bigint"
CLIENTS: Final = 5
PER_KEY: Final = 200


@attrs.frozen
class Figure:
    """What was measured: rows or operations, seconds, and memory of all processes in MiB."""

    what: str
    rows: int
    seconds: float
    peak_mib: float

    def __str__(self) -> str:
        rate = f"{self.rows / self.seconds:,.0f}"
        return (
            f"| {self.what} | {self.rows:,} | {self.seconds:.2f} | {rate} | {self.peak_mib:,.0f} |"
        )


# The log ------------------------------------------------------------------------------------------


async def write_log(directory: Path, count: int) -> None:
    """Write a log of so many entries."""
    store = Store.open(directory, cluster="bench", member_id=0, rng=random.Random(0))
    chance, position, term = random.Random(1), 0, TermRow(0, 0, None, 0)
    value = chance.randbytes(100)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        for at in range(0, count + PER_BATCH, PER_BATCH):  # the last batch is not known committed
            keys = (b"key:%07d" % chance.randrange(KEYS) for _ in range(PER_BATCH))
            entries = [
                Entry(EntryKind.COMMAND, encode_command((b"SET", key, value))) for key in keys
            ]
            data = encode_batch(
                entries, term=0, position=position, timestamp_ms=at, commit_position=position
            )
            store.append(data, term_row=None if position else term)
            position += len(data)
            if not at % (PER_BATCH * 256):
                await store.settled()
        await store.settled()
        nursery.cancel_scope.cancel()
    store.close()


# Memory -------------------------------------------------------------------------------------------


def family(pid: int) -> Iterator[int]:
    """A process and all that come from it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from family(int(child))


def resident_mib() -> float:
    """Resident memory of this process and all below it."""
    total = 0
    try:
        for pid in family(os.getpid()):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # one has just ended
        pass
    return total * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@contextmanager
def watched() -> Generator[list[float]]:
    """Look at the memory five times a second; the highest is in the list in the end."""
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


def measure(what: str, call: Callable[[], int]) -> Figure:
    """Time a call that returns how many rows it has dealt with."""
    with watched() as peak:
        began = time.perf_counter()
        rows = call()
        seconds = time.perf_counter() - began
    found = Figure(what, rows, seconds, peak[0])
    print(found, flush=True)
    return found


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
    """Have Spark make all rows, and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def reading(spark: SparkSession, directory: Path, count: int, *, parquet: Path) -> list[Figure]:
    """Measure all ways to read a log."""

    def source(partitions: int, schema: str | None) -> DataFrame:
        reader = spark.read.format("quorate").option("partitions", partitions)
        table = reader.option("table", "entries" if schema else "commands")
        return (table.schema(schema) if schema else table).load(str(directory))

    def drain(frame: DataFrame) -> int:
        drained(frame)
        return count

    narrow = [one.split()[0] for one in NARROW.split(", ")]
    found = [
        measure("plain, 3 columns", lambda: plain(directory, "entries", narrow)),
        measure("plain, commands", lambda: plain(directory, "commands", None)),
    ]
    drained(source(2, None).where("position < 100000"))  # the first query is slower
    for partitions in (1, 2, 4):
        name = f"Spark, {partitions} partition{'s' * (partitions > 1)}"
        for schema, what in ((NARROW, "3 columns"), (None, "commands")):
            frame = source(partitions, schema)
            found.append(measure(f"{name}, {what}", lambda f=frame: drain(f)))  # type: ignore[misc]
    source(4, None).write.mode("overwrite").parquet(str(parquet))
    stored = spark.read.parquet(str(parquet))
    found.append(measure("Parquet, 3 columns", lambda: drain(stored.select(*narrow))))
    found.append(measure("Parquet, commands", lambda: drain(stored)))
    return found


def large(spark: SparkSession, directory: Path, count: int) -> list[Figure]:
    """Measure a question to a long log."""

    def ask() -> int:
        log = spark.read.format("quorate").load(str(directory))
        row = log.where("operation = 'SET'").selectExpr("count(*)", "sum(length(value))").first()
        assert row is not None
        assert tuple(row) == (count, 100 * count)
        return count

    return [measure("Spark, count and sum over a long log", ask)]


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
        assert check_key(key, operations, Strings()).verdict.value == "linearizable"
    return sum(map(len, by_key.values()))


def check_on_spark(spark: SparkSession, file: Path) -> int:
    """Check a history on Spark."""
    rows = check_history(spark, file).groupBy("verdict").sum("operations").collect()
    assert [row[0] for row in rows] == ["linearizable"]
    return int(rows[0][1])


def checking(spark: SparkSession, place: Path, sizes: list[int]) -> list[Figure]:
    """Measure checks of histories of several lengths."""
    found: list[Figure] = []
    for count in sizes:
        file = place / f"history-{count}.jsonl"
        write_history(file, count)
        found.append(measure(f"plain, {count:,} operations", lambda f=file: check_plainly(f)))  # type: ignore[misc]
        found.append(
            measure(f"Spark, {count:,} operations", lambda f=file: check_on_spark(spark, f))  # type: ignore[misc]
        )
    return found


app = make_app()


@app.default
def main(
    *,
    options: Common = USUAL,
    entries: int = 1_000_000,
    long: int = 10_000_000,
    operations: int = 1_000_000,
) -> None:
    """Measure.

    Parameters
    ----------
    entries
        Of the log that is read in all ways; a multiple of 64.
    long
        Of the long log; a multiple of 64; 0 to leave it out.
    operations
        Of the longest history; there is one of a tenth, and one of a hundredth.
    """
    if options.quick:
        entries, long, operations = 64_000, 0, 10_000
    with open_bench("spark", options) as bench:
        found: list[Figure] = []
        for size in (one for one in (entries, long) if one):
            to = bench.place / str(size)
            found.append(measure("writing a log", lambda s=size, to=to: written(to, s)))  # type: ignore[misc]
        with open_session(settings={"spark.driver.memory": "2g"}) as spark:
            log, parquet = bench.place / str(entries), bench.place / "parquet"
            found += reading(spark, log, entries, parquet=parquet)
            if long:
                found += large(spark, bench.place / str(long), long)
            sizes = [operations // 100, operations // 10, operations]
            found += checking(spark, bench.place, sizes)
        bench.rows += [attrs.asdict(one) | {"rate": one.rows / one.seconds} for one in found]


def written(directory: Path, count: int) -> int:
    """Write a log and say how long it is."""
    trio.run(write_log, directory / "log", count)
    return count


if __name__ == "__main__":
    sys.exit(app())
