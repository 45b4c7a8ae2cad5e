"""A fake cluster with partitions for each test, and a client of it."""

from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from quorate.client.connect import open_through
from quorate.keyvalue.programs.client import KeyValue
from tests.support.fake_partitions import FakePartitions, PartitionsDialler, fake_partitions

Connect = Callable[..., AbstractAsyncContextManager[KeyValue]]


@pytest.fixture
def world(tmp_path: Path) -> Generator[FakePartitions]:
    with fake_partitions(tmp_path) as found:
        yield found


@pytest.fixture
def connected(world: FakePartitions) -> Connect:
    def connect(
        *, exactly_once: bool = True, patience_s: float = 60.0
    ) -> AbstractAsyncContextManager[KeyValue]:
        return open_through(
            PartitionsDialler(world),
            world.addresses,
            exactly_once=exactly_once,
            session_timeout_s=300.0,
            patience_s=patience_s,
        )

    return connect
