"""The jobs find in a log what its members have."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
from pyspark.sql import Row

from quorate.errors import PrunedError, StorageError
from quorate.keyvalue import limits
from quorate.keyvalue.protocol.payload import IN_PARTS
from quorate.keyvalue.protocol.resp import encode_command
from quorate.keyvalue.service import KeyValueService
from quorate.pipeline.jobs.export import Exported, export, exported_tables
from quorate.pipeline.jobs.once import unapplied
from quorate.pipeline.jobs.page import render
from quorate.pipeline.jobs.report import growth, report
from quorate.pipeline.jobs.versions import moment_at, state
from quorate.pipeline.source.logs import open_log
from quorate.storage import decode_header_untrusted
from tests.pipeline.pipeline_world import (
    BEGAN_MS,
    Batch,
    apply,
    encoded,
    mixed,
    one_each,
    pipeline,
    shorten_log,
    write_log,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Held = dict[bytes, tuple[bytes, int, int]]
"""Value, expiry (ms, 0 for never) and revision by key."""


def by_a_member(batches: list[Batch], directory: Path, until: int) -> Held:
    """What a member's own state machine makes of the batches that begin below a position."""
    service = KeyValueService.open(directory, cluster="testing", member_id=0)
    log = encoded(batches)
    now = apply(
        service, [data for data in log if decode_header_untrusted(data).position < until]
    ).timestamp_ms
    names = [f"user:{at}".encode() for at in range(30)]
    records = {name: service._tables.get(name) for name in names}
    service.close()
    return {
        name: (one[0], one[1], one[2])
        for name, one in records.items()
        if one is not None and not 0 < one[1] <= now
    }


def held(frame: DataFrame) -> Held:
    rows = frame.selectExpr("key", "value", "coalesce(unix_millis(expires_at), 0)", "revision")
    return {bytes(row[0]): (bytes(row[1]), row[2], row[3]) for row in rows.collect()}


def test_the_state_at_any_point_is_that_of_a_member(spark: SparkSession, tmp_path: Path) -> None:
    batches = mixed(150)
    write_log(tmp_path / "m", batches)
    at = moment_at(tmp_path / "m", timestamp_ms=BEGAN_MS + 500 * 70 + 250)
    expected = by_a_member(batches, tmp_path / "truth", at.position)
    assert held(state(spark, tmp_path / "m", at)) == expected
    assert len(expected) > 5
    with open_log(tmp_path / "m") as log:
        assert log.moment_before(at.position) == at


def test_tables_that_were_made_in_parts_are_those_made_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = mixed(120, seed=2)
    done: list[Exported] = []
    for known in (50, 120):
        write_log(tmp_path / "m", batches[:known])
        if known == 120:  # a call that was killed has left this behind
            (tmp_path / "parts" / "log" / f"from={done[-1].end:020d}").mkdir()
            (tmp_path / "parts" / "kv_current" / f"at={99999:020d}").mkdir()
            (tmp_path / "parts" / "kv_current" / "at=home").mkdir()  # not ours
        done.append(export(spark, tmp_path / "m", tmp_path / "parts"))
    once = export(spark, tmp_path / "m", tmp_path / "once")
    assert [one.begin for one in done[1:]] == [one.end for one in done[:-1]]
    left = sorted(path.name for path in (tmp_path / "parts" / "kv_current").iterdir())
    assert left == [f"at={done[-1].end:020d}", "at=home"]
    again = export(spark, tmp_path / "m", tmp_path / "parts")
    assert (again.begin, again.commands, again.current) == (again.end, 0, once.current)
    parts, whole = (exported_tables(spark, tmp_path / name) for name in ("parts", "once"))
    assert parts["log"].count() == once.commands == sum(one.commands for one in done)
    assert held(parts["kv_current"]) == held(whole["kv_current"])
    expected = by_a_member(batches, tmp_path / "truth", once.end)
    assert held(parts["kv_current"]) == expected

    def made(tables: dict[str, DataFrame]) -> list[tuple[object, ...]]:
        names = ("key", "revision", "change", "value", "valid_from")
        return sorted(map(tuple, tables["kv_history"].select(*names).collect()))

    assert made(parts) == made(whole)


