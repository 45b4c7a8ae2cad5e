"""A client port and a client of it, for the tests of the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.client_port_world import RawClient, World


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A port with usual limits."""
    async with World.opened(tmp_path / "tables") as opened:
        yield opened


@pytest.fixture
async def client(world: World) -> RawClient:
    """Its first client."""
    return await world.connect()
