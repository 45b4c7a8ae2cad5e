"""The map is changed by compare-and-set: nobody overwrites what another one has changed."""

from pathlib import Path

import msgspec
import pytest
import trio

from quorate.errors import ConfigurationError, ConflictError, NoLeaderError
from quorate.keyvalue.slots.cluster_map import MAP_KEY, META, ClusterMap
from quorate.partitions.balance import first_map
from quorate.partitions.metadata import again, change, found, load
from tests.support.partitions_world import Link, machines, opened


def drained(number: int, now: ClusterMap) -> ClusterMap | None:
    """Return the map with one machine more that is draining."""
    if now.machines[number].draining:
        return None
    after = list(now.machines)
    after[number] = msgspec.structs.replace(after[number], draining=True)
    return msgspec.structs.replace(now, machines=tuple(after))


async def test_a_cluster_is_founded_once(tmp_path: Path, autojump_clock: object) -> None:
    async with opened(tmp_path) as world:
        group = Link(world).group(META)
        other = first_map("orders", machines(5), 7, 3)
        assert len((await found(group, other)).partitions) == 2
        with pytest.raises(ConfigurationError, match="has the map of orders"):
            await found(group, first_map("other", machines(3), 2, 3))


async def test_a_map_that_machines_would_not_take_gets_an_epoch_that_they_take(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:
        group = Link(world).group(META)
        old = world.map()
        newest = await change(group, lambda now: msgspec.structs.replace(now, epoch=2004))
        assert (await found(group, again(newest))).epoch == 2004
        # It is lost, and the first request to come is that of a machine that has seen less.
        await group.execute("DEL", MAP_KEY)
        assert (await found(group, again(old))).epoch < newest.epoch
        assert (await found(group, again(newest))).epoch > newest.epoch
        assert world.map().epoch > newest.epoch


async def test_changes_at_once_are_all_made(tmp_path: Path, autojump_clock: object) -> None:
    async with opened(tmp_path) as world:

        async def drain(number: int) -> None:
            await change(Link(world).group(META), lambda now: drained(number, now))

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(drain, number)
        after = await load(Link(world).group(META))
        assert after is not None
        assert after.epoch == 4
        assert all(each.draining for each in after.machines)


@pytest.mark.parametrize("fate", ["lost", "unheard", "twice", "refused", "late"])
async def test_a_change_is_made_once_whatever_becomes_of_it(
    tmp_path: Path, autojump_clock: object, fate: str
) -> None:
    async with opened(tmp_path) as world:
        world.fate = lambda number, _words: fate if number == 1 else None
        after = await change(Link(world).group(META), lambda now: drained(1, now))
        assert after.epoch == 2
        await trio.sleep(2)
        assert world.map() == after


async def test_a_map_that_contradicts_itself_is_not_stored(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:
        before = world.map()
        with pytest.raises(ConfigurationError, match="the changed map: metadata"):
            await change(
                Link(world).group(META),
                lambda now: msgspec.structs.replace(now, metadata=(9,)),
            )
        assert world.map() == before


async def test_a_change_gives_up_when_others_are_always_faster(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:

        def raced(now: ClusterMap) -> ClusterMap:
            other = msgspec.structs.replace(now, epoch=now.epoch + 1)
            world.groups[META].run((b"SET", b"quorate/map", msgspec.json.encode(other)))
            return now

        with pytest.raises(ConflictError, match="changed by others"):
            await change(Link(world).group(META), raced)


async def test_a_metadata_group_without_a_majority_is_named(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:
        world.groups[META].answers = False
        with pytest.raises(NoLeaderError, match="the metadata group does not answer: refused: ex"):
            await load(Link(world).group(META))
