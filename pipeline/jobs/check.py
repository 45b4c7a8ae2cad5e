"""Checks histories for linearizability, each key in its own task. `quorate torture` uses it.

A history is a file of JSON lines (see `simulation.history`). The keys are spread over Spark's
tasks, and one key's operations are checked by one task, in memory. A key whose search takes more
states or time than allowed is *undecided*, which is never reported as linearizable.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from ...errors import HistoryError
from ...histories.history import Operation, decode_operation_untrusted
from ...histories.linearizability import Budget, KeyReport, check_key
from ...histories.specification import Strings
from ...histories.window import words
from ..spark.worker import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    _Shown: TypeAlias = dict[str, int | str | bool]

__all__ = ["check_history"]

SECONDS_PER_KEY: Final = 60.0

_OPERATION: Final = "key binary, start_ns bigint, line binary"
_VERDICT: Final = (
    "key binary, verdict string, operations bigint, states bigint, "
    "seconds double, explanation string, window array<struct<client: bigint, start_ns: bigint, "
    "end_ns: bigint, status: string, text: string, offending: boolean>>"
)
_WINDOW: Final = pa.list_(
    pa.struct(
        {
            "client": pa.int64(),
            "start_ns": pa.int64(),
            "end_ns": pa.int64(),
            "status": pa.string(),
            "text": pa.string(),
            "offending": pa.bool_(),
        }
    )
)
_MOST_OFFENDING: Final = 32
_MOST_NEARBY: Final = 24


def check_history(
    spark: SparkSession, file: Path, *, seconds_per_key: float = SECONDS_PER_KEY
) -> DataFrame:
    """Check a history.

    Args:
        spark: a session.
        file: a file of JSON lines, or a folder of such files; all tasks must be able to read it.
        seconds_per_key: how long one key's search may take before it is undecided.

    Returns:
        A row for each key: key, verdict (linearizable, violated or undecided), operations, states
        (examined by the search), seconds, explanation and window. For a key that is not
        linearizable, `explanation` is the smallest window of operations that shows it, as text.
        `window` holds the same operations as an array: client, start_ns, end_ns, status, text and
        offending. Those that are not offending ran at the same time and do not resolve the
        violation. `picture.picture` draws the window.

    A line that is not an operation fails the job, with an error that quotes the line.
    """
    lines = spark.read.text(str(file))
    operations = lines.mapInArrow(_operations, _OPERATION)
    by_key = operations.repartition("key").sortWithinPartitions("key", "start_ns")
    return by_key.mapInArrow(_checking(seconds_per_key), _VERDICT)


def _operations(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read key and start of each line; the rest is parsed by the task that checks the key."""
    settle()
    for batch in batches:
        lines = [line.encode() for line in batch["value"].to_pylist()]
        found = [_decode(line) for line in lines]
        yield pa.record_batch(
            {
                "key": pa.array([one.key for one in found], pa.binary()),
                "start_ns": pa.array([one.start_ns for one in found], pa.int64()),
                "line": pa.array(lines, pa.binary()),
            }
        )


def _decode(line: bytes) -> Operation:
    try:
        return decode_operation_untrusted(line)
    except HistoryError as error:
        raise HistoryError(f"{error}, in the line {line[:200]!r}") from error


def _checking(
    seconds: float,
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def checked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for key, operations in _by_key(batches):
            began = time.monotonic()  # noqa: TID251 - a budget of real time
            budget = Budget(clock=time.monotonic, deadline=began + seconds)  # noqa: TID251
            report = check_key(key, operations, Strings(), budget)
            took = time.monotonic() - began  # noqa: TID251
            yield _row(report, took, operations)

    return checked


def _by_key(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, list[Operation]]]:
    """Group operations by key; the rows of a key arrive one after the other."""
    settle()
    key: bytes | None = None
    operations: list[Operation] = []
    for batch in batches:
        for line in batch["line"].to_pylist():
            one = decode_operation_untrusted(line)
            if one.key != key:
                if key is not None:
                    yield key, operations
                key, operations = one.key, []
            operations.append(one)
    if key is not None:
        yield key, operations


def _window(offending: Sequence[Operation], operations: Sequence[Operation]) -> list[_Shown]:
    """Return the last offending operations, and the operations that ran at the same time."""
    marked = set(offending)
    begin = min(one.start_ns for one in offending)
    end = max(one.end_ns for one in offending)
    nearby = [
        one
        for one in operations
        if one.status != "fail"
        and one.start_ns <= end
        and (one.end_ns >= begin or one.status == "unknown")
        and one not in marked
    ]
    return [
        {
            "client": one.client,
            "start_ns": one.start_ns,
            "end_ns": one.end_ns,
            "status": one.status,
            "text": words(one),
            "offending": one in marked,
        }
        for one in [*offending[-_MOST_OFFENDING:], *nearby[-_MOST_NEARBY:]]
    ]


def _row(report: KeyReport, seconds: float, operations: Sequence[Operation]) -> pa.RecordBatch:
    window = report.window
    shown = None if window is None else _window(window.operations, operations)
    return pa.record_batch(
        {
            "key": pa.array([report.key], pa.binary()),
            "verdict": [report.verdict.value],
            "operations": [report.operations],
            "states": [report.states],
            "seconds": [seconds],
            "explanation": pa.array([None if window is None else str(window)], pa.string()),
            "window": pa.array([shown], _WINDOW),
        }
    )
