"""Histories are checked key by key, and what is wrong is told and drawn."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import re
from contextlib import nullcontext
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from quorate.cli.app import run
from quorate.histories.history import HistoryWriter, Operation
from quorate.pipeline.jobs.drawing import WARN, dark_css
from quorate.pipeline.jobs.picture import Bar, draw

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def history() -> list[Operation]:
    """Three keys: one is fine, one reads what was overwritten, one takes too long to decide."""
    found: list[Operation] = []
    for at in range(20):
        found.append(Operation(0, "set", b"fine", (b"%d" % at,), b"OK", at * 10, at * 10 + 5, "ok"))
        found.append(Operation(1, "get", b"fine", (), b"%d" % at, at * 10 + 6, at * 10 + 8, "ok"))
    found.append(Operation(0, "set", b"stale", (b"1",), b"OK", 0, 5, "ok"))
    found.append(Operation(0, "set", b"stale", (b"2",), b"OK", 6, 9, "ok"))
    found.append(Operation(2, "incr", b"stale", (), None, 8, 9, "fail"))
    found.append(Operation(1, "get", b"stale", (), b"1", 10, 12, "ok"))
    found.append(Operation(2, "set", b"stale", (b"3",), None, 11, 15, "unknown"))
    found.append(Operation(0, "get", b"stale", (), b"2", 13, 14, "ok"))
    for at in range(10):
        found.append(Operation(at, "set", b"tangle", (b"%d" % at,), b"OK", at, 1000 + at, "ok"))
        found.append(Operation(10 + at, "append", b"tangle", (b"x",), 2, at, 1000 + at, "ok"))
    found.append(Operation(0, "get", b"tangle", (), b"never", 2000, 2001, "ok"))
    return found


@pytest.mark.spark
def test_a_history_is_checked_key_by_key_and_drawn(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate.pipeline.session.open_session", lambda **_: nullcontext(spark))
    with (tmp_path / "history.jsonl").open("wb") as file:
        writer = HistoryWriter(file)
        for one in history():
            writer.append(one)
    words = ["--seconds-per-key", "0.1", "--to", tmp_path / "verdicts", "--picture", tmp_path / "p"]
    status = run(["pipeline", "check", *map(str, [tmp_path / "history.jsonl", *words])])
    text = capsys.readouterr().out
    assert (status, "undecided: 1 key, 21 operations" in text) == (1, True)
    rows = spark.read.parquet(str(tmp_path / "verdicts")).orderBy("key").collect()
    assert [(bytes(row["key"]), row["verdict"], row["operations"]) for row in rows] == [
        (b"fine", "linearizable", 40),
        (b"stale", "violated", 6),
        (b"tangle", "undecided", 21),
    ]
    assert [row["window"] is not None for row in rows] == [False, True, False]
    assert rows[2]["seconds"] < 10
    assert "client 1: get -> '1'" in rows[1]["explanation"]
    assert rows[0]["explanation"] is None
    assert [(row["client"], row["text"], row["offending"]) for row in rows[1]["window"]] == [
        (0, "set '1' -> 'OK'", True),
        (0, "set '2' -> 'OK'", True),
        (1, "get -> '1'", True),
        (2, "set '3' -> ?", False),
    ]
    assert {one.text for one in ET.parse(tmp_path / "p").iter() if one.text} >= {"get -> '1'"}


def test_a_picture_holds_all_that_it_shows() -> None:
    bars = [
        Bar(0, 0, 5, "set '$x_{1}$<&' -> 'OK'", offending=True),
        Bar(7, 3, None, "set 'y' -> ?", offending=False),
        Bar(1, 6, 9, f"get -> '{'z' * 100}'", offending=True),
    ]
    drawn = draw([(b"one", bars), (b"$two$", bars[:1])])
    assert draw([(b"one", bars), (b"$two$", bars[:1])]) == drawn
    root = ET.fromstring(drawn)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("set '$x_{1}$<&' -> 'OK'") == 2
    assert f"get -> '{'z' * 21}..." in texts
    assert "Key $two$: no order explains the bold operations" in texts
    assert "outcome unknown: at any time after its start, or never" in texts
    assert [texts.count(f"client {client}") for client in (0, 1, 7)] == [2, 1, 1]
    assert drawn.replace(dark_css(), "").count(f"fill: {WARN}") == 3 + 1  # and in the legend
    loaded = re.findall(r"(?:src|href)=[\"']([^\"']*)|url\(([^)]*)\)|(<script|@import)", drawn)
    assert [one for one in loaded if not "".join(one).startswith("#")] == []
