"""Recordings as files: written and read again, damaged, cut, and in a ring."""

import io
import json
import random
import string
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import RecordingError
from quorate.recordings import KINDS, Event, Source
from quorate.recordings.gathering import Gatherer
from quorate.recordings.head import MERGED, VIRTUAL, WALL, ClockOffset, Head, RecordedMember
from quorate.recordings.reading import (
    MAX_LINE_BYTES,
    open_recording_untrusted,
    read_recording_untrusted,
)
from quorate.recordings.ring import Ring, files_of
from quorate.recordings.writing import RecordingWriter, open_to_write

texts = st.text(string.printable.strip(), max_size=20).map(str.strip)
heads = st.builds(
    Head,
    source=st.sampled_from(Source),
    version=texts,
    cluster=texts,
    clock=st.sampled_from([VIRTUAL, WALL, MERGED]),
    started_ms=st.integers(0, 2**53),
    members=st.lists(st.builds(RecordedMember, st.integers(0, 9), texts), max_size=3).map(tuple),
    seed=st.none() | st.integers(0, 2**40),
    command=texts,
    reporter=st.integers(-1, 9),
    clocks=st.dictionaries(
        st.integers(0, 9),
        st.builds(ClockOffset, st.floats(-9, 9), st.none() | st.floats(0, 9)),
        max_size=3,
    ),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(sorted(KINDS)))
    at = round(draw(st.floats(0, 1e6)), 6)
    fields = {name: draw(values) for name in KINDS[kind] if draw(st.booleans())}
    return Event(at, draw(st.integers(-1, 9)), kind, fields)


@given(heads, st.lists(events(), max_size=20))
def test_what_was_written_is_read(head: Head, written: list[Event]) -> None:
    file = io.StringIO()
    writer = RecordingWriter(file, head)
    for event in written:
        writer.write(event)
    read = read_recording_untrusted(io.BytesIO(file.getvalue().encode()), "f")
    assert read.head == head
    assert list(read.events) == written


@pytest.mark.parametrize("name", ["a.qtrace", "a.qtrace.zst"])
def test_a_file_may_be_compressed(tmp_path: Path, name: str) -> None:
    path, head = tmp_path / name, Head(Source.LIVE, "1", "c", WALL)
    rng = random.Random(1)
    with open_to_write(path) as file:
        writer = RecordingWriter(file, head)
        for number in range(10_000):
            text = str(rng.getrandbits(64))
            writer.write(Event(number, 0, "note", {"text": text}))
    with open_recording_untrusted(path) as read:
        assert read.head == head
        assert sum(1 for _ in read.events) == 10_000
    assert (path.stat().st_size < 300_000) == name.endswith(".zst")
    if name.endswith(".zst"):
        path.write_bytes(path.read_bytes()[:-100])  # its writer was killed
        with open_recording_untrusted(path) as read:
            assert 1000 < sum(1 for _ in read.events) < 10_000


def test_a_picture_comes_first_and_then_now_and_again() -> None:
    file = io.StringIO()
    pictures = iter(range(100))
    writer = RecordingWriter(
        file, Head(Source.LIVE, "1", "c", WALL), lambda: {"members": next(pictures)}
    )
    for at in [0.0, 0.5, 1.1] + [1.2] * 1500:
        writer.write(Event(at, 0, "note"))
    kinds = [json.loads(line).get("kind") for line in file.getvalue().splitlines()[1:]]
    assert [i for i, kind in enumerate(kinds) if kind == "keyframe"] == [0, 3, 1004]


HEAD = Head(Source.LIVE, "1", "c", WALL, 5, (RecordedMember(0),), reporter=0).as_json()
GOOD = '{"at":1.5,"member":0,"kind":"starts"}'


def test_half_a_last_line_is_left_out() -> None:
    for end in range(len(GOOD)):
        data = f"{HEAD}\n{GOOD}\n{GOOD[:end]}".encode()
        assert len(list(read_recording_untrusted(io.BytesIO(data), "f").events)) == 1


