"""Spark's Python processes import the installed PySpark, not the archive beside it."""

# pyright: basic, reportMissingTypeStubs=false
# (those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest

from quorate.pipeline.spark.home import find_spark_home, spark_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user has not said where Spark is, and has an empty cache."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_home_is_made_once_and_has_all_but_the_archive(tmp_path: Path) -> None:
    home = find_spark_home()
    assert home is not None
    assert find_spark_home() == home
    assert home.parent == tmp_path / "quorate"
    assert sorted(one.name for one in home.iterdir()) == ["bin", "conf", "jars"]
    assert (home / "bin" / "spark-class").samefile(INSTALLED / "bin" / "spark-class")


def test_a_session_of_one_machine_is_started_from_there() -> None:
    with spark_home("local[2]"):
        assert os.environ["SPARK_HOME"] == str(find_spark_home())
    assert "SPARK_HOME" not in os.environ


def test_the_user_and_a_cluster_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with spark_home("spark://127.0.0.1:7077"):
        assert "SPARK_HOME" not in os.environ
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with spark_home("local[2]"):
        assert os.environ["SPARK_HOME"] == "/opt/spark"
    assert os.environ["SPARK_HOME"] == "/opt/spark"


def test_without_a_cache_spark_starts_as_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert find_spark_home() is None
    with spark_home("local[2]"):
        assert "SPARK_HOME" not in os.environ


def test_without_a_home_directory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nobody)
    assert find_spark_home() is None


@pytest.mark.parametrize("name", ["bin", "jars", "conf"])
def test_what_somebody_else_has_put_there_is_not_run(tmp_path: Path, name: str) -> None:
    home = find_spark_home()
    assert home is not None
    (home / name).unlink()
    (home / name).symlink_to(tmp_path)
    assert find_spark_home() is None
    (home / name).unlink()
    (home / name).mkdir()
    assert find_spark_home() is None


def test_the_cache_of_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spark_home() is not None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert find_spark_home() is None


def test_another_python_has_the_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3.13")
    with spark_home("local[2]"):
        assert "SPARK_HOME" not in os.environ


@pytest.mark.spark
def test_a_task_has_the_installed_pyspark_and_no_garbage_in_it(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc  # noqa: PLC0415 - all of this runs in a task

        import pyspark as there  # noqa: PLC0415

        from quorate.pipeline.spark.worker import settle  # noqa: PLC0415

        settle()
        for _ in batches:
            yield pa.record_batch({"place": [there.__file__], "frozen": [gc.get_freeze_count()]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(look, "place string, frozen long").collect()
    assert row["place"] == pyspark.__file__
    assert row["frozen"] > 0
