"""Writes results as Parquet into a folder of the user; it replaces nothing but an older result.

Spark's own mode "overwrite" deletes the folder with everything in it. Here the folder may be new,
empty, the root of a volume, or hold an older result with the same columns.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import ConfigurationError
from ...storage.lmdb.environment import content_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

__all__ = ["older_result", "write_result"]

_PART: Final = r"part-[0-9]{5,}-[0-9a-f-]{36}[.-][a-z0-9.-]*parquet"
_OF_SPARK: Final = re.compile(rf"{_PART}|\.{_PART}\.crc|_SUCCESS|\._SUCCESS\.crc|_temporary")
"""Names of all files that Spark writes for a result, and of its folder of unfinished files."""


def write_result(frame: DataFrame, to: Path) -> None:
    """Write a result into a folder; the folder is created if missing.

    Raises:
        ConfigurationError: the folder holds other files.
    """
    for path in older_result(frame.columns, to):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    frame.write.mode("append").parquet(str(to))


def older_result(columns: Sequence[str], to: Path) -> list[Path]:
    """Return the files of an older result in a folder.

    Raises:
        ConfigurationError: the folder holds other files.
    """
    if not to.exists():
        return []
    found = content_of(to)
    for path in found:
        if not _OF_SPARK.fullmatch(path.name):
            raise ConfigurationError(
                f"{to}: {path.name} is not part of an older result; "
                "expected a new folder or an empty one"
            )
        if path.name.startswith("part-") and (names := _columns(path)) != [*columns]:
            raise ConfigurationError(
                f"{to}: {path.name} is there, a table of {', '.join(names)}; expected a new "
                "folder, an empty one, or an older result of the same columns"
            )
    return found


def _columns(path: Path) -> list[str]:
    try:
        return [str(name) for name in pq.read_schema(path).names]
    except (OSError, pa.ArrowException):
        return ["unreadable"]
