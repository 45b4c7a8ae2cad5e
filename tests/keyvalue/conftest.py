"""A client port and a client of it, for the tests of the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate.keyvalue.conversation import conversation
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


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No conversation pauses because its commands take long; the machine may be busy."""
    monkeypatch.setattr(conversation, "PATIENCE_S", 60.0)
