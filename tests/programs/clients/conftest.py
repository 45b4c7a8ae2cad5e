"""A real cluster for clients, by the command line, as a user starts it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real import RealCluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Three members with a leader; a test that kills one brings it back."""
    with RealCluster.run(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def whole(cluster: RealCluster) -> RealCluster:
    """The cluster with all members at work and no keys."""
    cluster.restart_dead()
    cluster.wait_until_agreed()
    cluster.flush()
    return cluster


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory for a cluster of a test's own."""
    return tmp_path / "cluster"
