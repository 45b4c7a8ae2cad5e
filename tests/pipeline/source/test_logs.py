"""What is committed, where a log can be cut, and what its bytes become; without Spark."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import ConfigurationError, StoreMismatchError, WireError
from quorate.pipeline.payloads.decoding import decode_commands, find_decoder
from quorate.pipeline.source.columns import TABLES, arrow_schema, ddl
from quorate.pipeline.source.decode import decode
from quorate.pipeline.source.logs import find_recording, open_log
from quorate.pipeline.source.options import parse_options
from quorate.storage import (
    Entry,
    EntryKind,
    decode_entries_untrusted,
    decode_header_untrusted,
    encode_batch,
)
from quorate.storage.tables.disk import TablesDisk
from quorate.storage.tables.flush import Cut
from quorate.storage.tables.memtable import Layer
from tests.pipeline.pipeline_world import BEGAN_MS, damage, encoded, one_each, pipeline, write_log

if TYPE_CHECKING:
    from pathlib import Path

BATCHES = one_each([f"SET k{i} {'v' * (i % 7)}x" for i in range(300)], per_batch=7, terms=4)
HEADERS = [decode_header_untrusted(data) for data in encoded(BATCHES)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("member-0")
    write_log(found, BATCHES)
    return found


def test_what_the_last_header_says_is_committed(directory: Path) -> None:
    with open_log(directory) as log:
        facts, terms = log.facts, log.terms()
    assert (facts.start, facts.committed) == (0, HEADERS[-1].position)
    assert [row.term for row in terms] == [0, 1, 2, 3]


def test_what_opens_a_term_is_told_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    write_log(tmp_path, BATCHES)
    broken = next(head for head in HEADERS if head.term == 2)
    damage(tmp_path, broken.term, broken.position)
    with open_log(tmp_path) as log:
        rows = log.terms()
        found = [log.opening(row) for row in rows]
        assert log.opening(attrs.evolve(rows[3], term=9)) is None
        assert log.opening(attrs.evolve(rows[3], base=log.facts.committed)) is None
    assert [one and (one.leader_member_id, one.reason) for one in found] == [
        *((0, "a test"), (1, "a test"), None, (0, "a test"))
    ]


def test_what_is_applied_is_committed_too(tmp_path: Path) -> None:
    end = write_log(tmp_path, BATCHES)
    tables = TablesDisk.open(tmp_path / "tables", cluster="testing", member_id=0)
    assert tables.write(Cut(Layer(), {}, {}, end, 0))
    tables.close()
    with open_log(tmp_path) as log:
        assert log.facts.committed == end


def test_a_term_of_which_nothing_is_committed_is_not_shown(tmp_path: Path) -> None:
    first_of_last = next(at for at, batch in enumerate(BATCHES) if batch.term == 3)
    write_log(tmp_path, BATCHES[: first_of_last + 1])
    with open_log(tmp_path) as log:
        assert [row.term for row in log.terms()] == [0, 1, 2]


@given(st.data())
def test_any_cut_covers_just_the_batches_that_begin_in_it(
    directory: Path, data: st.DataObject
) -> None:
    committed = HEADERS[-1].position
    start = data.draw(st.integers(0, committed + 100))
    stop = data.draw(st.integers(0, committed + 100))
    parts = data.draw(st.integers(1, 60))
    with open_log(directory) as log:
        ranges = log.cut(start, stop, parts)
        read = [decode_header_untrusted(one) for pair in ranges for one in log.batches(*pair)]
    assert len(ranges) <= parts
    assert read == [one for one in HEADERS[:-1] if start <= one.position < stop]


def test_the_first_batch_at_a_time_is_found(directory: Path) -> None:
    with open_log(directory) as log:
        for header in HEADERS[:-1]:
            assert log.first_at(header.timestamp_ms) == header.position
            assert log.first_at(header.timestamp_ms - 1) == header.position
        assert log.first_at(0) == 0
        assert log.first_at(HEADERS[-1].timestamp_ms) == log.facts.committed


def test_the_positions_of_terms_are_found(directory: Path) -> None:
    bases = [next(one.position for one in HEADERS if one.term == term) for term in range(4)]
    with open_log(directory) as log:
        assert log.of_term(1, 2) == (bases[1], bases[3])
        assert log.of_term(-1, 0) == (0, bases[1])
        assert log.of_term(7, 9) == (log.facts.committed, log.facts.committed)
        assert [log.term_before(base) for base in bases] == [-1, 0, 1, 2]


def test_a_directory_without_a_recording_is_refused(directory: Path, tmp_path: Path) -> None:
    assert find_recording(directory) == find_recording(directory / "log") == directory / "log"
    with pytest.raises(StoreMismatchError, match="no recording there"):
        find_recording(tmp_path)


# Columns ----------------------------------------------------------------------------------------

entries = st.lists(
    st.builds(
        Entry,
        st.sampled_from(EntryKind),
        st.binary(max_size=40) | st.just(pipeline("SET a 1", "DEL b c")),
        st.integers(0, 255),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
    ),
    max_size=5,
)


def batches_of(groups: list[list[Entry]]) -> list[bytes]:
    position, found = 0, list[bytes]()
    for at, group in enumerate(groups):
        data = encode_batch(
            group, term=at // 2, position=position, timestamp_ms=at, commit_position=0
        )
        found.append(data)
        position += len(data)
    return found


@given(st.lists(entries, max_size=5))
def test_the_columns_say_what_the_entries_say(groups: list[list[Entry]]) -> None:
    batches = batches_of(groups)
    rows = decode(batches, "entries", member_id=3).to_pylist()
    expected = [
        (header.term, header.position, index, entry)
        for header, batch in ((decode_header_untrusted(one), one) for one in batches)
        for index, entry in enumerate(decode_entries_untrusted(batch))
    ]
    assert len(rows) == len(expected)
    for row, (term, position, index, entry) in zip(rows, expected, strict=True):
        assert (row["term"], row["position"], row["entry"]) == (term, position, index)
        assert (row["kind"], row["flags"]) == (entry.kind.name, entry.flags)
        assert (row["payload"], row["length"]) == (entry.payload, len(entry.payload))
        assert row["session"] % 2**64 == entry.session
        assert row["sequence"] % 2**64 == entry.sequence
        assert row["member"] == 3


@given(st.lists(entries, max_size=5))
def test_an_entry_is_whole_on_the_first_of_its_rows(groups: list[list[Entry]]) -> None:
    batches = batches_of(groups)
    rows = decode(batches, "commands").to_pylist()
    payloads = [row["payload"] for row in rows if row["payload"] is not None]
    assert payloads == [one.payload for group in groups for one in group]
    asked = [
        one
        for group in groups
        for entry in group
        for one in (
            decode_commands(entry.payload, entry.flags, 0)
            if entry.kind is EntryKind.COMMAND
            else [(0, None, None, None, None)]
        )
    ]
    names = ("number", "operation", "key", "value")
    assert [tuple(row[name] for name in names) for row in rows] == [one[:4] for one in asked]


def test_an_entry_that_lies_elsewhere_is_refused() -> None:
    (batch,) = batches_of([[Entry(EntryKind.COMMAND, b"payload")]])
    for place, value in ((64, 0), (64, 9), (64 + 4, 200), (64 + 8, 10)):
        wrong = bytearray(batch)
        wrong[place] = value
        with pytest.raises(WireError):
            decode([bytes(wrong)], "entries")


@pytest.mark.parametrize("table", ["commands", "entries", "batches"])
def test_each_column_can_be_had_alone(table: str) -> None:
    batches = batches_of([[Entry(EntryKind.COMMAND, pipeline("SET a 1"))]] * 2)
    whole = decode(batches, table)
    assert whole.schema == arrow_schema(table)
    for column in TABLES[table]:
        alone = decode(batches, table, names=[column.name])
        assert alone.column(0).equals(whole.column(column.name))
        assert f"`{column.name}` {column.sql}" in ddl(table)


def test_keys_of_another_prefix_are_left_out() -> None:
    batches = batches_of([[Entry(EntryKind.COMMAND, pipeline("MSET aa 1 b 2", "SET ab 3"))]])
    rows = decode(batches, "commands", names=["key"], prefix=b"a")
    assert rows.column(0).equals(pa.array([b"aa", b"ab"], pa.binary()))


# Commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("SET k v", ("SET", b"k", b"v", None)),
        ("set k v ex 10", ("SET", b"k", b"v", BEGAN_MS + 10_000)),
        ("SET k v NX PXAT 77", ("SET", b"k", b"v", 77)),
        ("SET k v EX soon", ("SET", b"k", b"v", None)),
        ("SETEX k 3 v", ("SETEX", b"k", b"v", BEGAN_MS + 3000)),
        ("PEXPIREAT k 99", ("PEXPIREAT", b"k", None, 99)),
        ("EXPIRE k 9223372036854775807", ("EXPIRE", b"k", None, None)),
        ("INCRBY k 5", ("INCRBY", b"k", b"5", None)),
        ("RENAME a b", ("RENAME", b"a", b"b", None)),
        ("DBSIZE", ("DBSIZE", None, None, None)),
        ("SET k", ("SET", None, None, None)),
        ("NOVEL k v", ("NOVEL", None, None, None)),
    ],
)
def test_a_command_tells_what_it_asks_for(command: str, expected: tuple[object, ...]) -> None:
    assert decode_commands(pipeline(command), 0, BEGAN_MS) == [(0, *expected)]


def test_what_is_no_command_is_a_row_all_the_same() -> None:
    assert decode_commands(b"no RESP", 0, 0) == [(0, None, None, None, None)]
    assert decode_commands(b"", 0, 0) == [(0, None, None, None, None)]


# Options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "expected either"),
        ({"path": "x", "colour": "red"}, "option colour: expected one of"),
        ({"path": "x", "table": "rows"}, 'table = "rows": expected one of commands'),
        ({"path": "x", "partitions": "0"}, 'option partitions = "0": expected a whole number'),
        ({"path": "x", "startPosition": "-1"}, "startPosition"),
        ({"path": "x", "pushdown": "yes"}, "expected true or false"),
        ({"path": "x", "decoder": "nowhere:f"}, "No module named 'nowhere'"),
        ({"path": "x", "decoder": "f"}, "expected package.module:function"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_options(options)


def test_a_log_is_cut_into_as_many_pieces_as_suit_its_length() -> None:
    usual = parse_options({"path": "x"})
    assert [usual.pieces(0, mib << 20) for mib in (0, 1, 8, 9, 80, 1 << 20)] == [
        1,
        1,
        1,
        2,
        10,
        1024,
    ]
    assert parse_options({"path": "x", "partitions": "7"}).pieces(0, 1) == 7


def test_the_usual_decoder_needs_no_name() -> None:
    assert find_decoder("") is find_decoder("quorate.pipeline.payloads.decoding:decode_commands")
