"""Joins the recordings of several members into one, in the order of time.

Each member writes times of its own clock, and two clocks differ. What says by how much are messages
whose sending and whose hearing were both recorded: a message takes at least no time. The least of
all differences from A to B is the offset plus the shortest way, and from B to A it is the shortest
way minus the offset. So half of the difference of the two is the offset, and half of their sum is
how wrong that may be. (This is the rule of NTP; a way that is shorter in one direction is the
error.) Members with messages in one direction only, or none, keep their own wall clocks, and
nothing bounds how wrong that is.

A member that was started again has had two clocks, one after the other: see `Runs`. Within one run
clocks are taken to run equally fast. Over days they may not, and then `check` finds it.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from itertools import groupby, pairwise
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

Delays: TypeAlias = "dict[tuple[Run, Run], float]"
"""The least time from a sending to its hearing, by the two clocks, for each sender and receiver."""

NO_OFFSET: Final = ClockOffset(0.0, None)

ONE_MACHINE: Final = ClockOffset(0.0, 0.001)
"""One clock, of which each start notes the time in whole milliseconds."""


def arrow_of(event: Event) -> Arrow | None:
    """Return the message that an event sends or hears, None if it says not which."""
    peer, link, n = event.fields.get("to"), event.fields.get("link"), event.fields.get("n")
    sends = event.kind == "sends"
    if not sends:
        peer = event.fields.get("sender")
    if not (isinstance(peer, int) and isinstance(link, int) and isinstance(n, int)):
        return None
    return (event.member, peer, link, n) if sends else (peer, event.member, link, n)


@attrs.frozen
class Run:
    """One life of a member's process, in which its clock ran without a break.

    Args:
        member: the member.
        started_ms: the moment from which its file counts.
        number: how many starts that file, and those before and after it, had up to then.
    """

    member: int
    started_ms: int
    number: int


class Runs:
    """Which life of a member an event is of.

    A start goes on in the file of the one before, and notes its time in whole milliseconds. So each
    has a clock of its own, although all times of a file count from one moment.
    """

    def __init__(self) -> None:
        self._starts = defaultdict[tuple[int, int], list[float]](list)

    def note(self, head: Head, at: float) -> None:
        """Note that the recorder of a file has started."""
        insort(self._starts[head.reporter, head.started_ms], at)

    def of(self, head: Head, at: float) -> Run:
        """Return the run of an event."""
        starts = self._starts.get((head.reporter, head.started_ms), [])
        return Run(head.reporter, head.started_ms, bisect_right(starts, at))

    def all(self, head: Head) -> Iterator[Run]:
        """Yield all runs of which a file may have events."""
        count = len(self._starts.get((head.reporter, head.started_ms), []))
        return (Run(head.reporter, head.started_ms, number) for number in range(count + 1))


@attrs.frozen
class Clocks:
    """What to add to the times of each member.

    Args:
        runs: the lives of members.
        offsets: of each of them.
    """

    runs: Runs
    offsets: Mapping[Run, ClockOffset]

    @classmethod
    def of(cls, recordings: Sequence[Recording]) -> Clocks:
        """Find out how the clocks of some recordings differ; reads all of them."""
        runs = Runs()
        delays = least_delays(recordings, runs)
        known = {run for each in recordings for run in runs.all(each.head)}
        ordered = sorted(known, key=lambda run: (run.member, run.started_ms, run.number))
        return cls(runs, offsets([run for run in ordered if run.member != NOBODY], delays))

    def offset(self, head: Head, at: float) -> float:
        """Return what to add to the time of an event."""
        return self.offsets.get(self.runs.of(head, at), NO_OFFSET).offset

    def by_member(self) -> dict[int, ClockOffset]:
        """Return the last offset of each member, and how wrong any of its offsets may be."""
        found: dict[int, ClockOffset] = {}
        for run, clock in self.offsets.items():
            known = found.get(run.member, NO_OFFSET)
            # A life without messages has nothing that could be judged.
            bounds = [each for each in (known.uncertainty, clock.uncertainty) if each is not None]
            last = known if clock.uncertainty is None else clock
            found[run.member] = ClockOffset(last.offset, max(bounds, default=None))
        return found


def least_delays(recordings: Iterable[Recording], runs: Runs) -> Delays:
    """Return the least delays between members, each by the clock of its own recording.

    Args:
        recordings: which are read.
        runs: gets the starts of members.
    """
    sent: dict[Arrow, tuple[Head, float]] = {}
    heard: dict[Arrow, tuple[Head, float]] = {}
    for recording in recordings:
        for event in recording.events:
            if event.kind == "starts" and event.member == recording.head.reporter:
                runs.note(recording.head, event.at)
            elif event.kind in {"sends", "hears"} and (arrow := arrow_of(event)) is not None:
                times = sent if event.kind == "sends" else heard
                times[arrow] = recording.head, event.at
    delays: Delays = {}
    for arrow in sent.keys() & heard.keys():
        way = runs.of(*sent[arrow]), runs.of(*heard[arrow])
        took = _wall(*heard[arrow]) - _wall(*sent[arrow])
        delays[way] = min(delays.get(way, math.inf), took)
    return delays


def _wall(head: Head, at: float) -> float:
    return head.started_ms / 1000 + at


def offsets(runs: Sequence[Run], delays: Delays) -> dict[Run, ClockOffset]:
    """Return what to add to the times of each run, so that all are of one clock.

    That is the clock of the first member's last run. Runs that no messages connect with it have
    another clock in common. It counts as the same if it is of the same member: then only time has
    passed, or a whole cluster was started anew. Otherwise nothing bounds how wrong it is. A run
    without messages has the clock of its member's run next to it.

    Args:
        runs: in the order of members, and then of time.
        delays: between them.
    """
    found: dict[Run, ClockOffset] = {}
    connected = {run for way in delays if way[::-1] in delays for run in way}
    roots = sorted(runs, key=lambda run: (run.member, -run.started_ms, -run.number))
    for root in roots:
        if root not in found and (root in connected or root is roots[0]):
            group = _offsets_from(root, runs, delays)
            bounded = roots[0].member in {each.member for each in group}
            for run, clock in group.items():
                found[run] = clock if bounded else ClockOffset(clock.offset, None)
    for before, run in pairwise([*runs, *roots]):  # the one before, else the one after
        if run not in found and before in found and before.member == run.member:
            found[run] = ClockOffset(found[before].offset, None)
    return {run: found.get(run, NO_OFFSET) for run in runs}


def _offsets_from(first: Run, runs: Sequence[Run], delays: Delays) -> dict[Run, ClockOffset]:
    """Return the offsets of all runs that messages connect with the first one."""
    found = {first: ClockOffset(0.0, 0.0)}
    # The nearest by uncertainty first, as in the search for the shortest way.
    queue = [(0.0, 0, first, 0.0)]
    while queue:
        uncertainty, _, here, offset = heapq.heappop(queue)
        if uncertainty > (found[here].uncertainty or 0.0):
            continue
        for number, other in enumerate(runs):
            there, back = delays.get((here, other)), delays.get((other, here))
            if there is None or back is None:
                continue
            # By `there - back` the clock of the other one is ahead, twice.
            step = ClockOffset(offset - (there - back) / 2, uncertainty + abs(there + back) / 2)
            known = found.get(other)
            if known is None or (step.uncertainty or 0.0) < (known.uncertainty or 0.0):
                found[other] = step
                heapq.heappush(queue, (step.uncertainty or 0.0, number, other, step.offset))
    return found


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
    recordings: Sequence[Recording],
    head: Head,
    repeated: Repeated | None = None,
    clocks: Clocks | None = None,
) -> Iterator[Event]:
    """Yield the events of several recordings in the order of time, as seconds since `head`.

    An event that is in several files of one recorder is yielded once: a file may be named together
    with a copy of it, or with a copy of its beginning.

    Args:
        recordings: to merge.
        head: of the one that they become.
        repeated: gets what was left out.
        clocks: how those of the recordings differ; by default as `head` says.
    """
    streams = [
        _numbered(number, _moved(each, head, clocks)) for number, each in enumerate(recordings)
    ]
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


def _moved(recording: Recording, head: Head, clocks: Clocks | None) -> Iterator[Event]:
    """Yield the events of one recording by the clock of all, none before the one before it."""
    own = recording.head
    shift = (own.started_ms - head.started_ms) / 1000
    offset = head.clocks.get(own.reporter, NO_OFFSET).offset
    last = -math.inf
    for event in recording.events:
        if clocks is not None:
            offset = clocks.offset(own, event.at)
        # A wall clock may have been set back; what came later is still later.
        last = max(last, event.at + shift + offset)
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