def test_a_log_that_was_shortened_goes_on_from_its_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = mixed(100, seed=3)
    write_log(tmp_path / "m", batches)
    position = shorten_log(tmp_path / "m", batches, 60)
    at = moment_at(tmp_path / "m")
    expected = by_a_member(batches, tmp_path / "truth", at.position)
    found = state(spark, tmp_path / "m", at)
    assert held(found) == expected
    done = export(spark, tmp_path / "m", tmp_path / "tables")
    assert (done.begin, done.end) == (position, at.position)
    assert held(exported_tables(spark, tmp_path / "tables")["kv_current"]) == expected
    with pytest.raises(PrunedError, match=f"the log begins at {position}"):
        moment_at(tmp_path / "m", position=position - 32)


def of_sessions(count: int, seed: int = 4) -> list[Batch]:
    """Batches of commands of four sessions, many sent again, some too late or out of order.

    The sessions belong to two users, and some commands are sent by the wrong one.
    """
    rng = Random(seed)
    opened = tuple(pipeline(f"QUORATE.SESSION OPEN {life}") for life in (2000, 9000, 9000, 90_000))
    owners = {1: 0, 2: 7, 3: 7, 4: 0}
    whose = tuple((0, 0, owner) for owner in owners.values())
    batches = [Batch(opened, BEGAN_MS, stamps=whose)]
    sequences = dict.fromkeys((1, 2, 3, 4), 0)
    for at in range(1, count):
        payloads: list[bytes] = []
        stamps: list[tuple[int, ...]] = []
        for _ in range(rng.randint(1, 5)):
            session = rng.choice(list(sequences))
            if rng.random() < 0.5:
                sequences[session] += 1
            number = max(1, sequences[session] - rng.choice((0, 0, 0, 1, 5)))
            key = f"user:{session}"
            others = [
                (f"INCR {key}", (0, 0)),
                (f"QUORATE.SESSION KEEPALIVE {session} {number}", (0, 0)),
                ("QUORATE.SESSION CLOSE 3", (0, 0)),
            ]
            usual = f"APPEND {key} {number}", (session, number)
            line, stamp = usual if rng.random() < 0.8 else rng.choices(others, (8, 8, 1))[0]
            payloads.append(pipeline(line))
            user = owners[session] if rng.random() < 0.9 else 9
            stamps.append((*stamp, user))
        batches.append(Batch(tuple(payloads), BEGAN_MS + 500 * at, 0, 0, tuple(stamps)))
    return batches


def test_a_command_of_a_session_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    batches = of_sessions(120)
    write_log(tmp_path / "m", batches)
    at = moment_at(tmp_path / "m")
    expected = by_a_member(batches, tmp_path / "truth", at.position)
    assert len(expected) == 4
    assert held(state(spark, tmp_path / "m", at)) == expected
    with open_log(tmp_path / "m") as log:
        assert len(unapplied(log, 0, at.position)) > 50
    shorten_log(tmp_path / "m", batches, 60)
    assert held(state(spark, tmp_path / "m", at)) == expected


def test_pipelines_of_thousands_of_commands(spark: SparkSession, tmp_path: Path) -> None:
    count, length = 5, 4000  # copied for each command, the payloads would be 2.5 GiB
    batches = [
        Batch(
            (pipeline(*(f"SET a-key-of-some-length:{at} {n}" for at in range(length))),),
            BEGAN_MS + n,
            flags=IN_PARTS,
        )
        for n in range(count + 1)
    ]
    write_log(tmp_path / "m", batches)
    found = state(spark, tmp_path / "m")
    assert found.groupBy("value").count().collect() == [(b"%d" % (count - 1), length)]
    done = export(spark, tmp_path / "m", tmp_path / "tables")
    assert (done.history, done.current) == ((count - 1) * length, length)


