"""Simulated clusters of ledgers, as the tests of the member use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.simulation import Ledger, Setting, World
from quorate.simulation import open_world as open_any_world

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from quorate.simulation import Observer


def open_world(
    directory: Path, size: int = 3, *, seed: int = 0
) -> AbstractAsyncContextManager[World[Ledger]]:
    """A cluster in which a member that fails ends the test."""
    return open_any_world(directory, Ledger, Setting(members=size, seed=seed))


def open_stage(
    directory: Path, size: int = 3, *, observer: Observer | None = None
) -> AbstractAsyncContextManager[World[Ledger]]:
    """A cluster whose members may fail; the test looks at their failures."""
    return open_any_world(directory, Ledger, Setting(members=size, contain=True), observer=observer)
