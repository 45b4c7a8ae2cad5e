"""Pushes to many clients are spread over passes of the event loop."""

import trio
import trio.testing

from quorate.keyvalue.port.push_turns import PUSHES_AT_ONCE, PushTurns

COUNT = 5 * PUSHES_AT_ONCE // 2


class Passes(trio.abc.Instrument):
    """Counts the pushes in each pass of the event loop."""

    def __init__(self) -> None:
        self.counts = [0]

    def after_io_wait(self, timeout: float) -> None:
        self.counts.append(0)


async def test_a_burst_is_spread_over_passes_and_each_push_has_its_turn() -> None:
    turns, passes, sent = PushTurns(), Passes(), list[int]()

    async def push(number: int) -> None:
        await turns.enter()
        sent.append(number)
        passes.counts[-1] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.run)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(passes)
        for _ in range(2):  # the second burst finds everything as the first one did
            for number in range(COUNT):
                nursery.start_soon(push, number)
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(sent) == [*range(COUNT)]
            assert max(passes.counts) <= PUSHES_AT_ONCE
            sent.clear()
        trio.lowlevel.remove_instrument(passes)
        nursery.cancel_scope.cancel()


async def test_a_single_push_need_not_wait() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await PushTurns().enter()
    assert not scope.cancelled_caught
