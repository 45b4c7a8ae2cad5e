"""A cluster in virtual time, for the many tests that begin with one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from trio.testing import MockClock

from quorate.simulation import Ledger, World
from quorate.simulation.ledger import open_ledgers


@pytest.fixture
async def cluster(tmp_path: Path, autojump_clock: MockClock) -> AsyncIterator[World[Ledger]]:
    """Three members whose service is a ledger: one leads, and nothing is written yet."""
    async with open_ledgers(tmp_path) as world:
        await world.start()
        await world.settled()
        yield world
