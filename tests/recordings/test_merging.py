"""Several recordings become one: clocks that differ, pictures, and what can't have happened."""

import io
import random

import attrs
import pytest

from quorate.errors import RecordingError
from quorate.recordings import Event, Source
from quorate.recordings.head import MERGED, WALL, ClockOffset, Head, RecordedMember
from quorate.recordings.merging import (
    Clocks,
    Run,
    check,
    merge,
    merged_head,
    offsets,
)
from quorate.recordings.reading import Recording, read_recording_untrusted
from quorate.recordings.writing import RecordingWriter

from .example import EXAMPLE


def recording(reporter: int, events: list[Event], *, started_ms: int = 0) -> Recording:
    head = Head(
        Source.LIVE, "1", "c", WALL, started_ms, (RecordedMember(reporter),), reporter=reporter
    )
    return Recording(f"of {reporter}", head, iter(events))


def example_events() -> list[Event]:
    with EXAMPLE.open("rb") as file:
        return list(read_recording_untrusted(file, "example").events)


def skewed(member: int, ahead: float) -> tuple[list[Event], int]:
    """Return what a member with a clock that is ahead would have recorded."""
    events = [each for each in example_events() if each.member == member]
    return [attrs.evolve(each, at=each.at + 5) for each in events], round(1000 * (ahead - 5))


AHEAD = {0: 100.0, 1: 97.5, 2: 250.125}


def three() -> list[Recording]:
    found: list[Recording] = []
    for member, ahead in AHEAD.items():
        events, started_ms = skewed(member, ahead)
        found.append(recording(member, events, started_ms=started_ms))
    return found


def test_two_skewed_clocks_are_found_within_the_uncertainty_that_is_stated() -> None:
    clocks = Clocks.of(three()).by_member()
    assert clocks[0].offset == 0.0
    for member in (1, 2):
        clock = clocks[member]
        assert clock.uncertainty is not None
        # As fast as the simulated network is, at best.
        assert 0.0004 < clock.uncertainty < 0.005
        assert abs(clock.offset - (AHEAD[0] - AHEAD[member])) <= clock.uncertainty


def test_what_is_merged_is_in_order_and_nothing_is_heard_too_early() -> None:
    clocks = Clocks.of(three()).by_member()
    head = merged_head([each.head for each in three()], clocks)
    assert (head.clock, head.reporter, len(head.members)) == (MERGED, -1, 3)
    events = list(merge(three(), head))
    assert [each.at for each in events] == sorted(each.at for each in events)
    assert len(events) == sum(each.member >= 0 for each in example_events())
    found = check(Recording("merged", head, iter(events)))
    assert found.matched == found.sent > 400
    assert (found.early, found.unbounded) == ([], 0)
    # By their own clocks there would be no order.
    wrong = attrs.evolve(head, clocks={i: ClockOffset(0.0, 0.001) for i in range(3)})
    found = check(Recording("wrong", wrong, merge(three(), wrong)))
    assert found.early
    assert "heard at" in found.early[0]


def test_without_messages_nothing_bounds_the_clocks() -> None:
    one = recording(0, [Event(1.0, 0, "starts")], started_ms=1000)
    other = recording(1, [Event(0.5, 1, "starts")], started_ms=1200)
    clocks = Clocks.of([attrs.evolve(each, events=iter(())) for each in (one, other)]).by_member()
    assert clocks == {0: ClockOffset(0.0, 0.0), 1: ClockOffset(0.0, None)}
    head = merged_head([one.head, other.head], clocks)
    merged = [(round(each.at, 3), each.member) for each in merge([one, other], head)]
    assert merged == [(0.7, 1), (1.0, 0)]


def test_a_way_over_a_third_member_is_found() -> None:
    runs = [Run(member, 0, 0) for member in range(5)]
    ways = {(0, 1): 1.5, (1, 0): -0.5, (1, 2): 0.2, (2, 1): 0.2, (3, 4): 2.1, (4, 3): -1.9}
    delays = {(runs[one], runs[other]): least for (one, other), least in ways.items()}
    clocks = list(offsets(runs, delays).values())
    assert clocks[1] == ClockOffset(-1.0, 0.5)
    assert clocks[2].offset == pytest.approx(-1.0)
    assert clocks[2].uncertainty == pytest.approx(0.7)
    # Two that know nothing of the rest are in order with each other.
    assert clocks[3] == ClockOffset(0.0, None)
    assert clocks[4] == ClockOffset(-2.0, None)


