"""A result replaces an older one, and nothing else that lies in the folder."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorate.errors import ConfigurationError
from quorate.pipeline.jobs.results import older_result, write_result

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PART = "part-00000-24d7db0d-ddc2-4cd9-92e5-b8be9a2be9f5-c000.snappy.parquet"
COLUMNS = ["key", "value"]


def part(to: Path, columns: list[str]) -> None:
    to.mkdir(exist_ok=True)
    pq.write_table(pa.table({name: [1] for name in columns}), to / PART)


def test_an_older_result_is_found_also_in_the_root_of_a_volume(tmp_path: Path) -> None:
    assert older_result(COLUMNS, tmp_path / "absent") == []
    (tmp_path / "lost+found").mkdir()
    assert older_result(COLUMNS, tmp_path) == []
    part(tmp_path, COLUMNS)
    for name in ("_SUCCESS", "._SUCCESS.crc", f".{PART}.crc"):
        (tmp_path / name).touch()
    (tmp_path / "_temporary").mkdir()
    assert len(older_result(COLUMNS, tmp_path)) == 5


@pytest.mark.parametrize("name", ["thesis.txt", "log", "part-0.parquet", "_SUCCESS.old"])
def test_a_folder_with_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    part(tmp_path, COLUMNS)
    (tmp_path / name).touch()
    with pytest.raises(ConfigurationError, match=f"{name} is not part of.*expected a new folder"):
        older_result(COLUMNS, tmp_path)


def test_another_table_is_refused(tmp_path: Path) -> None:
    part(tmp_path, ["invoice"])
    with pytest.raises(ConfigurationError, match="a table of invoice; expected"):
        older_result(COLUMNS, tmp_path)
    (tmp_path / PART).write_bytes(b"no table")
    with pytest.raises(ConfigurationError, match="a table of unreadable; expected"):
        older_result(COLUMNS, tmp_path)


@pytest.mark.spark
def test_what_spark_writes_is_an_older_result_the_next_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    to = tmp_path / "result"
    for count in (30, 20):
        write_result(spark.range(count), to)
        assert spark.read.parquet(str(to)).count() == count
    (to / "notes.txt").touch()
    with pytest.raises(ConfigurationError, match=r"notes\.txt"):
        write_result(spark.range(1), to)
    assert spark.read.parquet(str(to)).count() == 20
