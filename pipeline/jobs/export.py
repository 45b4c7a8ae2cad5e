"""Exports the log as tables in a folder: commands, all versions of all keys, and current values.

::

    TO/manifest.json             lists the parts; written last, under another name, then renamed
    TO/log/from=<position>/      the commands, as the source's table "commands"
    TO/kv_history/from=<...>/    the versions of keys that ended in this part of the log
    TO/kv_current/at=<...>/      the versions that had not ended where the last part ended

Each call of :func:`export` adds a part. It begins where the manifest says that the last one ended,
and reaches to the commit position. A part that was interrupted is not in the manifest; the next
call overwrites it. So each version ends in exactly one part, and a call may be killed and repeated.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import attrs
import cattrs

from ...errors import PrunedError, StorageError
from ..source.logs import Moment, Origin, open_log
from .versions import from_snapshot, moment_at, read_log, versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Exported", "Manifest", "export", "exported_tables", "follow"]
__all__ += ["follow_each", "read_manifest"]

_FORMAT: Final = 3
_NAME: Final = "manifest.json"
_CURRENT: Final = re.compile("at=[0-9]{20,}")
"""Names of folders in kv_current. A folder with another name is not ours, and never deleted."""


@attrs.frozen
class Manifest:
    """Describes the tables in a folder.

    Args:
        cluster: name of the cluster.
        position: log position up to which the tables are complete.
        term: leadership term of the byte before it.
        parts: log positions at which the parts begin, ascending.
        format: version of the folder's layout.
    """

    cluster: str
    position: int
    term: int
    parts: tuple[int, ...]
    format: int = _FORMAT


@attrs.frozen
class Exported:
    """The result of one call of :func:`export`: its range of the log, and the rows written."""

    begin: int
    end: int
    commands: int
    history: int
    current: int


def read_manifest(to: Path | str) -> Manifest | None:
    """Read the manifest of a folder; None if there is none.

    Raises:
        StorageError: the file is not a manifest, or has another format.
    """
    file = Path(to) / _NAME
    if not file.exists():
        return None
    try:
        found = cattrs.structure(cast("object", json.loads(file.read_bytes())), Manifest)
    except (ValueError, TypeError, KeyError, cattrs.BaseValidationError) as error:
        raise StorageError(f"{file}: not a manifest of exported tables: {error}") from error
    if found.format != _FORMAT:
        raise StorageError(
            f"{file}: format {found.format}, expected {_FORMAT}: export into a new folder"
        )
    return found


def export(spark: SparkSession, origin: Origin, to: Path | str) -> Exported:
    """Extend the tables in a folder to the commit position.

    Args:
        spark: a session that knows the source.
        origin: a member's directory, a copy of one, or a running cluster.
        to: the folder, on a file system that all Spark tasks can reach; created if missing.

    Raises:
        PrunedError: the log no longer reaches back to where the tables end.
        StorageError: the tables belong to another log.
    """
    to = Path(to)
    known = read_manifest(to)
    end = moment_at(origin)
    with open_log(origin) as log:
        cluster, term = log.facts.cluster, log.term_before(end.position)
        if known is not None:
            there = log.term_before(known.position) if known.position <= end.position else -1
            _check(known, cluster, there, end)
    begin = known.position if known else _first(origin)
    if known is not None and end.position <= begin:
        return Exported(begin, begin, 0, 0, exported_tables(spark, to)["kv_current"].count())
    done = _write(spark, origin, to, begin=begin, end=end)
    parts = (*(known.parts if known else ()), begin)
    _publish(to, Manifest(cluster, end.position, term, parts))
    for stale in (to / "kv_current").iterdir():
        if _CURRENT.fullmatch(stale.name) and stale != _current(to, end.position):
            shutil.rmtree(stale)
    return done


def follow(
    spark: SparkSession, origin: Origin, to: Path | str, *, pause_s: float = 5.0
) -> Iterator[Exported]:
    """Extend the tables to the commit position again and again, without end.

    Each round is an :func:`export`, so a killed call is continued by the next one. A round costs
    in proportion to what was committed since the last one, and rewrites kv_current.

    Args:
        spark: a session that knows the source.
        origin: a member's directory, a copy of one, or a running cluster.
        to: the folder, as for :func:`export`.
        pause_s: seconds to wait after a round that found nothing new.

    Yields:
        The result of each round.
    """
    for _, done in follow_each(spark, {"": origin}, to, pause_s=pause_s):
        yield done


def follow_each(
    spark: SparkSession, origins: Mapping[str, Origin], to: Path | str, *, pause_s: float = 5.0
) -> Iterator[tuple[str, Exported]]:
    """Follow several logs in turn, each into a folder of its own.

    Args:
        spark: a session that knows the source.
        origins: a log for each name of a folder.
        to: the folder of these folders.
        pause_s: seconds to wait after a round in which no log had anything new.

    Yields:
        The name of a log, and the result of its round; see :func:`follow`.
    """
    while True:
        idle = True
        for name, origin in origins.items():
            known = read_manifest(Path(to) / name)
            if known is None or moment_at(origin).position > known.position:
                idle = False
                yield name, export(spark, origin, Path(to) / name)
        if idle:
            time.sleep(pause_s)


def _first(origin: Origin) -> int:
    """Return where the tables begin: at the log's beginning, or a pruned log's first snapshot.

    Raises:
        PrunedError: the log is pruned and there is no snapshot.
    """
    with open_log(origin) as log:
        facts = log.facts
    if not facts.start:
        return 0
    kept = [row.position for row in facts.snapshots if row.position >= facts.start]
    if not kept:
        raise PrunedError(
            f"{facts.whose}: the log begins at position {facts.start}, and there is no "
            "snapshot to begin with: read from a copy that still has it"
        )
    return kept[0]


def _check(known: Manifest, cluster: str, term: int, end: Moment) -> None:
    if cluster != known.cluster:
        raise StorageError(f"the tables are of cluster {known.cluster!r}, the log of {cluster!r}")
    if known.position <= end.position and term != known.term:
        raise StorageError(
            f"the tables end at position {known.position} of term {known.term}, where this log "
            f"has term {term}: it is another log"
        )


def _write(spark: SparkSession, origin: Origin, to: Path, *, begin: int, end: Moment) -> Exported:
    before = None
    if _current(to, begin).exists():
        before = spark.read.parquet(str(_current(to, begin)))
    elif begin:
        before = from_snapshot(spark, origin, begin)
    part = f"from={begin:020d}"
    commands = read_log(spark, origin, "commands", startPosition=begin, endPosition=end.position)
    commands.write.mode("overwrite").parquet(str(to / "log" / part))
    found = versions(spark, origin, begin=begin, end=end, before=before).persist()
    try:
        ended = found.where("valid_to is not null").drop("hidden")
        ended.write.mode("overwrite").parquet(str(to / "kv_history" / part))
        current = found.where("valid_to is null")
        current.write.mode("overwrite").parquet(str(_current(to, end.position)))
    finally:
        found.unpersist()
    return Exported(
        begin,
        end.position,
        commands=spark.read.parquet(str(to / "log" / part)).count(),
        history=spark.read.parquet(str(to / "kv_history" / part)).count(),
        current=_present(spark, to, end.position).count(),
    )


def _current(to: Path, position: int) -> Path:
    return to / "kv_current" / f"at={position:020d}"


def _present(spark: SparkSession, to: Path, position: int) -> DataFrame:
    """Return the current versions, without the rows that are only copied to a partition so far."""
    return spark.read.parquet(str(_current(to, position))).where("not hidden").drop("hidden")


def _publish(to: Path, manifest: Manifest) -> None:
    """Replace the manifest, durably."""
    aside = to / f"{_NAME}.new"
    with aside.open("wb") as file:
        file.write(json.dumps(attrs.asdict(manifest), indent=2).encode())
        file.flush()
        os.fsync(file.fileno())
    aside.rename(to / _NAME)
    folder = os.open(to, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def exported_tables(spark: SparkSession, to: Path | str) -> dict[str, DataFrame]:
    """Return the tables in a folder: log, kv_history (with the current versions) and kv_current.

    Raises:
        StorageError: nothing was exported to this folder.
    """
    to = Path(to)
    manifest = read_manifest(to)
    if manifest is None:
        raise StorageError(f"{to}: nothing was exported there")
    parts = [f"from={begin:020d}" for begin in manifest.parts]
    log = spark.read.parquet(*(str(to / "log" / part) for part in parts))
    ended = spark.read.parquet(*(str(to / "kv_history" / part) for part in parts))
    current = _present(spark, to, manifest.position)
    return {
        "log": log,
        "kv_history": ended.unionByName(current),
        "kv_current": current.drop("valid_to", "valid_to_time", "tag", "change", "moved_out"),
    }
