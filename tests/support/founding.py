"""Clusters that their members found at their first start, like real clusters."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from quorate.simulation import Ledger
from quorate.simulation.world import Setting, World, open_world

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path


def new_cluster(
    directory: Path, members: int = 3, *, setting: Setting | None = None
) -> AbstractAsyncContextManager[World[Ledger]]:
    """Open a world without stores; no member runs yet."""
    made = attrs.evolve(setting or Setting(), members=members, founded=False, contain=True)
    return open_world(directory, Ledger, made)


@asynccontextmanager
async def begun_cluster(directory: Path) -> AsyncGenerator[tuple[World[Ledger], int]]:
    """Open a world of three members that have founded their cluster; yield it and its leader."""
    async with new_cluster(directory) as world:
        await world.start()
        yield world, await world.settled()