@pytest.mark.parametrize("both", [True, False])
def test_a_start_has_a_clock_of_its_own(*, both: bool) -> None:
    """Member 1 is 10 s ahead, then 20 s; the other one is started again with it, or not."""

    def lives(member: int, ahead: tuple[float, float]) -> list[Event]:
        events: list[Event] = []
        for life, (begin, more) in enumerate(zip((0.0, 100.0), ahead, strict=True)):
            if member or not life or both:
                events.append(Event(begin + more, member, "starts"))
            for n in range(1, 4):
                about = {"link": life, "n": n, "type": "Vote"}
                sent, heard = begin + n + 0.1 * member, begin + n + 0.1 * (1 - member) + 0.01
                events += [
                    Event(sent + more, member, "sends", {"to": 1 - member, **about}),
                    Event(heard + more, member, "hears", {"sender": 1 - member, **about}),
                ]
        return sorted(events, key=lambda event: event.at)

    def files() -> list[Recording]:
        return [recording(0, lives(0, (0.0, 0.0))), recording(1, lives(1, (10.0, 20.0)))]

    clocks = Clocks.of(files())
    offsets_found = [clocks.offset(files()[1].head, at) for at in (11.0, 121.0)]
    assert offsets_found == pytest.approx([-10.0, -20.0])
    head = merged_head([each.head for each in files()], clocks.by_member())
    assert head.clocks[1].offset == pytest.approx(-20.0)
    found = check(Recording("merged", head, merge(files(), head, clocks=clocks)))
    assert (found.matched, found.early, found.unbounded) == (12, [], 0)


def test_a_clock_that_was_set_back_does_not_turn_events_around() -> None:
    one = recording(0, [Event(at, 0, "note", {"text": str(at)}) for at in (1.0, 0.5, 2.0)])
    head = merged_head([one.head], {})
    assert [each.at for each in merge([one], head)] == [1.0, 1.0, 2.0]


def test_a_picture_has_all_members_that_were_heard_of() -> None:
    def picture(at: float, member: int) -> Event:
        said = {"status": {"term": at}, "by": member, "heard_ms": 0}
        return Event(at, -1, "keyframe", {"members": {str(member): said}})

    files = [recording(0, [picture(1, 0), picture(3, 0)]), recording(1, [picture(2, 1)])]
    head = merged_head([each.head for each in files], {})
    *_, last = merge(files, head)
    assert [(each["status"]["term"], each["heard_ms"]) for each in last.fields["members"].values()]
    assert last.fields["members"]["0"] == {"status": {"term": 3}, "by": 0, "heard_ms": 0}
    assert last.fields["members"]["1"] == {"status": {"term": 2}, "by": 1, "heard_ms": 1000}


def test_only_recordings_of_one_cluster_are_merged() -> None:
    heads = [Head(Source.LIVE, "1", name, WALL) for name in ("a", "b")]
    with pytest.raises(RecordingError, match="of several clusters: a, b"):
        merged_head(heads, {})
    with pytest.raises(RecordingError, match="no recording to merge"):
        merged_head([], {})


def test_a_message_that_is_heard_too_early_is_found_in_either_order() -> None:
    sends = Event(2.0, 0, "sends", {"to": 1, "link": 1, "n": 1, "type": "Vote"})
    hears = Event(1.0, 1, "hears", {"sender": 0, "link": 1, "n": 1, "type": "Vote"})
    for events in ([sends, hears], [hears, sends]):
        file = io.StringIO()
        writer = RecordingWriter(file, Head(Source.LIVE, "1", "c", WALL))
        random.Random(1).shuffle(events)
        for event in events:
            writer.write(event)
        read = read_recording_untrusted(io.BytesIO(file.getvalue().encode()), "f")
        assert len(check(read).early) == 1
