"""A client port and a client of it, for the tests of the port."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate.keyvalue.native import waits
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


@pytest.fixture(params=["compiled", "trio"])
def each_way_to_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tasks of the program wait by what was compiled; and once more by what trio has."""
    if request.param == "trio":
        monkeypatch.setattr(waits, "NATIVE", False)
    elif not waits.NATIVE:
        pytest.skip("keyvalue/native/waits.c was not compiled")
