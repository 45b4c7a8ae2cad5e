"""Messages in flight recorders: whose they are, which clock is right, and when they end."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
import trio.lowlevel
import trio.testing

from quorate.cli.recordings.paths import Merged
from quorate.errors import RefusedError
from quorate.node.live import messages
from quorate.node.live.flight import FlightRecorder, flight_file
from quorate.node.live.messages import MessageRecorder
from quorate.recordings.merging import check
from quorate.recordings.reading import open_recording_untrusted
from quorate.simulation.ledger import Ledger, open_ledgers
from quorate.simulation.machines.clock import Clock as MachineClock
from quorate.transport import StaleLeader
from quorate.transport.outgoing import Tap

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from quorate.recordings import Event, Fields
    from quorate.simulation import World

    Clock = trio.testing.MockClock

T = TypeVar("T")

EVERYDAY = {"AppendPosition", "CommitPosition", "LogBatch"}


class Direct:
    """Runs calls in the loop, since a thread takes no virtual time."""

    async def read(self, fn: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        return fn()


@asynccontextmanager
async def recorded(path: Path, skews_ms: list[int]) -> AsyncGenerator[World[Ledger]]:
    """Run members whose clocks are wrong, each with a flight recorder."""
    async with open_ledgers(path, len(skews_ms)) as world, trio.open_nursery() as nursery:
        for i, skew_ms in enumerate(skews_ms):
            world.hosts[i].clock = MachineClock(offset_ms=skew_ms)
        await world.start()
        for host in world.hosts.values():
            while host.member is None:
                await trio.lowlevel.checkpoint()
            file = flight_file(host.config.directory)
            member = host.running
            recorder = FlightRecorder(member.reporter, file, member.messages, lane=Direct())
            await nursery.start(recorder.run)
        await world.settled()
        yield world
        nursery.cancel_scope.cancel()


def events_of(world: World[Ledger], member: int, kind: str) -> list[Event]:
    path = flight_file(world.hosts[member].config.directory)
    with open_recording_untrusted(path) as recording:
        return [event for event in recording.events if event.kind == kind]


def kinds_of(world: World[Ledger], member: int) -> set[str]:
    found = [*events_of(world, member, "sends"), *events_of(world, member, "hears")]
    return {str(event.fields["type"]) for event in found}


async def test_the_messages_of_elections_say_how_wrong_clocks_are(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with recorded(tmp_path, [0, 70_000, -3_000]) as world:
        leader = await world.settled()
        await world.hosts[leader].running.command(b"x")
        world.isolate(leader)
        await trio.sleep(3)
        world.mend()
        await world.settled()
        await trio.sleep(2)
    for member in range(3):
        kinds = kinds_of(world, member)
        assert kinds >= {"CanvassPosition", "RequestVote", "Vote", "NewLeadershipTerm"}
        assert not kinds & EVERYDAY
    files = [flight_file(world.hosts[member].config.directory).parent for member in range(3)]
    merged = Merged.of(files, one_clock=False)
    offsets = [merged.head.clocks[member].offset for member in range(3)]
    assert offsets == pytest.approx([0.0, -70.0, 3.0], abs=0.01)
    merged.write(path := tmp_path / "all.qtrace")
    with open_recording_untrusted(path) as recording:
        found = check(recording)
    assert found.matched > 20
    assert found.matched >= 0.9 * found.heard
    assert (found.early, found.unbounded) == ([], 0)
    # By their own clocks, answers would come before questions.
    Merged.of(files, one_clock=True).write(path)
    with open_recording_untrusted(path) as recording:
        assert check(recording).early


async def test_an_order_has_all_messages_recorded_for_a_while(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with recorded(tmp_path, [0, 0]) as world:
        leader = await world.settled()
        member = world.hosts[leader].running
        await trio.sleep(2)
        assert not kinds_of(world, leader) & EVERYDAY
        said = await member.control("trace start messages 3000")
        assert said == "all messages are recorded, for 3 s"
        for _ in range(3):
            await member.command(b"secret")
        await trio.sleep(5)
        assert kinds_of(world, leader) >= EVERYDAY
        # The other member has no such order.
        assert not kinds_of(world, 1 - leader) & EVERYDAY
        texts = [str(event.fields["text"]) for event in events_of(world, leader, "note")]
        assert texts == [said, "only messages of elections are recorded: the time is over"]
        sent = events_of(world, leader, "sends")
        times = [event.at for event in sent if event.fields["type"] in EVERYDAY]
        assert 2.0 < times[-1] - times[0] < 3.6
        numbers = [event.fields["n"] for event in sent if event.at >= times[0]]
        # Other ones were counted before, and none is left out now.
        assert numbers[0] > 5
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert b"secret" not in flight_file(world.hosts[leader].config.directory).read_bytes()

        monkeypatch.setattr(messages, "MAX_BYTES", 2000)
        await member.control("trace start messages 600000")
        await trio.sleep(5)
        assert not member.messages.on
        await member.control("trace start messages 1000")
        await member.control("trace stop")
        await trio.sleep(2)
        last = [str(event.fields["text"]) for event in events_of(world, leader, "note")][-3:]
        assert last[0].endswith("MiB were written")
        assert last[2].endswith("an operator has ended it")


async def test_orders_that_mean_nothing_are_refused(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await world.settled()
        member = world.hosts[0].running
        for words, why in (
            ("trace start messages 1000", "no flight recorder"),
            ("trace start", "expected trace start messages"),
            ("trace start messages 1e3", "expected trace start messages"),
        ):
            with pytest.raises(RefusedError, match=why):
                await member.control(words)
        member.messages.begin(lambda _kind, _fields: 0)
        for words in ("trace start messages 0", "trace start messages 600001"):
            with pytest.raises(RefusedError, match="expected 600 at most"):
                await member.control(words)


async def test_a_long_outage_does_not_fill_the_files(autojump_clock: Clock) -> None:
    tap, put = Tap(1), list[str]()

    def count(kind: str, _fields: Fields) -> int:
        put.append(kind)
        return 1

    MessageRecorder(tap).begin(count)
    for _ in range(200):
        for n in range(20):
            tap.heard(1, 1, n, StaleLeader(1, 1))
        await trio.sleep(1)
    found = Counter(put)
    assert messages.BURST + 150 < found["hears"] <= messages.BURST + 200
    assert found["note"] == 1
    await trio.sleep(messages.BURST)  # all is well for so long
    for n in range(messages.BURST + 1):
        tap.heard(1, 1, n, StaleLeader(1, 1))
    assert Counter(put)["note"] == 2
