"""Many SETs at one go change a memtable as one after the other would."""

import pytest

from quorate.keyvalue.native.plain import NATIVE, apply_sets
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.state.service import TRANSACTION
from quorate.keyvalue.state.store import STRING
from quorate.storage import Entry, EntryKind
from quorate.storage.tables.memtable import Record
from tests.support.service_world import encode

pytestmark = pytest.mark.skipif(not NATIVE, reason="keyvalue/native/plain.c was not compiled")

COMMAND = EntryKind.COMMAND


@pytest.mark.parametrize("size", [0, 1, 100, 1000, 50_000])
def test_records_are_put_the_same_into_memtables_of_any_size(size: int) -> None:
    """Of a large one the places of several records are looked for before the first is put."""
    records: dict[bytes, Record | None] = {b"%d" % n: (b"old", 0, 1, 0) for n in range(size)}
    records |= dict.fromkeys(b"%d" % n for n in range(0, size, 3))
    names = [b"%d" % (n * n % (size + 7)) for n in range(777)]  # some are new, some come again
    values = [b"%d" % n * (n % 5) for n in range(777)]
    payload = encode(*[("SET", name, each) for name, each in zip(names, values, strict=True)])
    expected = records | {
        name: (each, 0, 9, STRING) for name, each in zip(names, values, strict=True)
    }
    fresh = [name for name in expected if name not in records]
    grown = held_bytes(expected) - held_bytes(records)
    present = sum(map(bool, expected.values())) - sum(map(bool, records.values()))
    entries = [Entry(COMMAND, payload)]
    new: list[bytes] = []
    wanted = COMMAND, TRANSACTION, 9, STRING, 1, resp.OK
    done, added, *counts, lasting = apply_sets(entries, 0, *wanted, records, new, {b"1": 5})
    assert (done, lasting) == ([resp.OK * 777], [b"1"] * names.count(b"1"))
    assert [*records.items()] == [*expected.items()]
    assert (new, added, counts) == (fresh, len(fresh), [present, grown])


def test_a_record_that_somebody_holds_is_not_changed() -> None:
    records: dict[bytes, Record | None] = {}

    def put(revision: int, *lines: str) -> None:
        entries, wanted = [Entry(COMMAND, encode(*lines))], (COMMAND, TRANSACTION)
        apply_sets(entries, 0, *wanted, revision, STRING, 1, resp.OK, records, [], {})

    put(7, "SET a old", "SET b old")
    kept = records[b"a"]
    put(8, "SET a new", "SET b new", "SET a newer")
    assert kept == (b"old", 0, 7, STRING)
    assert records == {b"a": (b"newer", 0, 8, STRING), b"b": (b"new", 0, 8, STRING)}


def held_bytes(records: dict[bytes, Record | None]) -> int:
    """Count the bytes of keys and values."""
    return sum(len(name) + len(record[0] if record else b"") for name, record in records.items())
