"""A store in virtual time, for the tests of recipes."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.support.lone_store import LoneStore, lone_store


@pytest.fixture
async def store(tmp_path: Path, autojump_clock: MockClock) -> AsyncGenerator[LoneStore]:
    async with lone_store(tmp_path) as opened:
        yield opened