def test_a_compressed_file_that_is_cut_off_is_not_called_empty(tmp_path: Path) -> None:
    path = tmp_path / "cut.qtrace.zst"
    path.write_bytes(zstandard.compress(f"{HEAD}\n{GOOD}\n".encode() * 100)[:40])
    with (
        pytest.raises(RecordingError, match="it is cut off before the end of its first line"),
        open_recording_untrusted(path),
    ):
        pass


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "the file is empty, expected a recording"),
        (HEAD, "line 1: it is cut off, expected the head"),
        ("[]\n", r"line 1: b'\[\]\\n': expected an object of JSON"),
        ("{}\n", "line 1: not the head of a recording: expected {"),
        ('{"quorate_trace":1,"seed":5}\n', "format 1, .* record it anew, with the same seed"),
        ('{"quorate_trace":3}\n', "format 3 of recordings: expected 2; a newer quorate"),
        (HEAD.replace('"live"', '"tape"') + "\n", "source = 'tape': expected one of live, simul"),
        (HEAD.replace('"wall"', "[]") + "\n", r"clock = \[\]: expected a text"),
        (HEAD.replace('"id":0', '"id":-5') + "\n", "id of a member = -5: expected a whole number"),
        (HEAD.replace('"started_ms":5', '"started_ms":5.5') + "\n", "started_ms = 5.5: expected"),
        (f"{HEAD}\n{GOOD}\nx\n", "f: line 3: not JSON: "),
        (f"{HEAD}\n" + '{"at":NaN,"member":0,"kind":"x"}\n', "line 2: not JSON: NaN is no number"),
        (f"{HEAD}\n" + '{"at":true,"member":0,"kind":"x"}\n', "at = True: expected seconds"),
        (f"{HEAD}\n" + '{"at":1,"member":"0","kind":"x"}\n', "member = '0': expected the id of a"),
        (f"{HEAD}\n" + '{"at":1,"member":0,"kind":7}\n', "kind = 7: expected a word such as"),
        (f"{HEAD}\n" + "[" * 100_000 + "\n", "line 2: not JSON"),
        (f"{HEAD}\n" + "x" * (MAX_LINE_BYTES + 5) + "\n", "line 2: it is longer than 1048576 byt"),
    ],
)
def test_what_is_no_recording_is_named(line: str, words: str) -> None:
    with pytest.raises(RecordingError, match=words):
        list(read_recording_untrusted(io.BytesIO(line.encode()), "f").events)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_order(data: bytes) -> None:
    for start in (b"", f"{HEAD}\n{GOOD}\n".encode()):
        try:
            list(read_recording_untrusted(io.BytesIO(start + data), "f").events)
        except RecordingError as error:
            assert str(error).startswith("f: ")  # noqa: PT017 - some are recordings


@given(st.lists(st.integers(1, 60), max_size=60), st.integers(2, 4))
def test_a_ring_stays_within_its_bounds_and_keeps_what_is_newest(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], files: int
) -> None:
    path = tmp_path_factory.mktemp("ring") / "r"
    ring = Ring(path, file_bytes=100, files=files, sync=False, mend=True)
    ring.begin = b"head\n"
    lines = [b"%d %b\n" % (number, b"x" * size) for number, size in enumerate(sizes)]
    for number, line in enumerate(lines):
        ring.write(line)
        if number % 7 == 3:  # the process was killed in the middle of a line
            ring.close()
            with path.open("ab") as file:
                file.write(b"half")
    ring.close()
    found = files_of(path)
    assert len(found) <= files
    assert all(file.stat().st_size <= 100 + len(b"half") for file in found)
    assert all(file.read_bytes().startswith(b"head\n") for file in found)
    kept = [
        line
        for file in found
        for line in file.read_bytes().splitlines(keepends=True)
        if line not in {b"head\n", b"half"}
    ]
    assert kept == lines[len(lines) - len(kept) :]


def lost_of(gatherer: Gatherer) -> int:
    return gatherer._lost  # pyright: ignore[reportPrivateUsage]


async def test_lines_are_written_together_and_losses_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "r"
    failures: list[OSError] = []
    gatherer = Gatherer(
        Ring(path, file_bytes=1000, files=2),
        most_waiting=100,
        lost=lambda count: b"lost %d\n" % count,
        failed=failures.append,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(gatherer.run)
        for number in range(3):
            gatherer.put(b"gone\n")
            with trio.fail_after(5):
                while lost_of(gatherer) <= number:  # noqa: ASYNC110 - a thread counts it
                    await trio.sleep(0.001)
        path.parent.mkdir()
        gatherer.put(b"x" * 200)
        gatherer.put(b"lazy\n", soon=False)
        gatherer.put(b"kept\n")
        await trio.testing.wait_all_tasks_blocked(0.05)
        nursery.cancel_scope.cancel()
    assert path.read_text().splitlines() == ["lost 4", "lazy", "kept"]
    assert len(failures) == 1


def test_the_fields_of_every_kind_are_names() -> None:
    head: dict[str, Any] = json.loads(HEAD)
    assert head["quorate_trace"] == 2
    for fields in KINDS.values():
        assert {"at", "member", "kind"}.isdisjoint(fields)
