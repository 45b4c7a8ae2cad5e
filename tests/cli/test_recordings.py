"""`quorate trace` and `quorate view`, as an operator uses them."""

import io
import json
import random
import sys
from pathlib import Path

import pytest

from quorate.cli.app import EX_USAGE, run
from quorate.recordings import Event, Source
from quorate.recordings.head import WALL, Head, RecordedMember
from quorate.recordings.writing import RecordingWriter, open_to_write

EXAMPLE = Path(__file__).parent.parent / "web" / "data" / "leader-dies.qtrace"


def flight(directory: Path, member: int, at: float, *, name: str = "flight.qtrace") -> None:
    """Write a recording where the flight recorder of a member has it."""
    path = directory / "flight" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    head = Head(Source.LIVE, "1", "c", WALL, 0, (RecordedMember(member),), reporter=member)
    with open_to_write(path) as file:
        RecordingWriter(file, head).write(Event(at, member, "note", {"text": name}))


def test_directories_of_members_are_merged_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flight(tmp_path / "m0", 0, 2.0)
    flight(tmp_path / "m0", 0, 1.0, name="flight.qtrace.1")
    flight(tmp_path / "m1", 1, 1.5)
    assert run(["trace", "merge", str(tmp_path / "m0"), str(tmp_path / "m1" / "flight")]) == 0
    out, err = capsys.readouterr()
    head, *events = [json.loads(line) for line in out.splitlines()]
    assert (head["clock"], head["reporter"]) == ("merged", -1)
    assert [(each["member"], each["text"]) for each in events] == [
        (0, "flight.qtrace.1"),
        (1, "flight.qtrace"),
        (0, "flight.qtrace"),
    ]
    assert err.splitlines() == [
        "member 0: the clock of all",
        "member 1: its wall clock, and no recorded message says how wrong that is",
        "If all were written on one machine, say so: --one-machine",
    ]
    twice = [str(tmp_path / "m0"), str(tmp_path / "m0" / "flight")]
    assert run(["trace", "merge", *twice]) == EX_USAGE
    assert "it is named twice: expected each recording once" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(out.encode())))
    assert run(["trace", "check", "-"]) == 0
    assert "nothing was checked" in capsys.readouterr().out


def test_a_simulation_is_checked_and_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", "check", str(EXAMPLE)]) == 0
    assert "messages sent" in capsys.readouterr().out
    out = tmp_path / "out.json"
    assert run(["trace", "convert", str(EXAMPLE), "--to", "perfetto", "--out", str(out)]) == 0
    assert json.loads(out.read_text())["traceEvents"]
    assert run(["trace", "convert", str(EXAMPLE), "--to", "shiviz"]) == 0
    out_, err = capsys.readouterr()
    assert '{"m0": 1}' in out_
    assert not err
    flight(tmp_path / "m0", 0, 2.0)
    lonely = str(tmp_path / "m0" / "flight" / "flight.qtrace")
    assert run(["trace", "convert", lonely, "--to", "shiviz"]) == 0
    assert "no message that was sent and heard is in this recording" in capsys.readouterr().err


def test_a_message_from_the_future_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.qtrace"
    arrow = {"link": 1, "n": 1, "type": "Vote"}
    with open_to_write(path) as file:
        writer = RecordingWriter(file, Head(Source.SIMULATION, "1", "c", "virtual"))
        writer.write(Event(1.0, 1, "hears", {"sender": 0, **arrow}))
        writer.write(Event(2.0, 0, "sends", {"to": 1, **arrow}))
    assert run(["trace", "check", str(path)]) == 1
    words = "message 1 on link 1 from 0 to 1: heard at 1.000000 s, sent at 2.000000 s"
    assert words in capsys.readouterr().out


