"""A change of keys that very many watches wait for wakes them in turns."""

from pathlib import Path

import pytest
import trio
import trio.testing

from quorate.keyvalue.state.changes import WOKEN_AT_ONCE, Change
from tests.keyvalue.port.test_push_turns import Passes
from tests.support.watch_world import watch_world

COUNT = 5 * WOKEN_AT_ONCE // 2


@pytest.mark.parametrize(
    ("prefixes", "command"), [([b"k"], "SET k v"), ([b"k%d" % n for n in range(50)], "FLUSHALL")]
)
async def test_watches_wake_in_turns_and_each_one_wakes(
    tmp_path: Path, prefixes: list[bytes], command: str
) -> None:
    passes, found = Passes(), list[Change]()
    scopes = [trio.CancelScope() for _ in range(COUNT)]
    async with watch_world(tmp_path) as world, trio.open_nursery() as nursery:

        async def follow(number: int) -> None:
            with scopes[number]:
                async for change in world.watches.watch(prefixes[number % len(prefixes)], 0):
                    passes.counts[-1] += 1
                    found.append(change)

        for number in range(COUNT):
            nursery.start_soon(follow, number)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(passes)
        world.kept.batch(command)
        gone = scopes[::7]  # while they wait for their turn, or have it
        for scope in gone:
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(passes)
        assert COUNT - len(gone) <= len(found) <= COUNT
        assert max(passes.counts) <= WOKEN_AT_ONCE + len(gone)
        nursery.cancel_scope.cancel()
