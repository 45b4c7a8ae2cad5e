"""Slots move only where the same users guard them, and a new partition has them from the start."""

from pathlib import Path
from random import Random

import pytest
import trio

from quorate.keyvalue.programs.encoding import decoded
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.slots.cluster_map import META
from quorate.keyvalue.slots.ranges import parse_slots_untrusted
from quorate.partitions.balance import first_map, split
from quorate.partitions.director import Director
from quorate.partitions.groups import slots_command
from quorate.partitions.metadata import change
from quorate.partitions.users import differing, lines_of
from quorate.partitions.wishes import plan_move, request_moves
from tests.support.partitions_world import FATES, LATE_S, Link, World, machines, opened

HASH = "#" + "a" * 64
SLOTS = parse_slots_untrusted("0-99")


def acl(world: World, partition: int, line: str) -> None:
    """Change the users of a partition."""
    words = ("ACL", *line.split())
    reply = world.apply(partition, tuple(word.encode() for word in words))
    assert not reply.startswith(b"-"), reply


def users(world: World, partition: int) -> object:
    return decoded(world.groups[partition].run((b"ACL", b"LIST")))


async def direct(world: World) -> None:
    await Director(Link(world), Random(1)).run()


async def until_done(world: World) -> None:
    with trio.fail_after(300):
        while world.map().moves:  # noqa: ASYNC110 - what it waits for is in the service
            await trio.sleep(0.1)


async def test_a_partition_of_a_split_has_the_users_before_it_has_slots(
    tmp_path: Path, autojump_clock: object
) -> None:
    first = first_map("orders", machines(3), 1, 3)
    async with opened(tmp_path, 2, first=first) as world:
        acl(world, 0, "SETUSER default reset off")
        acl(world, 0, f"SETUSER app on {HASH} ~app:* %R~all:* resetchannels +@read -keys +set")
        acl(world, 1, "SETUSER guest on nopass ~* +@all")
        world.nursery.start_soon(direct, world)
        await change(Link(world).group(META), split)
        await until_done(world)
        assert users(world, 1) == users(world, 0)
        assert world.owned(1)
        names = [words[:2] for partition, words in world.words if partition == 1]
        # In one entry with the slots: a user that is copied later may be gone at its source.
        assert not any(words[0] == b"ACL" and words[1] != b"LIST" for words in names)


async def test_a_partition_of_a_split_waits_for_the_users(
    tmp_path: Path, autojump_clock: object
) -> None:
    first = first_map("orders", machines(3), 1, 3)
    async with opened(tmp_path, 2, first=first) as world:
        world.groups[0].answers = False
        world.nursery.start_soon(direct, world)
        await change(Link(world).group(META), split)
        await trio.sleep(5)
        assert not any(words[1] == b"FOUND" for _partition, words in world.words)


async def test_users_that_a_director_brings_late_do_not_come_back(
    tmp_path: Path, autojump_clock: object
) -> None:
    first = first_map("orders", machines(3), 1, 3)
    async with opened(tmp_path, 2, first=first) as world:
        acl(world, 0, f"SETUSER app on {HASH} ~app:* +@read")
        late: list[tuple[bytes, ...]] = []
        importing = trio.Event()

        def fate(_number: int, words: tuple[bytes, ...]) -> str | None:
            if words[1] == b"IMPORT":
                importing.set()
            if not late and any(b"app" in word for word in words):
                late.append(words)
                return "late"
            return None

        world.fate = fate
        world.nursery.start_soon(direct, world)
        await change(Link(world).group(META), split)
        with trio.fail_after(60):
            await importing.wait()
        assert late
        for partition in (0, 1):  # an operator revokes it everywhere
            acl(world, partition, "DELUSER app")
        await until_done(world)
        await trio.sleep(2 * LATE_S)
        assert users(world, 1) == users(world, 0)
        assert world.owned(1)


@pytest.mark.parametrize("line", ["SETUSER default off", f"SETUSER app on {HASH}"])
async def test_slots_do_not_move_to_other_users(
    tmp_path: Path, autojump_clock: object, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    async with opened(tmp_path) as world:
        acl(world, 0, line)
        world.nursery.start_soon(direct, world)
        moves = plan_move(world.map(), SLOTS, 1)
        await request_moves(Link(world).group(META), moves)
        await trio.sleep(4)
        assert not world.owned(1) & SLOTS
        name = line.split()[1]
        assert f"the users of partitions 0 and 1 differ: {name}; expected the same" in caplog.text
        acl(world, 1, line)  # as it says
        await until_done(world)
        assert world.owned(1) & SLOTS == SLOTS


async def test_users_that_change_during_the_copying_keep_the_slots_where_they_are(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:

        def fate(_number: int, words: tuple[bytes, ...]) -> None:
            if words[1] == b"ROWS":
                acl(world, 0, f"SETUSER app on {HASH}")

        world.fate = fate
        world.nursery.start_soon(direct, world)
        await request_moves(Link(world).group(META), plan_move(world.map(), SLOTS, 1))
        await trio.sleep(4)
        assert any(words[1] == b"ROWS" for _partition, words in world.words)
        assert not any(words[1] == b"FREEZE" for _partition, words in world.words)


@pytest.mark.parametrize("fate", [fate for fate in FATES if "dies" not in fate])
async def test_users_come_with_the_first_slots_whatever_is_lost(
    tmp_path: Path, autojump_clock: object, fate: str
) -> None:
    async with opened(tmp_path) as world:
        acl(world, 0, f"SETUSER app on {HASH} ~app:* +@read")
        acl(world, 0, "SETUSER default off")
        acl(world, 1, "SETUSER guest on nopass ~* +@all")
        world.fate = lambda number, _words: fate if number % 2 == 0 else None
        source, target = (Link(world).group(each) for each in (0, 1))
        assert await differing(source, target) == ["app", "default", "guest"]
        await slots_command(target, "FOUND", "", *await lines_of(source))
        assert await differing(source, target) == []


async def test_users_that_are_none_found_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        before = users(world, 0)
        default = b"user default on nopass ~* &* +@all"
        for line in (b"user", b"user app", b"user app on +nothing", b"app on", b"user app on"):
            lines = (default, line) if line != b"user app on" else (line,)
            reply = world.apply(0, (b"QUORATE.SLOTS", b"FOUND", b"0-99", *lines))
            assert reply.startswith(b"-ERR "), line
            assert users(world, 0) == before
        assert world.apply(0, (b"QUORATE.SLOTS", b"FOUND", b"0-99", default)) == resp.OK
        guest = b"user guest on nopass ~* &* +@all"
        reply = world.apply(0, (b"QUORATE.SLOTS", b"FOUND", b"0-99", default, guest))
        assert reply == b"+FOUNDED\r\n"
        assert users(world, 0) == before
