"""A world in virtual time."""

from collections.abc import AsyncIterator

import pytest
import trio

from tests.support.etcd_world import EtcdWorld


@pytest.fixture
async def world(autojump_clock: trio.testing.MockClock) -> AsyncIterator[EtcdWorld]:
    """Return a world with an empty keyspace."""
    assert autojump_clock
    async with EtcdWorld.opened() as opened:
        yield opened
