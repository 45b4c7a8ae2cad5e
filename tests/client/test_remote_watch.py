"""A watch over connections, in virtual time: which member it asks, and when it gives up."""

import math
import random
from collections.abc import Sequence

import anyio
import hiredis
import pytest
import trio

from quorate.client import watch as watch_module
from quorate.client.dialling import Dialler, Value, Wire
from quorate.client.watch import SILENCE_SECONDS, RemoteWatch, RemoteWatches
from quorate.errors import (
    HandshakeError,
    KeyValueError,
    NoLeaderError,
    RefusedError,
    WatchLostError,
)
from quorate.keyvalue.protocol.resp import encode_command
from quorate.keyvalue.state.changes import Change, ChangeKind
from quorate.keyvalue.state.pushes import (
    PART_BYTES,
    encode_ended,
    encode_entries,
    encode_lost,
    encode_progress,
)
from quorate.transport import Address

MEMBERS = [Address("a", 1), Address("b", 2)]
BEGUN: list[Value] = [1, 5]
CUT = ConnectionResetError("cut")
DOWN = KeyValueError("CLUSTERDOWN no leader")
NO_PUSHES = ConnectionRefusedError("nobody listens")


def change(position: int, value: bytes = b"v", *, more: bool = False) -> Change:
    return Change(position, ChangeKind.SET, b"k", value, 0, more)


def decoded(data: bytes) -> Value:
    reader = hiredis.Reader()
    reader.feed(data)
    value: Value = reader.gets()
    return value


def entry(*changes: Change) -> Value:
    ((_, data),) = encode_entries(1, changes)
    return decoded(data)


class ScriptedWire(Wire):
    """A connection on which values, errors and pauses (seconds) come as a list says."""

    def __init__(self, address: Address, script: list[object]) -> None:
        self.address = address
        self.script = script
        self.sent: list[bytes] = []
        self.closed = False

    async def send(self, data: bytes) -> None:
        self.sent.append(data)

    async def receive(self, silence_s: float = math.inf) -> Value:
        await anyio.lowlevel.checkpoint()
        while self.script and isinstance(self.script[0], float):
            with anyio.move_on_after(silence_s) as scope:
                await anyio.sleep(self.script[0])
            if scope.cancelled_caught:
                raise TimeoutError("silent")
            self.script.pop(0)
        if not self.script:
            await anyio.sleep(silence_s)
            raise TimeoutError("silent")
        value = self.script.pop(0)
        if isinstance(value, OSError):
            raise value
        return value  # type: ignore[return-value]

    async def aclose(self) -> None:
        self.closed = True


class Script(Dialler):
    """Opens one connection after the other as a list says; an error is raised instead."""

    def __init__(self, *connections: list[object] | Exception) -> None:
        super().__init__()
        self.connections = list(connections)
        self.wires: list[ScriptedWire] = []
        self.dialled: list[Address] = []

    async def open(self, address: Address) -> Wire:
        self.dialled.append(address)
        await anyio.lowlevel.checkpoint()
        script = self.connections.pop(0) if self.connections else NO_PUSHES
        if isinstance(script, Exception):
            raise script
        self.wires.append(ScriptedWire(address, script))
        return self.wires[-1]

    @property
    def asked(self) -> list[list[bytes]]:
        return [wire.sent for wire in self.wires]


def watch_of(script: Script, after: int = 5, patience_s: float = 60.0) -> RemoteWatch:
    return RemoteWatch(script, MEMBERS, b"k", after, patience_s)


async def changes_of(watch: RemoteWatch, count: int) -> list[Change]:
    found: list[Change] = []
    async with watch:
        while len(found) < count:
            found.append(await anext(watch))
    return found


def begin(after: int) -> bytes:
    return encode_command(["QUORATE.WATCH", "k", "AFTER", after])


async def test_it_begins_at_a_position_that_the_leader_confirms() -> None:
    script = Script([7, BEGUN, entry(change(9))])
    watch = watch_of(script, -1)
    async with watch:
        assert watch.position == 7
        assert await anext(watch) == change(9)
        assert watch.position == 9
    assert script.asked == [[encode_command(["QUORATE.POSITION"]), begin(7)]]
    assert script.wires[0].closed


async def test_it_goes_on_at_the_next_member_after_the_last_whole_entry() -> None:
    both = change(8, b"1", more=True), change(8, b"2")
    script = Script([BEGUN, entry(*both), CUT], [BEGUN, entry(change(9))])
    assert await changes_of(watch_of(script), 3) == [*both, change(9)]
    assert script.asked == [[begin(5)], [begin(8)]]
    assert script.dialled == MEMBERS
    assert script.wires[0].closed


