"""A copy keeps up with what clients write meanwhile."""

from pathlib import Path

import pytest
import trio

from quorate.keyvalue.commands import slot_rows
from quorate.keyvalue.slots.cluster_map import Move
from quorate.keyvalue.state import changes
from quorate.partitions import move
from tests.support.partitions_world import Link, World, opened

VALUE = b"x" * 5000
KEYS = [b"{a}%d" % at for at in range(60)]
SLOT = 15495  # of these keys


async def write(world: World) -> None:
    """Replace large values until cancelled: faster than one for each page of rows."""
    at = 0
    while True:
        world.groups[1].run((b"SET", KEYS[at % len(KEYS)], VALUE))
        at += 1
        await trio.sleep(0.012)


async def test_large_changes_do_not_overtake_a_copy(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_rows, "PAGE_BYTES", 4000)
    monkeypatch.setattr(move, "_SMALL_BYTES", 1000)
    monkeypatch.setattr(changes, "KEPT_CHANGE_BYTES", 50_000)
    async with opened(tmp_path) as world:
        for number, each in enumerate(world.map().partitions):
            world.apply(number, (b"QUORATE.SLOTS", b"FOUND", each.founded.encode()))
        for key in KEYS:
            world.groups[1].run((b"SET", key, VALUE))
        world.groups[1].service.changes.restart(world.groups[1].service.changes.position)
        world.nursery.start_soon(write, world)
        keys = await move.copy_slots(Link(world), Move(1, str(SLOT), 1, 0))
        assert keys == len(KEYS)
