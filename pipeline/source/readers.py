"""Readers of the log for Spark: a batch reader, with or without pushed filters, and a stream.

A read is planned on the driver's machine and executed on the executors', in Spark's own processes.
So nothing is shared with the user's program, and a recording is open only within a method. Rows
leave as Arrow record batches. Spark applies its filters to every row again: a filter that is pushed
here only saves reading.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from ...errors import StorageError
from ...storage import decode_header_untrusted
from ..spark.worker import settle
from .columns import arrow_schema
from .etcd_rows import etcd_table
from .logs import open_log
from .owned import OwnedSlots
from .principals import principals_table
from .snapshots import BEFORE, as_commands, pruned, snapshot_position, snapshot_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql.datasource import Filter

    from .logs import Log
    from .options import Bounds, Request
    from .owned import Change

__all__ = ["PushdownReader", "Range", "Reader", "StreamReader"]

GROUP_ROWS: Final = 8192
GROUP_BYTES: Final = 8 << 20

_OPERATORS: Final = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    StringStartsWith: "prefix",
}


@attrs.frozen
class Range(InputPartition):
    """Positions ``[begin, end)`` of the log, or the snapshot that covers up to `end`, as commands.

    The first range of a log begins, and the last one ends, at a boundary of batches. `owned` has
    the slots of a partition, if a column needs them.
    """

    begin: int
    end: int
    snapshot: bool = False
    owned: tuple[Change, ...] = ()


class Reader(DataSourceReader):
    """Reads everything that is committed when the query is planned."""

    def __init__(self, request: Request, names: list[str]) -> None:
        arrow_schema(request.table, names)
        self._request = request
        self._names = names
        self._bounds = request.bounds

    def partitions(self) -> list[Range]:
        """Cut the log at boundaries of batches; Spark requires at least one range."""
        settle()
        with open_log(self._request.origin) as log:
            if self._request.table in {"terms", "snapshot", "principals", "etcd"}:
                return [Range(0, 0)]
            if 0 < self._request.bounds.start < log.facts.start:
                raise pruned(log.facts, self._request.bounds.start)
            start, stop = self._bounds.within(log)
            found: list[Range] = []
            row = log.facts.snapshot_at(stop) if self._request.snapshot_first else None
            if row is not None:
                found.append(Range(0, row.position, snapshot=True))
                start = max(start, row.position)
            pieces = self._request.pieces(start, min(stop, log.facts.committed))
            ranges = log.cut(start, stop, pieces)
            slots = OwnedSlots(log, start) if _needs_owned(log, self._names) and ranges else None
            found += _with_owned(log, ranges, slots)
        return found or [Range(0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        assert isinstance(partition, Range)
        yield from _read(self._request, self._names, self._bounds, partition)


class PushdownReader(Reader):
    """Reads only what Spark's filters may match; Spark must be configured to push filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's
        """Use the filters that help, and return all of them, so that Spark applies them again."""
        bounds = self._bounds
        for one in filters:
            operator = _OPERATORS.get(type(one))
            column: tuple[str, ...] = getattr(one, "attribute", ())
            if operator is not None and len(column) == 1:
                bounds = bounds.and_(column[0].lower(), operator, getattr(one, "value", None))
        self._bounds = bounds
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads newly committed entries. An offset is a position and the term of the byte before it."""

    def __init__(self, request: Request, names: list[str]) -> None:
        arrow_schema(request.table, names)
        self._request = request
        self._names = names
        self._last: dict[str, int] | None = None
        self._slots: OwnedSlots | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        """Begin at the option startPosition, by default at the beginning of the log."""
        if self._request.snapshot_first:
            return {"term": -1, "position": BEFORE}
        with open_log(self._request.origin) as log:
            start = min(max(self._request.bounds.start, 0), log.facts.committed)
            return {"term": log.term_before(start), "position": start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Limit a micro-batch by bytes, if the option is set."""
        limit = self._request.trigger_bytes
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Remember the commit position as the end of the query."""
        with open_log(self._request.origin) as log:
            self._last = _offset(log, log.facts.committed)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next micro-batch: the commit position, or less if limited.

        Raises:
            PrunedError: the query's position was pruned.
            StorageError: the log has another history; it is not the one read so far.
        """
        position = start["position"]
        with open_log(self._request.origin) as log:
            stop = log.facts.committed if self._last is None else self._last["position"]
            if stop <= position:  # nothing new, or this member is lagging
                return start
            if self._request.snapshot_first and position < log.facts.start:
                return _offset(log, snapshot_position(log))
            if position == BEFORE:
                return _offset(log, max(snapshot_position(log), 0))
            _check(log, start)
            if isinstance(limit, ReadMaxBytes):
                end = max(log.cut(position, position + limit.max_bytes, 1), default=None)
                stop = min(stop, end[1]) if end else stop
            return _offset(log, stop)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's
        """Return the commit position."""
        with open_log(self._request.origin) as log:
            return _offset(log, log.facts.committed)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Range]:
        """Cut the range between two offsets."""
        if start["position"] >= end["position"]:
            return []
        begin, stop = start["position"], end["position"]
        with open_log(self._request.origin) as log:
            log.reach(stop)
            if self._request.snapshot_first and begin < log.facts.start:
                return [Range(begin, stop, snapshot=True)] if stop else []
            _check(log, start)
            ranges = log.cut(begin, stop, self._request.pieces(begin, stop))
            if not ranges or ranges[-1][1] != end["position"]:
                raise StorageError(
                    f"{log.facts.whose}: the query goes on to position {end['position']}, "
                    f"but this log is committed up to {log.facts.committed} only: "
                    "read from a member that is not behind"
                )
            if self._slots is None and _needs_owned(log, self._names):
                self._slots = OwnedSlots(log, begin)
            return _with_owned(log, ranges, self._slots)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        assert isinstance(partition, Range)
        yield from _read(self._request, self._names, self._request.bounds, partition)


