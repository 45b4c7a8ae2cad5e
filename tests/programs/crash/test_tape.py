"""A torture in which something did not hold leaves one recording that shows it."""

import json
from pathlib import Path

from quorate.histories.history import HistoryWriter, Operation
from quorate.node.live.flight import flight_file
from quorate.recordings import Event, Source
from quorate.recordings.head import MERGED, WALL, Head, RecordedMember
from quorate.recordings.reading import open_recording_untrusted
from quorate.recordings.writing import RecordingWriter, open_to_write
from quorate.torture.tape import Tape, Violation

SECOND = 1_000_000_000


class Clock:
    """A clock that says what it is told to."""

    def __init__(self) -> None:
        self.at = 100.0

    def ns(self) -> int:
        return round(self.at * SECOND)


def flight(directory: Path, member: int, started: float, texts: dict[float, str]) -> None:
    """Write what a member's flight recorder would have, times in seconds since its start."""
    path = flight_file(directory)
    path.parent.mkdir(parents=True)
    head = Head(
        Source.LIVE,
        "1",
        "torture",
        WALL,
        round(1000 * started),
        (RecordedMember(member),),
        reporter=member,
    )
    with open_to_write(path) as file:
        writer = RecordingWriter(file, head)
        for at, text in texts.items():
            writer.write(Event(at, member, "note", {"text": text}))


IN_ORDER = [
    (150.0, -1, "note"),
    (150.0, -1, "fault"),
    (150.0, 1, "killed"),
    (150.5, 0, "note"),
    (150.5, 1, "note"),
    (150.5, 1, "note"),
    (151.0, -1, "client"),
    (151.25, -1, "violation"),
    (152.0, 0, "note"),
]


def test_flights_faults_operations_and_violations_are_in_one_order(tmp_path: Path) -> None:
    clock = Clock()
    # The wall clock is 5000 s ahead of the monotonic one.
    tape = Tape(
        "torture",
        7,
        "quorate torture --seed 7",
        wall_ns=lambda: clock.ns() + 5000 * SECOND,
        monotonic_ns=clock.ns,
    )
    lines: list[str] = []
    tell = tape.noting(lines.append)
    clock.at = 150.0
    tell("something happens")
    tape.fault("kill", [1], 2.0)
    clock.at = 200.0
    flight(tmp_path / "m0", 0, 5099.0, {0.5: "long ago", 51.5: "before", 53.0: "after"})
    flight(tmp_path / "m1", 1, 5140.0, {10.5: "between"})
    with flight_file(tmp_path / "m1").open("ab") as file:
        file.write(b"damage\n{}\n")
    history = tmp_path / "history.jsonl"
    with history.open("wb") as raw:
        writer = HistoryWriter(raw)
        for end in (110.0, 151.0, 199.0):
            start_ns, end_ns = (round(each * SECOND) for each in (end - 0.25, end))
            writer.append(Operation(3, "set", b"k", (b"v",), b"OK", start_ns, end_ns, "ok"))
    path = tmp_path / "out.qtrace"
    violation = Violation("linearizability", "k: not linearizable", round(151.25 * SECOND))
    tape.write(path, [tmp_path / "m0", tmp_path / "m1", tmp_path / "m2"], history, [violation])
    with open_recording_untrusted(path) as recording:
        head, events = recording.head, list(recording.events)
    assert (head.source, head.clock, head.seed) == (Source.TORTURE, MERGED, 7)
    assert head.command == "quorate torture --seed 7"
    assert [each.member_id for each in head.members] == [0, 1]
    assert lines == ["something happens"]
    told = [
        (round(head.started_ms / 1000 + each.at - 5000, 3), each.member, each.kind)
        for each in events
    ]
    assert told == IN_ORDER
    fault, client = events[1].fields, events[6].fields
    assert (fault["what"], fault["targets"]) == ("kill", [1])
    assert client == {"client": 3, "op": "set", "key": "k", "status": "ok", "took": 0.25}
    assert "line 3: not JSON" in json.dumps([dict(each.fields) for each in events])


def test_what_nothing_dates_is_the_last_event(tmp_path: Path) -> None:
    clock = Clock()
    tape = Tape("torture", 7, "", wall_ns=clock.ns, monotonic_ns=clock.ns)
    clock.at = 130.0
    tape.note("the checks begin")
    history = tmp_path / "history.jsonl"
    history.touch()
    path = tmp_path / "out.qtrace"
    tape.write(path, [], history, [Violation("equal and sound logs", "they differ")])
    with open_recording_untrusted(path) as recording:
        *_, last = recording.events
    assert (last.kind, last.at, last.fields["text"]) == ("violation", 30.0, "they differ")
