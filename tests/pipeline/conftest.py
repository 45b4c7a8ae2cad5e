"""One Spark session for all tests of the pipeline; they are skipped where there is no Java."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.errors import ConfigurationError
from quorate.pipeline.session import open_session
from quorate.pipeline.spark.java import find_java_home
from tests.pipeline.jobs.quick import QUICK
from tests.support.real import RealCluster

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Generator[SparkSession]:
    """A session on two cores."""
    try:
        find_java_home()
    except ConfigurationError as missing:
        pytest.skip(str(missing))
    with open_session(master="local[2]", settings=QUICK | {"spark.driver.memory": "1g"}) as session:
        yield session


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[RealCluster]:
    """Three members; a test that kills one brings it back."""
    with RealCluster.run(tmp_path_factory.mktemp("members") / "cluster") as running:
        yield running


@pytest.fixture
def whole(cluster: RealCluster) -> RealCluster:
    """The cluster with all members at work."""
    cluster.restart_dead()
    cluster.wait_until_agreed()
    return cluster
