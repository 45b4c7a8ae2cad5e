"""A change of keys that very many watches wait for wakes them in turns."""

import pytest
import trio
import trio.testing

from quorate.keyvalue.programs.watch import LocalWatches
from quorate.keyvalue.state.changes import (
    FLUSHED,
    WOKEN_AT_ONCE,
    Change,
    ChangeKind,
    RecentChanges,
)
from tests.keyvalue.port.test_push_turns import Passes

COUNT = 5 * WOKEN_AT_ONCE // 2


@pytest.mark.parametrize("flush", [False, True])
async def test_watches_wake_in_turns_and_each_one_wakes(*, flush: bool) -> None:
    recent, passes = RecentChanges(0), Passes()
    source, found = LocalWatches(recent), list[Change]()

    async def follow(number: int, scope: trio.CancelScope) -> None:
        with scope:
            async for change in source.watch(b"k%d" % number if flush else b"k", 0):
                passes.counts[-1] += 1
                found.append(change)

    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(COUNT)]
        for number, scope in enumerate(scopes):
            nursery.start_soon(follow, number, scope)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(passes)
        kind = ChangeKind.FLUSHED if flush else ChangeKind.SET
        row = (b"", (b"", 0, 1, FLUSHED)) if flush else (b"k", (b"v", 0, 1, 1))
        recent.note(row)
        recent.advance(1)
        for scope in scopes[::7]:  # some go while they wait for their turn, some at it
            scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(passes)
        assert COUNT - len(scopes[::7]) <= len(found) <= COUNT
        assert {change.kind for change in found} == {kind}
        assert max(passes.counts) <= WOKEN_AT_ONCE + len(scopes[::7])
        nursery.cancel_scope.cancel()
