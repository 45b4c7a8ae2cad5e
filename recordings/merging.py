"""Joins the recordings of several members into one, in the order of time.

Each member writes times of its own clock, and two clocks differ. What says by how much are messages
whose sending and whose hearing were both recorded: a message takes at least no time. The least of
all differences from A to B is the offset plus the shortest way, and from B to A it is the shortest
way minus the offset. So half of the difference of the two is the offset, and half of their sum is
how wrong that may be. (This is the rule of NTP; a way that is shorter in one direction is the
error.) Members with messages in one direction only, or none, keep their own wall clocks, and
nothing bounds how wrong that is.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from ..errors import RecordingError
from .events import NOBODY, Event
from .head import MERGED, ClockOffset, Head, RecordedMember

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .reading import Recording

Arrow: TypeAlias = tuple[int, int, int, int]
"""A message: sender, receiver, number of the link, and number on that link."""

Delays: TypeAlias = "dict[tuple[int, int], float]"
"""The least time from a sending to its hearing, by the two clocks, for each sender and receiver."""

NO_OFFSET: Final = ClockOffset(0.0, None)


def arrow_of(event: Event) -> Arrow | None:
    """Return the message that an event sends or hears, None if it says not which."""
    peer, link, n = event.fields.get("to"), event.fields.get("link"), event.fields.get("n")
    sends = event.kind == "sends"
    if not sends:
        peer = event.fields.get("sender")
    if not (isinstance(peer, int) and isinstance(link, int) and isinstance(n, int)):
        return None
    return (event.member, peer, link, n) if sends else (peer, event.member, link, n)


def least_delays(recordings: Iterable[Recording]) -> Delays:
    """Return the least delays between members, each by the clock of its own recording."""
    sent: dict[Arrow, float] = {}
    heard: dict[Arrow, float] = {}
    for recording in recordings:
        start = recording.head.started_ms / 1000
        for event in recording.events:
            if event.kind in {"sends", "hears"} and (arrow := arrow_of(event)) is not None:
                times = sent if event.kind == "sends" else heard
                times[arrow] = start + event.at
    delays: Delays = {}
    for arrow in sent.keys() & heard.keys():
        way = arrow[:2]
        delays[way] = min(delays.get(way, math.inf), heard[arrow] - sent[arrow])
    return delays


def offsets(members: Sequence[int], delays: Delays) -> dict[int, ClockOffset]:
    """Return what to add to the times of each member, so that all are of the first one's clock."""
    if not members:
        return {}
    found = {members[0]: ClockOffset(0.0, 0.0)}
    # The nearest by uncertainty first, as in the search for the shortest way.
    queue = [(0.0, members[0], 0.0)]
    while queue:
        uncertainty, here, offset = heapq.heappop(queue)
        if uncertainty > (found[here].uncertainty or 0.0):
            continue
        for other in members:
            there, back = delays.get((here, other)), delays.get((other, here))
            if there is None or back is None:
                continue
            # By `there - back` the clock of the other one is ahead, twice.
            step = ClockOffset(offset - (there - back) / 2, uncertainty + abs(there + back) / 2)
            known = found.get(other)
            if known is None or (step.uncertainty or 0.0) < (known.uncertainty or 0.0):
                found[other] = step
                heapq.heappush(queue, (step.uncertainty or 0.0, other, step.offset))
    return {member: found.get(member, NO_OFFSET) for member in members}


def merged_head(heads: Sequence[Head], clocks: Mapping[int, ClockOffset]) -> Head:
    """Return the head of a recording that joins several.

    Raises:
        RecordingError: they are of several clusters, or there are none.
    """
    if not heads:
        raise RecordingError("no recording to merge: expected one file or more")
    clusters = sorted({head.cluster for head in heads})
    if len(clusters) > 1:
        raise RecordingError(f"recordings of several clusters: {', '.join(clusters)}")
    members: dict[int, RecordedMember] = {}
    for head in heads:
        members |= {each.member_id: each for each in head.members}
        if head.reporter != NOBODY:
            members.setdefault(head.reporter, RecordedMember(head.reporter))
    first = heads[0]
    return Head(
        source=first.source,
        version=first.version,
        cluster=first.cluster,
        clock=MERGED,
        started_ms=min(head.started_ms for head in heads),
        members=tuple(members[each] for each in sorted(members)),
        seed=first.seed,
        command=first.command,
        clocks=clocks,
    )


@attrs.define
class Repeated:
    """Events that were in several recordings of one member, and are taken once.

    Attributes:
        events: how many there were, keyframes left out: each file of a ring begins with one.
        names: of the recordings.
    """

    events: int = 0
    names: set[str] = attrs.field(factory=set[str])