async def test_progress_moves_the_position_from_which_it_resumes() -> None:
    progress = decoded(encode_progress(1, 700))
    script = Script([BEGUN, progress, CUT], [BEGUN, entry(change(900))])
    assert await changes_of(watch_of(script), 1) == [change(900)]
    assert script.asked[1] == [begin(700)]


async def test_a_silent_member_is_left(autojump_clock: trio.testing.MockClock) -> None:
    progress = decoded(encode_progress(1, 6))
    script = Script([BEGUN, 10.0, progress, 10.0, progress], [BEGUN, entry(change(9))])
    began = trio.current_time()
    assert await changes_of(watch_of(script), 1) == [change(9)]
    assert trio.current_time() - began == pytest.approx(20.0 + SILENCE_SECONDS)


async def test_a_member_that_repeats_an_entry_is_left() -> None:
    script = Script([BEGUN, entry(change(9)), entry(change(9))], [BEGUN, entry(change(10))])
    assert await changes_of(watch_of(script), 2) == [change(9), change(10)]


@pytest.mark.parametrize(
    "trouble",
    [
        [b"OK"],
        [BEGUN, 5],
        [BEGUN, decoded(b">2\r\n$13\r\nquorate.watch\r\n:1\r\n")],
        [BEGUN, decoded(b">4\r\n$13\r\nquorate.watch\r\n:1\r\n:9\r\n:1\r\n")],
        [BEGUN, decoded(b">7\r\n$13\r\nquorate.watch\r\n:1\r\n:9\r\n+odd\r\n+k\r\n+v\r\n:0\r\n")],
        [BEGUN, decoded(b">1\r\n$7\r\nmessage\r\n")],
        [BEGUN, decoded(encode_ended(1, 5, "CLUSTERDOWN no leader"))],
        [DOWN],
        HandshakeError("no member"),
    ],
)
async def test_a_member_that_can_not_serve_it_or_sends_nonsense_is_left(
    trouble: list[object] | Exception,
) -> None:
    script = Script(trouble, [BEGUN, entry(change(9))])
    assert await changes_of(watch_of(script), 1) == [change(9)]


async def test_without_any_member_it_gives_up_and_may_be_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([BEGUN, CUT], *[NO_PUSHES] * 100)
    async with watch_of(script, patience_s=5.0) as watch:
        began = trio.current_time()
        with pytest.raises(NoLeaderError, match=r"watch of b'k' within 5 s: nobody listens"):
            await anext(watch)
        assert 4.0 < trio.current_time() - began <= 5.0
        assert len(script.dialled) < 20
        script.connections[:] = [[BEGUN, entry(change(9))]]
        assert await anext(watch) == change(9)


def lost(oldest: int) -> list[object]:
    return [BEGUN, decoded(encode_lost(1, 5, oldest, f"from {oldest} on"))]


async def test_a_gap_at_all_members_is_an_error_that_says_where_to_resume() -> None:
    script = Script(lost(400), lost(500), [BEGUN, entry(change(400))])
    async with watch_of(script) as watch:
        with pytest.raises(WatchLostError, match="from 400 on") as caught:
            await anext(watch)
        assert (caught.value.after, caught.value.oldest) == (5, 400)
        assert script.dialled == MEMBERS
        assert await anext(watch) == change(400)


async def test_another_member_may_still_have_what_one_has_lost() -> None:
    script = Script(lost(400), [BEGUN, entry(change(9))])
    assert await changes_of(watch_of(script), 1) == [change(9)]
    assert script.asked == [[begin(5)]] * 2


