"""Several groups in one run: slots move in storms, and nothing is lost or served twice."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import RequestError
from quorate.keyvalue.slots.hashing import key_slot
from quorate.partitions.groups import slots_command
from quorate.simulation import Plan, run, simulate
from quorate.simulation.machines.setting import TIMEOUTS, Setting
from quorate.simulation.partitions.book import Book
from quorate.simulation.partitions.groups import PlainGroup, doors_of, open_cluster
from quorate.simulation.scenarios import SCENARIOS
from quorate.simulation.watching.trace import Trace
from quorate.simulation.watching.watched import unseal
from quorate.simulation.workloads.base import encode
from tests.simulation.mutants.partitions import (
    PARTITION_MUTANTS,
    PartitionMutant,
    hunt_partition,
)

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.keyvalue.protocol.resp import Reply
    from quorate.node import Service
    from quorate.simulation import World

CHEAP = (
    "thaw_before_the_drop",
    "give_rows_new_revisions",
    "remove_before_there_is_another",
)
SLOW = ("found_each_by_its_share",)
SECONDS = 8.0
LEASED = attrs.evolve(TIMEOUTS, leader_lease=0.4)
KEY = b"key"


def test_slots_move_in_storms() -> None:
    outcome = simulate(Plan(1, 3, SECONDS / 3600, "partitions"))
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 100
    assert outcome.faults["moved"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 7])
def test_slots_move_in_more_storms(seed: int) -> None:
    outcome = simulate(Plan(seed, 3, 2 * SECONDS / 3600, "partitions"))
    assert outcome.violation is None, outcome.story


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name in SLOW))
        for each in PARTITION_MUTANTS
        if each.name in CHEAP + SLOW
    ],
)
def test_a_move_with_one_rule_removed_is_found(mutant: PartitionMutant) -> None:
    found = hunt_partition(mutant)
    assert found is not None
    assert found.violation.startswith(tuple(f"ViolationError: {rule}: " for rule in mutant.by))


def test_an_old_leader_with_a_lease_does_not_answer_for_slots_that_have_moved(
    tmp_path: Path,
) -> None:
    before, after = run(_split_brain, tmp_path, seed=0)
    assert before, "the lease never answered: the schedule shows nothing"
    assert not after, "a read was served by the old owner"


def test_an_old_leader_that_wakes_up_does_not_answer_for_slots_that_have_moved(
    tmp_path: Path,
) -> None:
    async def split_brain() -> tuple[int, int]:
        return await _split_brain(tmp_path, still=True)

    _, after = run(split_brain, seed=0)
    assert not after, "a read was served by the old owner"


async def _split_brain(directory: Path, *, still: bool = False) -> tuple[int, int]:
    """Move a slot while its leader is cut off; return reads that it answered before and after.

    Args:
        directory: for the members' stores.
        still: the leader also stands still until the slot has moved. Then a read is what it gets
            first.
    """
    setting = Setting(timeouts=LEASED, seed=0)
    slot = str(key_slot(KEY))
    async with open_cluster(directory, setting, SCENARIOS["calm"], Book([0, 1]), Trace()) as them:
        for group in them.groups.values():
            await group.world.start()
        source, target = (
            PlainGroup(door)
            for number, door in doors_of(them, 1, random.Random(0)).items()
            if number in them.partitions
        )
        await slots_command(source, "FOUND", "0-16383")
        await slots_command(target, "FOUND", "")
        await source.execute("SET", KEY, "value")
        world = them.groups[0].world
        old = await world.settled()
        await slots_command(target, "IMPORT", 7, slot)
        page = await slots_command(source, "ROWS", slot, "", 100)
        await slots_command(target, "CHUNK", 7, 1, *_words(page))
        owned = trio.Event()
        async with trio.open_nursery() as nursery:
            reads = _Reads(world, old, owned)
            nursery.start_soon(reads.run)
            world.isolate(old)
            if still:
                world.pause(old)
            frozen = await slots_command(source, "FREEZE", 7, slot, 1)
            await slots_command(target, "OWN", 7, *_words([b"", frozen]))
            owned.set()
            world.resume(old)
            await trio.sleep(2.0)
            nursery.cancel_scope.cancel()
        return reads.before, reads.after


def _words(page: Reply) -> list[bytes | int]:
    """Return the words of all rows of a page."""
    words: list[bytes | int] = []
    assert isinstance(page, list)
    for row in page[1:]:
        assert isinstance(row, list)
        words += [each for each in row if isinstance(each, bytes | int)]
    return words


@attrs.define
class _Reads:
    """Reads at one member, one after the other.

    Args:
        world: its group.
        member: the member.
        owned: another group owns the key.
    """

    world: World[Service]
    member: int
    owned: trio.Event
    before: int = 0
    after: int = 0

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.world.hosts[self.member].awake()
            late = self.owned.is_set()
            with trio.move_on_after(0.05):
                await self._read(late=late)
            await trio.sleep(0.002)

    async def _read(self, *, late: bool) -> None:
        try:
            found = await self.world.hosts[self.member].running.query(encode(b"GET", KEY))
        except RequestError:
            return
        if unseal(found)[1] == b"$5\r\nvalue\r\n":
            self.before, self.after = self.before + (not late), self.after + late