def test_a_copy_doubles_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flight(tmp_path / "m0", 0, 2.0)
    path = tmp_path / "m0" / "flight" / "flight.qtrace"
    copy = tmp_path / "copy.qtrace"
    copy.write_bytes(path.read_bytes())
    with path.open("a") as file:
        file.writelines(Event(3.0, 0, "note", {"text": "since"}).as_json() + "\n" for _ in "12")
    assert run(["trace", "merge", str(tmp_path / "m0"), str(copy)]) == 0
    out, err = capsys.readouterr()
    texts = [json.loads(line)["text"] for line in out.splitlines()[1:]]
    assert texts == ["flight.qtrace", "since", "since"]
    assert "1 event in two recordings, written once: " in err


def test_what_was_cut_short_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, cut = tmp_path / "whole.qtrace.zst", tmp_path / "cut.qtrace.zst"
    numbers = random.Random(1)
    with open_to_write(whole) as file:
        writer = RecordingWriter(file, Head(Source.LIVE, "1", "c", WALL, 86_400_000))
        for second in range(20_000):
            text = str(numbers.getrandbits(64))
            writer.write(Event(float(second), 0, "note", {"text": text}))
    packed = whole.read_bytes()
    cut.write_bytes(packed[: len(packed) // 2])
    assert run(["trace", "check", str(whole)]) == 0
    assert capsys.readouterr().err == ""
    for words in (["trace", "check"], ["trace", "merge"], ["view", "--html", str(tmp_path / "h")]):
        assert run([*words, str(cut)]) == 0
        out, err = capsys.readouterr()
        assert f"cut.qtrace.zst: it is cut short at byte {len(packed) // 2:,}; read up to " in err
        if "merge" in words:
            last = int(json.loads(out.splitlines()[-1])["at"])
            assert f"{last // 3600:02}:{last // 60 % 60:02}:{last % 60:02} UTC" in err


def test_a_single_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "r.html"
    assert run(["view", str(EXAMPLE), "--html", str(html)]) == 0
    assert 'id="recording"' in html.read_text()
    assert str(html) in capsys.readouterr().out
    flight(tmp_path / "m0", 0, 2.0)
    assert run(["view", str(tmp_path / "m0"), "--html", str(html)]) == 0
    assert '"clock":"merged"' in html.read_text()


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["trace", "check", "old"], 65, "old: line 1: it was written by an older version"),
        (["view", "cut"], 65, "cut: line 2: not JSON"),
        (["view", "nowhere"], 64, "nowhere: expected a recording, or a directory of a member"),
        (["trace", "merge", "empty"], 64, "empty: no recording is in it, expected empty/flight/fl"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    words: list[str],
    status: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old").write_text('{"quorate_trace": 1, "seed": 5}\n')
    Path("cut").write_text(EXAMPLE.read_text()[:300].rpartition("\n")[0] + "\nhalf\n{}\n")
    Path("empty").mkdir()
    assert run([*words, *(["--html", "x.html"] if words[0] == "view" else [])]) == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["trace", "merge", "--out"], ["trace", "convert", "--to=shiviz", "--out"], ["view", "--html"]],
)
def test_what_is_read_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    path, link = tmp_path / "r.qtrace", tmp_path / "link"
    path.write_bytes(EXAMPLE.read_bytes())
    link.hardlink_to(path)
    assert run([*words, str(link), str(path)]) == EX_USAGE
    assert f"{link}: it is read, too: expected another name" in capsys.readouterr().err
    assert path.read_bytes() == EXAMPLE.read_bytes()


@pytest.mark.parametrize(
    "words",
    [["trace", "check"], ["trace", "convert", "--to=shiviz"], ["top", "--once", "--replay"]],
)
def test_a_directory_is_not_taken_for_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    flight(tmp_path / "m0", 0, 2.0)
    assert run([*words, str(tmp_path / "m0")]) == EX_USAGE
    assert f"quorate trace merge {tmp_path / 'm0'} --out FILE" in capsys.readouterr().err


def test_a_replay_asks_no_member(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "127.0.0.1:7000", "--replay", str(EXAMPLE)]) == EX_USAGE
    assert "expected no address, not 127.0.0.1:7000" in capsys.readouterr().err