async def test_a_gap_is_an_error_too_if_the_others_can_not_be_reached(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script(lost(400), NO_PUSHES, lost(400))
    began = trio.current_time()
    with pytest.raises(WatchLostError):
        await changes_of(watch_of(script), 1)
    assert trio.current_time() - began < 1.0


async def test_gaps_that_were_passed_are_forgotten() -> None:
    progress = decoded(encode_progress(1, 6))
    script = Script(lost(400), [BEGUN, progress, CUT], lost(400), [BEGUN, entry(change(9))])
    assert await changes_of(watch_of(script), 1) == [change(9)]


async def test_a_member_that_waits_for_a_replay_has_passed_no_gap() -> None:
    progress = decoded(encode_progress(1, 5))
    script = Script(lost(400), [BEGUN, progress, lost(500)[1]])
    with pytest.raises(WatchLostError):
        await changes_of(watch_of(script), 1)
    assert script.dialled == MEMBERS


async def test_a_watch_that_falls_behind_at_each_member_in_turn_hears_of_it() -> None:
    script = Script(*([BEGUN, entry(change(n)), lost(1)[1]] for n in range(6, 20)))
    async with watch_of(script) as watch:
        for number in (6, 7):
            assert await anext(watch) == change(number)
        with pytest.raises(WatchLostError) as caught:
            await anext(watch)
    assert caught.value.after == 7


async def test_a_position_that_the_log_has_not_reached_is_refused_at_once() -> None:
    script = Script([KeyValueError("BEYOND after = 9: the log ends at 5")])
    with pytest.raises(RefusedError, match=r"^after = 9: the log ends at 5$"):
        await changes_of(watch_of(script), 1)
    assert len(script.dialled) == 1


def parts(*changes: Change) -> list[Value]:
    return [decoded(data) for _, data in encode_entries(1, changes)]


LARGE = [change(8, value * PART_BYTES, more=value != b"3") for value in (b"1", b"2", b"3")]


async def test_a_large_entry_comes_in_parts_and_is_returned_whole() -> None:
    assert len(parts(*LARGE)) == 3
    script = Script([BEGUN, *parts(*LARGE)[:2], CUT], [BEGUN, *parts(*LARGE), entry(change(9))])
    async with watch_of(script) as watch:
        assert await watch.entries() == LARGE
        assert watch.position == 8
        assert await watch.entries() == [change(9)]
    assert script.asked == [[begin(5)]] * 2


async def test_a_member_that_leaves_an_entry_unfinished_or_has_too_much_of_it_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "MAX_ENTRY_BYTES", 3 * PART_BYTES + 3)
    unfinished, endless = [parts(*LARGE)[0], entry(change(9))], [parts(*LARGE)[0]] * 4
    script = Script([BEGUN, *unfinished], [BEGUN, *endless], [BEGUN, *parts(*LARGE)])
    assert await changes_of(watch_of(script), 3) == LARGE


async def test_one_that_is_closed_while_it_dials_or_waits_ends_and_keeps_no_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    connections: list[list[object]] = [[2.0, BEGUN], [BEGUN, 2.0, entry(change(9))]]
    for connection in connections:
        script = Script(connection)
        watch = watch_of(script)
        found: list[Change] = []

        async def collect(watch: RemoteWatch = watch, found: list[Change] = found) -> None:
            found.extend([change async for change in watch])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            await trio.sleep(1.0)
            await watch.aclose()
        assert not found
        assert [wire.closed for wire in script.wires] == [True]


@pytest.mark.parametrize(
    "connection",
    [
        KeyValueError("WRONGPASS invalid"),
        [KeyValueError("NOPERM no")],
        [BEGUN, decoded(encode_ended(1, 5, "NOPERM no"))],
        [KeyValueError("ERR a log position in the future")],
    ],
)
async def test_what_every_member_would_refuse_is_raised_at_once(
    connection: list[object] | Exception,
) -> None:
    script = Script(connection)
    with pytest.raises(KeyValueError):
        await changes_of(watch_of(script), 1)
    assert len(script.dialled) == 1


async def test_a_wait_that_is_cancelled_loses_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([BEGUN, 2.0, entry(change(9)), 1.0, entry(change(10))])
    async with watch_of(script) as watch:
        with trio.move_on_after(1.0):
            await anext(watch)
        assert await anext(watch) == change(9)
        assert await anext(watch) == change(10)
    assert len(script.dialled) == 1


async def test_a_beginning_that_is_cancelled_closes_its_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = Script([5.0, BEGUN], [BEGUN, entry(change(9))])
    watch = watch_of(script)
    with trio.move_on_after(1.0):
        await anext(watch)
    assert script.wires[0].closed
    assert await anext(watch) == change(9)
    await watch.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


async def test_watches_are_spread_over_the_members() -> None:
    class Everywhere(Script):
        async def open(self, address: Address) -> Wire:
            self.connections[:] = [[BEGUN]]
            return await super().open(address)

    script = Everywhere()
    watches = RemoteWatches(script, MEMBERS, patience_s=1.0, rng=random.Random(1))
    for _ in range(20):
        async with watches.watch(b"k", 5):
            pass
    assert set(script.dialled) == set(MEMBERS)


def test_it_runs_on_asyncio() -> None:
    script = Script([BEGUN, entry(change(8)), CUT], [BEGUN, entry(change(9))])
    found: Sequence[Change] = anyio.run(changes_of, watch_of(script), 2, backend="asyncio")
    assert found == [change(8), change(9)]
