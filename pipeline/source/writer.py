"""Writes rows into a running cluster: ``frame.write.format("quorate").option("connect", ...)``.

Each row is a command. Each task writes its rows in order, exactly once, however often Spark repeats
it (see :mod:`.loading`). The query's id and the batch's number identify a batch of a stream. A
query that restarts from its checkpoint has the same ones, so it writes exactly once, too.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ...errors import ConfigurationError
from ..spark.worker import settle
from .loading import Load, Progress
from .members import Members, parse_members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .loading import Command

__all__ = ["StreamWriter", "Target", "Writer", "commands_of_rows", "parse_target"]

_KNOWN: Final = frozenset({"connect", "job", "checkpointlocation", "queryname"})
"""The last two are Spark's own; Spark passes them on."""

_COLUMNS: Final = ("key", "value", "operation", "expires_at")
_OPERATIONS: Final = frozenset({"SET", "DEL", "INCRBY", "APPEND"})
_LONGEST_JOB: Final = 200
_KEEP_MS: Final = 7 * 86_400_000
"""Expiry of the progress of a job without a name, in case its driver dies."""


@attrs.frozen
class Target:
    """The target of a write.

    Args:
        members: client addresses of members, ``HOST:PORT,HOST:PORT``.
        job: a name that identifies repeated writes; empty for none.
    """

    members: str
    job: str


def parse_target(options: Mapping[str, str], columns: Sequence[str], *, overwrite: bool) -> Target:
    """Parse the options of a write, and check its columns.

    Raises:
        ConfigurationError: an option or a column is wrong.
    """
    unknown = sorted(name for name in options if name.lower() not in _KNOWN)
    if unknown:
        raise ConfigurationError(f"option {unknown[0]}: expected connect or job")
    if overwrite:
        raise ConfigurationError("a store is never overwritten as a whole: expected mode append")
    wrong = [name for name in columns if name not in _COLUMNS]
    if wrong or "key" not in columns:
        raise ConfigurationError(
            f"columns {', '.join(columns)}: expected key, and any of {', '.join(_COLUMNS[1:])}"
        )
    members, job = options.get("connect") or "", options.get("job") or ""
    parse_members(members)
    if len(job) > _LONGEST_JOB:
        raise ConfigurationError(f"option job: a name of {len(job)}, at most {_LONGEST_JOB}")
    return Target(members, job)


@attrs.frozen
class Written(WriterCommitMessage):
    """The result of a task: the key of its progress, and the number of rows written."""

    name: str
    rows: int


class Writer(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._keep = None if target.job else _KEEP_MS
        self._job = target.job or str(uuid.uuid4())  # noqa: TID251 - no member runs here

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        return _write(self._target, self._job, 0, iterator, keep_ms=self._keep)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the progress, which repeated tasks no longer need; keep that of a named job."""
        if self._target.job:
            return
        members = Members(parse_members(self._target.members))
        try:
            for message in messages:
                if isinstance(message, Written):
                    Load(members, message.name).forget()
        finally:
            members.close()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep what was written: it cannot be undone."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None
        assert batch is not None
        return _write(self._target, self._target.job or query, int(batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the progress is needed until the next batch."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep what was written: Spark will repeat the batch."""


def _write(
    target: Target,
    job: str,
    batch: int,
    batches: Iterator[pa.RecordBatch],
    *,
    keep_ms: int | None = None,
) -> Written:
    settle()
    context = TaskContext.get()
    assert context is not None
    name = f"quorate:load:{job}:{context.partitionId()}"
    members = Members(parse_members(target.members))
    try:
        rows = (command for found in batches for command in commands_of_rows(found))
        done: Progress = Load(members, name, keep_ms=keep_ms).write(batch, rows)
    finally:
        members.close()
    return Written(name, done.rows)


def commands_of_rows(batch: pa.RecordBatch) -> Iterator[Command]:
    """Yield the command of each row.

    Raises:
        ConfigurationError: a row is not a valid command.
    """
    names = batch.schema.names
    nothing = [None] * batch.num_rows
    keys = _bytes(batch["key"])
    values = _bytes(batch["value"]) if "value" in names else nothing
    operations = batch["operation"].to_pylist() if "operation" in names else nothing
    expiries = _milliseconds(batch["expires_at"]) if "expires_at" in names else nothing
    for key, value, operation, expiry in zip(keys, values, operations, expiries, strict=True):
        asked = operation or "SET"
        needless = asked == "DEL"
        if (
            key is None
            or asked not in _OPERATIONS
            or (value is None) != needless
            or (expiry is not None and asked != "SET")
        ):
            raise ConfigurationError(
                f"{asked} of key {key!r:.80}, {'no value' if value is None else 'a value'}, "
                f"expiry {expiry}: expected one of {', '.join(sorted(_OPERATIONS))}; "
                "a key; a value except for DEL; an expiry with SET only"
            )
        expires = () if expiry is None else (b"PXAT", b"%d" % expiry)
        yield (asked.encode(), key, *(() if value is None else (value,)), *expires)


def _bytes(column: pa.Array) -> list[bytes | None]:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
        raise ConfigurationError(
            f"a column of {column.type}: expected binary, string or an integer"
        )
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _milliseconds(column: pa.Array) -> list[int | None]:
    found: list[int | None] = (
        column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
    )
    return found
