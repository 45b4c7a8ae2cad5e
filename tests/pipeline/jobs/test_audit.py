"""The audit finds in members' logs whatever breaks a promise of the protocol."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from quorate.cli.pipeline_show import plain_audit, show_audit
from quorate.local.show import make_console
from quorate.pipeline.jobs.audit import Audit, Divergent, Finding, audit
from quorate.pipeline.jobs.double_apply import doubly_applied, session_commands
from quorate.pipeline.jobs.invariants import holes, terms_that_go_back
from quorate.pipeline.source.columns import ddl
from quorate.pipeline.source.logs import Facts
from quorate.storage import (
    DumpedBatch,
    TermRow,
    check_batch_untrusted,
    decode_entries_untrusted,
    decode_header_untrusted,
)
from tests.pipeline.pipeline_world import (
    BEGAN_MS,
    Batch,
    encoded,
    encoded_anew,
    forgetful_snapshot,
    move_term,
    one_each,
    pipeline,
    rewrite,
    shorten_log,
    write_log,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

LOG = one_each([f"SET k{i} v{i}" for i in range(200)], per_batch=5, terms=3)
HEADERS = [decode_header_untrusted(data) for data in encoded(LOG)]


@pytest.mark.spark
def test_whatever_breaks_a_promise_is_found(spark: SparkSession, tmp_path: Path) -> None:
    for member in range(4):
        write_log(tmp_path / str(member), LOG, member_id=member)
    bases = [head for at, head in enumerate(HEADERS) if at == 0 or HEADERS[at - 1].term < head.term]
    changes: list[tuple[int, int, dict[str, int]]] = [
        (1, HEADERS.index(bases[1]), {"leader": 2}),
        (1, 5, {"timestamp_ms": BEGAN_MS}),
        (1, 9, {"commit_position": HEADERS[9].end}),
        (2, 30, {"commit_position": 0}),
    ]
    for member, at, change in changes:
        head = HEADERS[at]
        rewrite(
            tmp_path / str(member),
            head.term,
            head.position,
            lambda data, change=change: encoded_anew(data, **change),  # type: ignore[misc]
        )
    late = HEADERS[HEADERS.index(bases[1]) + 1].position  # the row of term 1 begins a batch later
    rows = TermRow(0, 0, late, BEGAN_MS), TermRow(1, late, bases[2].position, BEGAN_MS)
    move_term(tmp_path / "2", rows)
    rewrite(tmp_path / "3", HEADERS[12].term, HEADERS[12].position, lambda _data: None)
    found = audit(spark, [tmp_path / str(member) for member in range(4)])
    kinds = {(one.kind, one.member, one.position) for one in found.findings}
    assert kinds >= {
        ("leaders", -1, bases[1].position),
        ("clock", 1, HEADERS[5].position),
        ("commit", 1, HEADERS[9].position),
        ("commit", 2, HEADERS[30].position),
        ("terms", -1, bases[1].position),  # members 1 and 2 disagree where term 1 begins
        ("terms", 2, bases[1].position),  # and a batch of it lies before it, which opens it
        ("terms", 2, late),  # where it begins with a command
        ("damage", 3, HEADERS[12].position),
    }
    texts = {one.text for one in found.findings if (one.kind, one.member) == ("terms", 2)}
    assert {"it begins with a COMMAND", "entry 0 of this batch opens it, not its first one"} < texts
    assert {one.text for one in found.findings if one.kind == "leaders"} == {
        "it has the leaders 1 and 2"
    }
    assert found.first == HEADERS[5].position
    said = [one.text for one in found.findings if one.kind == "divergence"]
    assert "member 0: term 0" in said[0]
    assert "member 1: term 0" in said[0]
    assert len(said) == len(changes)
    assert [one.member for one in found.records] == [0, 1, 2]
    assert {one.batch.header.timestamp_ms for one in found.records} == {BEGAN_MS, BEGAN_MS + 5000}


@pytest.mark.spark
def test_holes_and_terms_that_go_back_are_found_in_any_table(spark: SparkSession) -> None:
    rows = [(0, 0, 100), (1, 100, 100), (0, 200, 100), (1, 320, 100)]
    names = ("term", "position", "length", "member")
    batches = spark.createDataFrame([(*row, 3) for row in rows], ddl("batches", names))
    assert [tuple(row) for row in holes(batches).collect()] == [
        ("hole", 3, 1, 320, "the batch before ends at 300")
    ]
    assert [tuple(row) for row in terms_that_go_back(batches).collect()] == [
        ("term", 3, 0, 200, "it follows term 1")
    ]


@pytest.mark.spark
@pytest.mark.slow
def test_a_command_of_a_session_that_is_applied_twice_is_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    def of(*sequences: int) -> Batch:
        payloads = tuple(pipeline(f"INCR k{one}") for one in sequences)
        return Batch(payloads, BEGAN_MS, stamps=tuple((2, one) for one in sequences))

    batches = [
        Batch((pipeline("QUORATE.SESSION OPEN 60000"),), BEGAN_MS),
        of(1, 2),
        of(2, 3),
        of(3, 4),
        of(5),
        of(6),
    ]
    places = [decode_header_untrusted(data).position for data in encoded(batches)]
    write_log(tmp_path / "0", batches)
    assert doubly_applied(session_commands(spark, tmp_path / "0")).collect() == []
    # What a member restores has forgotten what came after the first two batches.
    position = forgetful_snapshot(tmp_path / "0", batches, 3, known=2)
    assert position == places[3]
    applied = session_commands(spark, tmp_path / "0").where("applied").collect()
    found = {(row["since"], row["sequence"], row["position"]) for row in applied}
    assert found == {
        *((0, 1, places[1]), (0, 2, places[1]), (0, 3, places[2]), (0, 4, places[3])),
        *((0, 5, places[4]), (position, 5, places[4])),
        *((position, 3, places[3]), (position, 4, places[3])),
    }
    (finding,) = audit(spark, [tmp_path / "0"]).findings
    assert (finding.kind, finding.position) == ("session", places[3])
    assert finding.text == (
        f"session 2#3 is applied by entry 0 of this batch (by members that begin at {position}), "
        f"and by entry 1 at {places[2]}"
    )


def test_what_differs_far_inside_of_an_entry_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    sets = [f"SET k{i} {'v' * 9}" for i in range(9)]
    payloads = [pipeline(*sets, f"SET last {value}") for value in ("one", "two")]
    found = Audit(
        members=(Facts("testing", 0, 0, 1000), Facts("testing", 1, 0, 1000)),
        batches=2,
        entries=2,
        findings=(),
        first=0,
        records=tuple(
            Divergent(
                member, DumpedBatch(check_batch_untrusted(data), decode_entries_untrusted(data))
            )
            for member, payload in enumerate(payloads)
            for data in encoded([Batch((payload,), BEGAN_MS)])
        ),
        unchecked=(),
    )
    show_audit(make_console(), found)
    text = capsys.readouterr().out
    assert text.count("*3\\r\\n$3\\r\\nSET\\r\\n$2\\r\\nk0") == 2
    place = len(payloads[0]) - len(b"one\r\n")
    assert f"    from byte {place:,} on: one\\r\\n\n" in text
    assert f"    from byte {place:,} on: two\\r\\n\n" in text


def test_the_first_divergence_is_shown_from_where_it_differs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = [encoded(one_each([f"SET k{i} {value}" for i in range(9)])) for value in ("one", "two")]
    batches = [
        DumpedBatch(check_batch_untrusted(it[0]), decode_entries_untrusted(it[0])) for it in data
    ]
    found = Audit(
        members=tuple(Facts("testing", member, 0, 1000) for member in range(3)),
        batches=3,
        entries=10,
        findings=(Finding("divergence", -1, 0, 0, "they differ"),),
        first=0,
        records=tuple(Divergent(member, batches[member == 1]) for member in range(3)),
        unchecked=("the sessions of member 2: no",),
    )
    show_audit(make_console(), found)
    text = capsys.readouterr().out
    assert "members 0, 2: term 0  0 to" in text
    assert "member 1: term 0  0 to" in text
    assert [
        text.count(f"k{i}\\r\\n$3\\r\\n{value}") for i in (0, 2, 3) for value in ("one", "two")
    ] == [*(1, 1, 1, 1, 0, 0)]
    assert text.count("and 6 entries more") == 2
    assert "NOT CHECKED: the sessions of member 2: no" in text
    plain = json.loads(json.dumps(plain_audit(found)))
    assert [(one["members"], one["from_entry"]) for one in plain["records"]] == [
        ([0, 2], 1),
        ([1], 1),
    ]


@pytest.mark.spark
def test_who_wrote_how_much_also_where_the_log_is_pruned(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users = [pipeline("ACL SETUSER alice on"), pipeline("ACL SETUSER bob on")]
    gone = [pipeline("ACL DELUSER bob"), pipeline("ACL SETUSER carol on")]
    value = pipeline("SET k v")
    log = [
        Batch(tuple(users), BEGAN_MS),
        Batch((value,) * 4, BEGAN_MS + 1, stamps=((0, 0, 1), (0, 0, 2), (0, 0, 2), (0, 0))),
        Batch(tuple(gone), BEGAN_MS + 2, stamps=((0, 0, 1), (0, 0, 1))),
        Batch((value,) * 2, BEGAN_MS + 3, stamps=((0, 0, 3), (0, 0, 17))),
        Batch((value,), BEGAN_MS + 4),  # the last batch is not known to be committed
    ]
    write_log(tmp_path / "0", log)
    write_log(tmp_path / "1", log, member_id=1)
    size = len(value)
    found = audit(spark, [tmp_path / "0", tmp_path / "1"])
    assert found.findings == ()
    bytes_of_alice = size + sum(map(len, gone))
    assert {(one.principal, one.name, one.entries, one.bytes) for one in found.writers} == {
        (0, "default", 3, sum(map(len, users)) + size),
        (1, "alice", 3, bytes_of_alice),
        (2, "bob", 2, 2 * size),
        (3, "carol", 1, size),
        (17, "#17", 1, size),
    }
    show_audit(make_console(), found)
    assert f"written by alice: 3 entries, {bytes_of_alice} B" in capsys.readouterr().out
    # the names of a pruned log come from its snapshot, and from the log behind that
    shorten_log(tmp_path / "0", log, 3)
    names = spark.read.format("quorate").option("table", "principals").load(str(tmp_path / "0"))
    expected = {(0, "default", 0), (1, "alice", 0), (2, "bob", 0), (3, "carol", 0)}
    assert {tuple(row)[:3] for row in names.collect()} == expected
    commands = spark.read.format("quorate").load(str(tmp_path / "0"))
    joined = commands.join(names, ["principal", "member"], "left").where("key = 'k'")
    assert {(row["principal"], row["name"]) for row in joined.collect()} == {
        (3, "carol"),
        (17, None),
    }
