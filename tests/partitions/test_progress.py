"""An operator sees how far a move is, and how it has ended."""

from pathlib import Path
from random import Random

import trio

from quorate.keyvalue.slots.cluster_map import META
from quorate.partitions.director import Director
from quorate.partitions.progress import follow_moves
from quorate.partitions.wishes import abort_move, plan_move, request_moves
from tests.support.partitions_world import Link, opened


async def test_a_move_is_reported_until_it_is_done(tmp_path: Path, autojump_clock: object) -> None:
    del autojump_clock
    said: list[str] = []
    async with opened(tmp_path) as world:
        link = Link(world)
        world.nursery.start_soon(Director(link, Random(1)).run)
        moves = plan_move(world.map(), 0b1111, 1)
        await request_moves(link.group(META), moves)
        with trio.fail_after(60):
            (outcome,) = await follow_moves(link, moves, said.append)
    assert outcome.done
    assert said[0] == "slots 0-3: partition 0 -> 1: waits"
    assert said[-1] == "slots 0-3: partition 0 -> 1: done"


async def test_a_move_that_is_aborted_has_ended_undone(
    tmp_path: Path, autojump_clock: object
) -> None:
    del autojump_clock
    said: list[str] = []
    async with opened(tmp_path) as world:
        link = Link(world)
        moves = plan_move(world.map(), 0b1111, 1)
        wanted = await request_moves(link.group(META), moves)
        await abort_move(link.group(META), wanted.moves[0].move)
        world.nursery.start_soon(Director(link, Random(1)).run)
        with trio.fail_after(60):
            (outcome,) = await follow_moves(link, moves, said.append)
    assert not outcome.done
    assert said[-1] == "slots 0-3: partition 0 -> 1: ended undone"
