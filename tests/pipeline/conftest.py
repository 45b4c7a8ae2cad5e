"""One Spark session for all tests of the pipeline; they are skipped where there is no Java."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.errors import ConfigurationError
from quorate.pipeline.java import find_java_home
from quorate.pipeline.session import open_session

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

QUICK = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="session")
def spark() -> Generator[SparkSession]:
    """A session on two cores."""
    try:
        find_java_home()
    except ConfigurationError as missing:
        pytest.skip(str(missing))
    with open_session(master="local[2]", settings=QUICK) as session:
        yield session