@pytest.mark.slow
def test_the_longest_values_there_are(spark: SparkSession, tmp_path: Path) -> None:
    longest = limits.MAX_VALUE_BYTES
    commands = [
        encode_command([b"SET", b"a", b"1" * longest]),
        encode_command([b"SETRANGE", b"a", b"%d" % (longest - 1), b"2"]),
        encode_command([b"APPEND", b"a", b"3"]),  # one byte too long, so it is refused
        encode_command([b"SET", b"last", b""]),
    ]
    write_log(tmp_path / "m", [Batch((one,), BEGAN_MS + at) for at, one in enumerate(commands)])
    done = export(spark, tmp_path / "m", tmp_path / "tables")
    assert (done.history, done.current) == (1, 1)
    current = exported_tables(spark, tmp_path / "tables")["kv_current"]
    (row,) = current.selectExpr("length(value)", "string(substring(value, -2, 2))").collect()
    assert tuple(row) == (longest, "12")


def test_tables_of_another_log_are_not_added_to(spark: SparkSession, tmp_path: Path) -> None:
    batches = one_each([f"SET k{i} v" for i in range(60)])
    write_log(tmp_path / "one", batches[:3])
    write_log(tmp_path / "other", [attrs.evolve(batch, term=3) for batch in batches])
    export(spark, tmp_path / "one", tmp_path / "tables")
    with pytest.raises(StorageError, match="it is another log"):
        export(spark, tmp_path / "other", tmp_path / "tables")


# report -----------------------------------------------------------------------------------------

LOG = one_each([f"SET k{i} v{i}" for i in range(200)], per_batch=5, terms=3)


def test_a_report_counts_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, LOG)
    found = report(spark, tmp_path, separator="1")
    terms = found.terms.collect()
    assert [(row["term"], row["leader"], row["reason"]) for row in terms] == [
        (0, 0, "a test"),
        (1, 1, "a test"),
        (2, 2, "a test"),
    ]
    assert sum(row["entries"] for row in terms) == 39 * 5 + 3
    assert [row["election_seconds"] for row in terms] == [0.25] * 3
    assert [row["pause_seconds"] for row in terms] == [None, 1.0, 1.0]
    assert [row["without_leader_seconds"] for row in terms] == [None, 0.25, 0.25]
    assert sum(row["entries"] for row in found.load.collect()) == 39 * 5 + 3
    assert sum(row["commands"] for row in found.written.collect()) == 195
    (commands,) = found.operations.collect()
    assert (commands["operation"], commands["commands"]) == ("SET", 195)
    assert commands["keys"] == 195
    for frame in (found.terms, found.load, found.written, found.operations, found.keys):
        assert [name for name in frame.columns if hasattr(Row, name)] == []
    hottest = found.prefixes.collect()[0]
    assert (bytes(hottest["name"]), hottest["commands"]) == (b"k1", 106)
    grown = growth(found.load)
    assert grown.bytes_per_day is not None
    assert grown.days == pytest.approx(38 / 86400)
    page = render(found)
    assert "<dt>without a leader, in total</dt><dd>0.500 s</dd>" in page
    assert page.count("<svg") == 4  # each plot for narrow and for wide screens
    assert page.count('<div class="wide">') == page.count("<table") == 4
    heads = re.findall(r"<th\b[^>]*>([^<]*)", page)
    assert len(heads) == 20
    assert [head for head in heads if "_" in head or not head[0].isupper()] == []
    assert '<td class="time">2023-11-14 22:13:20.000 UTC</td>' in page
    loaded = re.findall(r"(?:src|href)=[\"']([^\"']*)|url\(([^)]*)\)|(<script|<link|@import)", page)
    assert [one for one in loaded if not "".join(one).startswith("#")] == []
