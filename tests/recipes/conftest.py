"""Runs a scenario of a recipe on trio and on asyncio."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.recipes_world import BACKENDS, Scenario, play


@pytest.fixture(params=BACKENDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario in virtual time."""
    backend: str = request.param
    return partial(play, backend, tmp_path)
