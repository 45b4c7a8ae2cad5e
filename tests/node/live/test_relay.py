"""One member shows all of them, and never as fresh what it has not heard."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from quorate.errors import HandshakeError, WireError
from quorate.node.live.relay import Shift
from quorate.node.live.reports import LINE_BYTES, MOST_BYTES, events_untrusted, joined
from quorate.node.live.subscription import MOST_WAITING, Feed
from quorate.recordings import Event
from quorate.simulation.ledger import open_ledgers
from quorate.transport import (
    NULL_VALUE,
    PROTOCOL_VERSION,
    Address,
    Hello,
    StreamPurpose,
    open_stream,
)
from quorate.transport.testing.direction import Pace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from quorate.node.live.subscription import Subscription
    from quorate.simulation import Ledger, World

    Clock = trio.testing.MockClock


@asynccontextmanager
async def watching(world: World[Ledger], member: int) -> AsyncGenerator[Subscription, None]:
    """Watch the cluster from a member."""
    async with trio.open_nursery() as nursery:
        relay = world.hosts[member].running.make_relay()
        nursery.start_soon(relay.run)
        with relay.subscribe() as events:
            yield events
        nursery.cancel_scope.cancel()


async def seen(events: Subscription, seconds: float) -> list[Event]:
    """Everything that is reported within some seconds."""
    found: list[Event] = []
    with trio.move_on_after(seconds):
        while True:
            found += await events.batch()
    return found


def statuses(events: list[Event], member: int) -> list[dict[str, Any]]:
    return [
        each.fields["status"] for each in events if (each.member, each.kind) == (member, "status")
    ]


async def test_a_member_shows_all_members_each_in_its_own_words(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        leader = await world.settled()
        follower = next(each for each in world.hosts if each != leader)
        async with watching(world, follower) as events:
            first, *rest = await seen(events, 3)
            assert first.kind == "keyframe"
            assert [*first.fields["members"]] == [str(follower)]
            for member in world.hosts:
                said = statuses(rest, member)
                assert 12 <= len(said) <= 17
                assert {each["member_id"] for each in said} == {member}
                assert {each["role"] for each in said} == {
                    "leader" if member == leader else "follower"
                }
            assert all(each.fields["by"] == each.member for each in rest)
            # Each has sent the steps that it took before, once; a page opened now gets all of them.
            sent = [each for each in rest if each.kind == "keyframe"]
            assert {each.member for each in sent} == {*world.hosts} - {follower}
            assert len(sent) == 2
            picture = events._feed.keyframe()
            for member, host in world.hosts.items():
                steps = picture.fields["members"][str(member)]["steps"]
                kept = host.running.reporter.kept_steps()
                assert steps[-1]["after"] == "CLOSED"
                assert [each["ago"] for each in steps] == pytest.approx(
                    [each["ago"] for each in kept], abs=0.05
                )
                assert [each["reason"] for each in steps] == [each["reason"] for each in kept]
        # Nobody watches any more, so nobody is asked.
        await trio.sleep(3)
        assert not any(host.running.reporter.feed.watched for host in world.hosts.values())


async def test_a_member_that_is_cut_off_is_shown_as_old_and_then_as_new(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        leader = await world.settled()
        watched, other = (each for each in world.hosts if each != leader)
        async with watching(world, watched) as events:
            await seen(events, 2)
            cut_at = world.hosts[watched].running.reporter.now()
            world.isolate(leader)
            during = await seen(events, 4)
            # What was on its way comes; after that there is not one figure of the lost member.
            late = [each for each in during if each.member == leader and each.kind == "status"]
            assert all(each.at < cut_at + 0.3 for each in late)
            assert statuses(during, other)
            keyframe = events._feed.keyframe().fields["members"]
            assert keyframe[str(leader)]["heard_ms"] > 3000
            assert keyframe[str(leader)]["status"]["role"] == "leader"
            assert keyframe[str(other)]["heard_ms"] < 500
            # So two of them say that they lead: each is shown, by its own word and age.
            assert {keyframe[str(each)]["status"]["role"] for each in (watched, other)} == {
                "leader",
                "follower",
            }
            assert [each.fields["term"] for each in during if each.kind == "leads"] == [1]
            world.mend()
            after = await seen(events, 8)
            assert statuses(after, leader)[-1]["role"] == "follower"
            assert events._feed.keyframe().fields["members"][str(leader)]["heard_ms"] < 500


async def test_one_that_sleeps_gets_a_keyframe(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        await world.settled()
        async with watching(world, 0) as events:
            await trio.sleep(10)
            assert len(events._waiting) <= MOST_WAITING
            (first,) = events.take()
            assert first.kind == "keyframe"
            assert {each["heard_ms"] < 500 for each in first.fields["members"].values()} == {True}


async def test_a_status_has_rates_and_a_slow_batch_is_an_event(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        leader = await world.settled()
        follower = next(each for each in world.hosts if each != leader)
        async with watching(world, follower) as events:
            await seen(events, 1)
            for other in world.hosts:
                world.network.set_pace(f"h{leader}", f"h{other}", Pace(0.02))
            for _ in range(20):
                await world.command(leader, b"x")
            found = await seen(events, 0.5)
            assert 1 < statuses(found, leader)[-1]["rates"]["commits"] <= 40
            assert statuses(found, leader)[-1]["quantiles"]["commit"]["p50"] >= 0.02
            assert statuses(found, leader)[-1]["rates"]["commands"] is None  # there is no port
            slow = [each for each in found if each.kind == "batch"]
            assert {each.member for each in slow} == {leader}
            assert len(slow) <= 20
            assert all(each.fields["quorum"] >= 0.02 for each in slow)
            parts = ("receive", "sync", "quorum", "apply", "reply")
            for each in slow:
                total = sum(each.fields[part] for part in parts)
                assert total == pytest.approx(each.fields["took"])


async def test_only_members_are_shown_events(tmp_path: Path, autojump_clock: Clock) -> None:
    async with open_ledgers(tmp_path, 3) as world:
        await world.start()
        await world.settled()
        hello = Hello("simulated", NULL_VALUE, PROTOCOL_VERSION, 0, StreamPurpose.EVENTS)
        with pytest.raises(HandshakeError, match="expected the id of another member"):
            await open_stream(world.network.host("tool"), Address("h0", 7000), hello)


def keyframe_of_nothing() -> Event:
    return Event(0.0, 0, "keyframe", {"members": {}})


def test_a_subscription_holds_little() -> None:
    feed = Feed(keyframe_of_nothing)
    events = feed.subscribe()
    assert [each.kind for each in events.take()] == ["keyframe"]
    for number in range(1000):
        feed.publish(Event(number, number % 3, "status", {"status": {}}))
    # Only the newest status of each member is of use.
    assert [each.at for each in events.take()] == [997, 998, 999]
    for number in range(MOST_WAITING):
        feed.publish(Event(number, 0, "note"))
    assert len(events.take()) == MOST_WAITING
    for number in range(10 * MOST_WAITING):
        feed.publish(Event(number, 0, "note"))
    assert [each.kind for each in events.take()] == ["keyframe"]
    assert events.take() == []
    events.close()
    events.close()
    assert not feed.watched


async def test_what_is_in_no_hurry_waits_for_what_is(nursery: trio.Nursery) -> None:
    feed = Feed(keyframe_of_nothing)
    events = feed.subscribe()
    events.take()
    taken: list[list[str]] = []

    async def watch() -> None:
        while True:
            taken.append([each.kind for each in await events.batch()])

    nursery.start_soon(watch)
    await trio.testing.wait_all_tasks_blocked()
    for kind in ("status", "batch"):
        feed.publish(Event(1.0, 1, kind), hurried=False)
        await trio.testing.wait_all_tasks_blocked()
    assert taken == []
    feed.publish(Event(1.0, 0, "status"))
    await trio.testing.wait_all_tasks_blocked()
    assert taken == [["status", "batch", "status"]]
    for number in range(MOST_WAITING + 1):
        feed.publish(Event(number, 1, "batch"), hurried=False)
    await trio.testing.wait_all_tasks_blocked()
    assert taken[1:] == [["keyframe"]]


def test_what_another_member_reports_is_checked() -> None:
    fine = Event(1.5, 2, "enters", {"before": "INIT", "after": "CANVASS"}).as_json().encode()
    assert events_untrusted(fine, 2)[0].fields == {"before": "INIT", "after": "CANVASS"}
    more = b'{"at":1,"member":2,"kind":"enters","by":2,"after":"INIT","script":"x"}'
    (event,) = events_untrusted(more, 2)
    assert event.fields == {"after": "INIT"}
    assert event.as_json() == '{"at":1.0,"member":2,"kind":"enters","after":"INIT"}'
    (event,) = events_untrusted(b'{"at":1,"member":2,"kind":"starts"}', 2)
    assert event.as_json() == '{"at":1.0,"member":2,"kind":"starts"}'
    assert events_untrusted(b'{"at":1,"member":2,"kind":"new"}', 2) == []
    picture = b'{"at":1,"member":2,"kind":"keyframe","members":{"2":{"status":{"term":3}}}}'
    own: dict[str, Any] = {"status": {"term": 3}, "steps": [], "by": 2, "heard_ms": 0}
    assert events_untrusted(picture, 2) == [Event(1.0, 2, "keyframe", {"members": {"2": own}})]
    steps = b'"steps":[7,{"after":"INIT"},{"ago":2,"after":"INIT","script":"x"}]'
    (event,) = events_untrusted(picture.replace(b'"status"', steps + b',"status"'), 2)
    assert event.fields["members"]["2"]["steps"] == [{"ago": 2, "after": "INIT"}]
    for wrong in (
        b"",
        b"\xff",
        b"[]",
        b"[" * 60_000,
        b'{"at":1}',
        b'{"at":NaN,"member":2,"kind":"note"}',
        b'{"at":1e999,"member":2,"kind":"note"}',
        b'{"at":true,"member":2,"kind":"note"}',
        b'{"at":1,"member":1,"kind":"note"}',
        b'{"at":1,"member":2,"kind":"note","by":1}',
        b'{"at":1,"member":2,"kind":"status","status":7}',
        b'{"at":1,"member":2,"kind":"status","status":{"lease_s":1e999}}',
        b'{"at":1,"member":2,"kind":"keyframe","members":[2]}',
        b'{"at":1,"member":2,"kind":"keyframe","members":{"2":7}}',
        fine + b" " * LINE_BYTES,
        (fine + b"\n") * 10_000,
        b'{"at":1,"member":2,"kind":"status","status":%b1%b}' % (b'{"a":' * 8, b"}" * 8),
        b'{"at":1,"member":2,"kind":"status","status":{"a":%b1%b}}' % (b"[" * 977, b"]" * 977),
    ):
        with pytest.raises(WireError):
            events_untrusted(wrong, 2)


def test_the_shift_between_two_clocks_follows_them_both_ways() -> None:
    for drift in (-1e-4, 1e-4):
        shift = Shift()
        for second in range(10_000):
            ours = second * (1 + drift) + 100
            slow = 0.5 if second % 10 else 0.0  # most messages are late
            found = shift.found(second, ours + slow)
            assert abs(second + found - ours) <= (0.5 if second == 0 else 0.013)


def test_reports_are_short() -> None:
    lines = [b"x" * 60_000] * 9 + [b"y" * (LINE_BYTES + 1)]
    reports = joined(lines)
    assert [len(each) for each in reports] == [240_003, 240_003, 60_000]
    assert max(map(len, reports)) <= MOST_BYTES
    assert joined([]) == []
