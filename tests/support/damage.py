"""Clusters with filled logs, and damage to these logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lmdb

from quorate.simulation.ledger import equal
from quorate.simulation.machines.disk import carry_over_journal
from quorate.storage import verify
from quorate.storage.log.log_table import KEY

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.simulation import Ledger, World


async def write(world: World[Ledger], at: int, count: int) -> None:
    """Execute a number of commands through a member, and wait until all members have them."""
    for i in range(count):
        await world.command(at, b"%d" % i)
    await equal(world)


async def filled(world: World[Ledger], count: int) -> int:
    """Start all members, and wait until all have a number of commands; return the leader."""
    await world.start()
    leader = await world.settled()
    await write(world, leader, count)
    return leader


async def back(world: World[Ledger], *members: int) -> None:
    """Start members, and wait until all have the same commands."""
    await world.start(*members)
    await world.settled()
    await equal(world)


async def whole_again(world: World[Ledger], member: int) -> None:
    """Check that a member's log is damaged, and that the member runs again after a repair."""
    await world.kill(member)
    assert verify(world.hosts[member].config.directory / "log").ok
    await world.start(member)
    await world.settled()


def spoil(folder: Path, which: list[int], *, missing: bool = False) -> list[int]:
    """Damage or remove some batches of a log, by their numbers; return their positions."""
    carry_over_journal(folder / "log")
    with lmdb.open(str(folder / "log"), max_dbs=8, map_size=1 << 30) as environment:
        db = environment.open_db(b"log", create=False)
        with environment.begin(write=True) as txn:
            found = list(txn.cursor(db))
            for number in which:
                key, value = found[number]
                if missing:
                    txn.delete(key, db=db)
                else:
                    txn.put(key, bytes([*value[:-1], value[-1] ^ 1]), db=db)
    return [KEY.unpack(found[number][0])[1] for number in which]