def merge(
    recordings: Sequence[Recording], head: Head, repeated: Repeated | None = None
) -> Iterator[Event]:
    """Yield the events of several recordings in the order of time, as seconds since `head`.

    An event that is in several files of one recorder is yielded once: a file may be named together
    with a copy of it, or with a copy of its beginning.

    Args:
        recordings: to merge.
        head: of the one that they become.
        repeated: gets what was left out.
    """
    streams = [_numbered(number, _moved(each, head)) for number, each in enumerate(recordings)]
    pictures = Pictures()
    merged = heapq.merge(*streams, key=lambda each: each[1].at)
    for event in _once(merged, recordings, Repeated() if repeated is None else repeated):
        yield pictures.complete(event)


def _numbered(number: int, events: Iterator[Event]) -> Iterator[tuple[int, Event]]:
    return ((number, event) for event in events)


def _once(
    merged: Iterator[tuple[int, Event]], recordings: Sequence[Recording], repeated: Repeated
) -> Iterator[Event]:
    """Yield events, those that two files of one recorder have only once."""
    heads = [each.head for each in recordings]
    # What one recorder wrote since one moment. Files of a ring have that in common, and copies.
    keys = [(each.source, each.reporter, each.started_ms, each.seed) for each in heads]
    shared = {key for key, count in Counter(keys).items() if count > 1}
    for _, group in groupby(merged, key=lambda each: each[1].at):
        together = list(group)
        if len(together) == 1:
            yield together[0][1]
            continue
        given = Counter[tuple[object, str]]()
        taken = defaultdict[int, Counter[str]](Counter)
        for number, event in together:
            key = keys[number]
            if key in shared:
                line = event.as_json()
                taken[number][line] += 1
                # A file may well have two events that are equal. Then it has both again.
                if taken[number][line] <= given[key, line]:
                    repeated.events += event.kind != "keyframe"
                    repeated.names.add(recordings[number].name)
                    continue
                given[key, line] += 1
            yield event


def _moved(recording: Recording, head: Head) -> Iterator[Event]:
    """Yield the events of one recording by the clock of all, none before the one before it."""
    own = recording.head
    clock = head.clocks.get(own.reporter, NO_OFFSET)
    shift = (own.started_ms - head.started_ms) / 1000 + clock.offset
    last = -math.inf
    for event in recording.events:
        # A wall clock may have been set back; what came later is still later.
        last = max(last, event.at + shift)
        yield attrs.evolve(event, at=last)


class Pictures:
    """Makes keyframes of one member into keyframes of all: each has what was last said of each."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, dict[str, Any]]] = {}

    def complete(self, event: Event) -> Event:
        """Return an event; a keyframe has all members that were heard of so far."""
        if event.kind != "keyframe" or not isinstance(event.fields.get("members"), dict):
            return event
        for member, said in event.fields["members"].items():
            if isinstance(said, dict):
                self._said[member] = event.at, said
        members = {
            member: said | {"heard_ms": round(1000 * (event.at - at)) + said.get("heard_ms", 0)}
            for member, (at, said) in sorted(self._said.items())
        }
        return Event(event.at, NOBODY, "keyframe", {**event.fields, "members": members})


# --- the check ------------------------------------------------------------------------------------


@attrs.define
class Checked:
    """What a check has found.

    Attributes:
        sent: messages whose sending was recorded.
        heard: messages whose hearing was recorded.
        matched: those with both.
        unbounded: those of them between members whose clocks nothing bounds.
        early: those that were heard before they were sent, in words.
    """

    sent: int = 0
    heard: int = 0
    matched: int = 0
    unbounded: int = 0
    early: list[str] = attrs.field(factory=list[str])


def check(recording: Recording) -> Checked:
    """Check that nothing was heard before it was sent, by more than the clocks may be wrong."""
    found = Checked()
    times: dict[Arrow, float] = {}
    waiting: dict[Arrow, float] = {}
    for event in recording.events:
        if event.kind not in {"sends", "hears"} or (arrow := arrow_of(event)) is None:
            continue
        if event.kind == "sends":
            found.sent += 1
            times[arrow] = event.at
            if arrow in waiting:
                _compare(found, recording.head, arrow, event.at, waiting.pop(arrow))
        else:
            found.heard += 1
            if arrow in times:
                _compare(found, recording.head, arrow, times.pop(arrow), event.at)
            else:
                waiting[arrow] = event.at
    return found


def _compare(found: Checked, head: Head, arrow: Arrow, sent: float, heard: float) -> None:
    found.matched += 1
    sender, receiver, link, n = arrow
    clocks = [head.clocks.get(each) for each in (sender, receiver)]
    if not any(clocks):
        allowed = 0.0  # one clock for all
    else:
        bounds = [None if clock is None else clock.uncertainty for clock in clocks]
        if None in bounds:
            found.unbounded += 1
            return
        allowed = sum(each or 0.0 for each in bounds)
    if heard < sent - allowed - 1e-6:  # times are rounded to microseconds
        found.early.append(
            f"message {n} on link {link} from {sender} to {receiver}: heard at {heard:.6f} s, "
            f"sent at {sent:.6f} s, and the clocks may be wrong by {allowed:.6f} s"
        )
