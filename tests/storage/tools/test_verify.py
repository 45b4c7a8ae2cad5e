"""Looking into a store from outside, also while the member runs in another process."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from quorate.errors import PrunedError, StoreBusyError, StoreMismatchError
from quorate.storage import (
    DumpedBatch,
    Entry,
    EntryKind,
    MembershipRow,
    NodeState,
    SnapshotRow,
    TermRow,
    decode_header_untrusted,
    describe,
    dump,
    encode_batch,
    open_readonly,
    verify,
)
from quorate.storage.rows.membership import encode_membership
from quorate.storage.testing import InlineExecutor
from tests.support.storage_world import (
    batch_at,
    begin_term,
    configuration_at,
    fill,
    open_store,
    running,
    tamper,
)


async def make(directory: Path) -> list[bytes]:
    """Make a store of two terms, a vote and a snapshot, with the first batch pruned."""
    async with running(open_store(directory, InlineExecutor)) as store:
        end = await begin_term(store, 0, timestamp_ms=1)
        await begin_term(store, 1, timestamp_ms=2)
        await store.append_durably(
            batch_at(2 * end, term=1, count=3, timestamp_ms=9, commit_position=end)
        )
        await store.save_node_state(NodeState(1, 1))
        await store.add_snapshot(SnapshotRow(end, 0, 7, "first"))
        await store.drop_prefix(end)
        return list(store.scan(end))


async def test_a_description_says_what_is_there(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    end = len(batches[0])
    store = open_store(tmp_path)
    identity, after = store.identity, store.recorded
    store.close()
    found = describe(tmp_path)
    assert found.identity == identity
    assert found.node_state == after.node_state == NodeState(1, 1)
    assert found.terms == after.terms == (TermRow(0, 0, end, 1), TermRow(1, end, None, 2))
    assert found.snapshots == after.snapshots
    assert (found.start_position, found.append_position) == (end, after.append_position)
    assert (found.commit_position, found.timestamp_ms) == (end, 9)
    assert found.batches == 2
    assert found.bytes == sum(map(len, batches))
    assert found.file_bytes == (tmp_path / "data.mdb").stat().st_size
    assert 0 < found.free_pages * found.page_bytes < found.file_bytes


async def test_an_intact_store_verifies(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    report = verify(tmp_path)
    assert report.ok, report.findings
    assert (report.batches, report.entries, report.terms) == (2, 4, 2)
    assert report.bytes == sum(map(len, batches))
    assert report.findings == ()


def opening_at(position: int, *, behind: int = 0) -> bytes:
    """Return a batch whose last entry opens term 0."""
    entries = [Entry(EntryKind.COMMAND, b"x")] * behind + [Entry(EntryKind.NEW_LEADERSHIP_TERM)]
    return encode_batch(entries, term=0, position=position, timestamp_ms=0, commit_position=0)


async def test_a_second_opening_of_a_term_is_found(tmp_path: Path) -> None:
    async with running(open_store(tmp_path, InlineExecutor)) as store:
        await store.append_durably(opening_at(0))
        first = store.append_position
        await store.append_durably(opening_at(first))
        await store.append_durably(opening_at(store.append_position, behind=1))
    found = [(each.term, each.position, each.reason) for each in verify(tmp_path).findings]
    words = "opens the term a second time; the term begins at 0"
    assert found == [(0, first, f"its entry 0 {words}"), (0, 2 * first, f"its entry 1 {words}")]


async def make_configured(directory: Path) -> tuple[MembershipRow, ...]:
    """Make a store with two configurations, and batches around them."""
    async with running(open_store(directory, InlineExecutor)) as store:
        await begin_term(store, 0)
        await store.append_durably(configuration_at(store.append_position, b"one"))
        await fill(store, 1)
        await store.append_durably(configuration_at(store.append_position, b"two"))
        await fill(store, 1)
        return store.memberships


async def test_configurations_are_described_and_verified(tmp_path: Path) -> None:
    first, second = await make_configured(tmp_path)
    assert verify(tmp_path).ok
    found = [(each.term, each.position, each.text) for each in describe(tmp_path).configurations]
    assert found == [(0, first.position, "one"), (0, second.position, "two")]
    async with running(open_store(tmp_path, InlineExecutor)) as store:
        await store.drop_prefix(first.position)
        assert len(store.memberships) == 2
    assert verify(tmp_path).ok


TAMPERED: dict[str, Callable[[MembershipRow], tuple[bytes, bytes | None]]] = {
    "missing": lambda row: (encode_membership(row)[0], None),
    "payload": lambda row: encode_membership(attrs.evolve(row, payload=b"TWO")),
    "term": lambda row: encode_membership(attrs.evolve(row, term=7)),
    "later": lambda row: encode_membership(attrs.evolve(row, position=row.position + 192)),
    "earlier": lambda row: encode_membership(attrs.evolve(row, position=row.position - 32)),
    "behind": lambda row: encode_membership(attrs.evolve(row, position=1 << 20)),
    "damaged": lambda row: (encode_membership(row)[0], b"x" * 30),
}
"""By what is wrong: the key and the value that take the place of a row, or come in addition."""


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("missing", "it holds a configuration, which has no row"),
        ("payload", "it holds another configuration than its row"),
        ("term", "it holds another configuration than its row"),
        ("later", "a row says that a configuration ends at"),
        ("earlier", "a row says that a configuration ends at"),
        ("behind", "the row of a configuration is behind the end of the log"),
        ("damaged", "configurations: row"),
    ],
)
async def test_a_wrong_row_of_a_configuration_is_found(
    tmp_path: Path, how: str, words: str
) -> None:
    _, second = await make_configured(tmp_path)
    tamper(tmp_path, b"members", *TAMPERED[how](second))
    (finding,) = verify(tmp_path).findings
    assert words in finding.reason


def test_an_empty_store_verifies(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    assert verify(tmp_path).ok
    assert describe(tmp_path).batches == 0
    assert list(dump(tmp_path)) == []


async def test_verification_goes_through_a_log_of_many_chunks(tmp_path: Path) -> None:
    async with running(open_store(tmp_path, InlineExecutor)) as store:
        await begin_term(store, 0)
        for _ in range(20):
            store.append(batch_at(store.submitted_position, size=500_000))
        batches = await fill(store, 1)
    report = verify(tmp_path)
    assert report.ok
    assert (report.batches, report.bytes) == (len(batches), sum(map(len, batches)))


async def test_a_dump_decodes_batches_in_a_range(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    end = len(batches[0])
    headers = [decode_header_untrusted(batch) for batch in batches]
    dumped = list(dump(tmp_path))
    assert [one.header for one in dumped] == headers
    assert [len(one.entries) for one in dumped] == [1, 3]
    assert [one.header for one in dump(tmp_path, 2 * end)] == headers[1:]
    assert [one.header for one in dump(tmp_path, end, 2 * end)] == headers[:1]
    with pytest.raises(PrunedError):
        list(dump(tmp_path, 0))


def dump_all(directory: Path) -> list[DumpedBatch]:
    return list(dump(directory))


@pytest.mark.parametrize("look", [describe, verify, open_readonly, dump_all])
def test_a_directory_without_a_store_is_told_so(
    tmp_path: Path, look: Callable[[Path], object]
) -> None:
    with pytest.raises(StoreMismatchError, match="expected a store of quorate"):
        look(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_within_the_process_of_the_member_tools_are_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for look in (describe, verify):
        with pytest.raises(StoreBusyError):
            look(tmp_path)
    store.close()
    assert verify(tmp_path).ok


async def test_tools_read_while_the_member_writes_and_grows(tmp_path: Path) -> None:
    here = Path(__file__).parent
    script = f"""
import sys
from collections.abc import Callable
from pathlib import Path
sys.path[:0] = [{str(here)!r}, {str(here.parents[2])!r}]
from quorate.storage import open_readonly
with open_readonly(Path({str(tmp_path)!r})) as store:
    while line := sys.stdin.readline():
        store.refresh()
        print(store.append_position, sum(map(len, store.scan(0))), flush=True)
"""
    async with running(open_store(tmp_path, InlineExecutor, map_bytes=1 << 17)) as store:
        await begin_term(store, 0)
        with subprocess.Popen(  # noqa: ASYNC220 - what it answers is awaited line by line
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for size in (10, 300_000, 3_000_000):
                await store.append_durably(batch_at(store.submitted_position, size=size))
                print(file=child.stdin, flush=True)
                assert child.stdout.readline().split() == [str(store.append_position)] * 2
            child.stdin.close()