def _needs_owned(log: Log, names: Sequence[str]) -> bool:
    return "owner_epoch" in names and log.facts.partition is not None


def _with_owned(
    log: Log, ranges: Sequence[tuple[int, int]], slots: OwnedSlots | None
) -> list[Range]:
    """Return ranges of a log, with what a partition owned in each."""
    return [
        Range(begin, end, owned=() if slots is None else slots.between(log, begin, end))
        for begin, end in ranges
    ]


def _offset(log: Log, position: int) -> dict[str, int]:
    return {"term": log.term_before(position), "position": position}


def _check(log: Log, start: dict[str, int]) -> None:
    """Raise an error if the log is not the one that the query has read so far."""
    position, facts = start["position"], log.facts
    if position > facts.committed:
        raise StorageError(
            f"{facts.whose}: the query is at position {position}, but this log is "
            f"committed up to {facts.committed} only: read from a member that is not behind"
        )
    if position < facts.start:
        raise pruned(facts, position)
    known = start["term"]  # -1 if the query began at the start of the log
    if position > facts.start and known >= 0 and log.term_before(position) != known:
        raise StorageError(
            f"{facts.whose}: the query has read term {start['term']} up to position "
            f"{position}, this log has term {log.term_before(position)} there: it is another log"
        )


def _read(
    request: Request, names: list[str], bounds: Bounds, partition: Range
) -> Iterator[pa.RecordBatch]:
    from ..payloads.decoding import find_decoder  # noqa: PLC0415
    from .decode import decode  # noqa: PLC0415 - only reading needs them

    settle()
    decoder = find_decoder(request.decoder)
    with open_log(request.origin) as log:
        if request.table == "terms":
            yield _terms(log, names)
            return
        if request.table == "principals":
            yield principals_table(log, names)
            return
        if request.table == "etcd":
            yield from etcd_table(log, names, bounds.start, bounds.stop)
            return
        if request.table == "snapshot":
            yield from snapshot_table(log, names, bounds.stop)
            return
        if partition.begin >= partition.end:
            return
        if partition.snapshot:
            yield from as_commands(log, names, partition.end, bounds.prefix)
            return
        for group in _groups(log.batches(partition.begin, partition.end)):
            yield decode(
                group,
                request.table,
                names=names,
                member_id=log.facts.member_id,
                decoder=decoder,
                prefix=bounds.prefix,
                partition=log.facts.partition,
                owned=partition.owned,
            )


def _groups(batches: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Gather batches until they hold enough rows for an Arrow batch."""
    group: list[bytes] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows += decode_header_untrusted(batch).count
        size += len(batch)
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _terms(log: Log, names: list[str]) -> pa.RecordBatch:
    rows = log.terms()
    columns: dict[str, list[int | str | None]] = {
        "term": [row.term for row in rows],
        "base": [row.base for row in rows],
        "end": [row.end for row in rows],
        "timestamp": [row.timestamp_ms * 1000 for row in rows],
        "member": [log.facts.member_id for _ in rows],
        "partition": [log.facts.partition for _ in rows],
    }
    if not columns.keys() >= set(names):  # otherwise the log itself need not be read
        events = [log.opening(row) for row in rows]
        columns |= {
            "leader": [one.leader_member_id if one else None for one in events],
            "reason": [one.reason if one else None for one in events],
            "election_ms": [one.election_ms if one else None for one in events],
        }
    schema = arrow_schema("terms", names)
    made = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(made, schema=schema)
