"""The configurations of the log are kept with it, whatever is done to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.errors import LostStoreError, WireError
from quorate.storage import (
    MAX_MEMBERSHIP_BYTES,
    Entry,
    EntryKind,
    MembershipRow,
    SnapshotRow,
    check_received_untrusted,
    encode_batch,
    open_readonly,
    verify,
)
from quorate.storage.log import store as store_file
from quorate.storage.log.log_table import KEY
from quorate.storage.rows.membership import encode_membership, membership_key
from quorate.storage.testing import InlineExecutor
from tests.support.journal_world import append, at_once, begin, cut_power
from tests.support.storage_world import (
    begin_term,
    configuration_at,
    fill,
    flipped,
    open_store,
    recorded_in,
    running,
    stored,
    tamper,
)

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage import Store


async def configure(store: Store, payload: bytes, *, term: int = 0) -> MembershipRow:
    """Append a configuration, durably; return its row."""
    await store.append_durably(configuration_at(store.submitted_position, payload, term=term))
    return MembershipRow(term, store.append_position, payload)


async def test_a_configuration_is_kept_and_reported_before_it_is_durable(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        seen: list[tuple[int, int]] = []
        store.on_membership = lambda: seen.append(
            (len(store.submitted.memberships), len(store.memberships))
        )
        await begin_term(store, 0)
        assert seen == []
        store.append(configuration_at(store.submitted_position, b"one"))
        assert seen == [(1, 0)]
        await store.settled()
        await fill(store, 2)
        second = await configure(store, b"two")
        assert seen == [(1, 0), (2, 1)]
        rows = store.memberships
        assert [row.payload for row in rows] == [b"one", b"two"]
        assert rows[1] == second
    assert recorded_in(tmp_path).memberships == rows
    with open_readonly(tmp_path) as found:
        assert found.memberships == rows


async def test_a_batch_appended_in_the_callback_is_written_behind(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        await begin_term(store, 0)

        def more() -> None:
            if len(store.submitted.memberships) < 3:
                store.append(configuration_at(store.submitted_position, b"more"))

        store.on_membership = more
        await configure(store, b"one")
        await store.settled()
        rows = store.memberships
        assert [row.payload for row in rows] == [b"one", b"more", b"more"]
    assert recorded_in(tmp_path).memberships == rows


async def test_a_truncation_takes_back_what_is_behind_it(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        await begin_term(store, 0)
        first = await configure(store, b"one")
        second = await configure(store, b"two")
        await fill(store, 2)
        calls: list[tuple[MembershipRow, ...]] = []
        store.on_membership = lambda: calls.append(store.submitted.memberships)
        await store.truncate(second.position)
        assert (store.memberships, calls) == ((first, second), [])
        await store.truncate(first.position)
        assert (store.memberships, calls) == ((first,), [(first,)])
        other = await configure(store, b"other")
        assert store.memberships == (first, other)
    assert recorded_in(tmp_path).memberships == (first, other)


async def test_pruning_keeps_the_one_in_force_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_file, "PRUNE_STEP", 2)
    async with running(open_store(tmp_path)) as store:
        await begin_term(store, 0)
        rows = [await configure(store, b"%d" % number) for number in range(4)]
        await fill(store, 4)
        await store.drop_prefix(rows[1].position - 32)
        assert store.memberships == tuple(rows)
        await store.drop_prefix(rows[1].position)
        assert store.memberships == tuple(rows[1:])
        await store.drop_prefix(store.append_position)
        assert store.memberships == (rows[3],)
        await store.truncate(store.append_position)
        assert store.memberships == (rows[3],)
    assert recorded_in(tmp_path).memberships == (rows[3],)


@pytest.mark.parametrize("payload", [b"", b'{"version": 7}'])
async def test_a_snapshot_brings_its_own(tmp_path: Path, payload: bytes) -> None:
    async with running(open_store(tmp_path)) as store:
        await begin_term(store, 0)
        for number in range(3):
            await configure(store, b"%d" % number)
        calls: list[int] = []
        store.on_membership = lambda: calls.append(len(store.submitted.memberships))
        row = SnapshotRow(store.append_position + 3200, 0, 9, "x")
        await store.install(row, store.terms, membership=payload)
        expected = (MembershipRow(0, row.position, payload),) if payload else ()
        assert store.memberships == expected
        assert calls == [len(expected)]
        await store.install(row, store.terms, membership=payload)
        assert calls == [len(expected)]
        behind = await configure(store, b"behind")
        await store.truncate(row.position)
        assert store.memberships == expected
        behind = await configure(store, b"behind")
    assert recorded_in(tmp_path).memberships == (*expected, behind)


async def test_one_that_is_too_long_is_not_received_and_never_in_force(tmp_path: Path) -> None:
    longest, longer = bytes(MAX_MEMBERSHIP_BYTES), bytes(MAX_MEMBERSHIP_BYTES + 1)
    check_received_untrusted(configuration_at(0, longest))
    with pytest.raises(WireError, match="expected it alone, with at most 65536 bytes"):
        check_received_untrusted(configuration_at(0, longer))
    async with running(open_store(tmp_path)) as store:
        row = await configure(store, longest)
        await configure(store, longer)
        assert store.memberships == (row,)
    assert recorded_in(tmp_path).memberships == (row,)


@pytest.mark.parametrize("first", [EntryKind.COMMAND, EntryKind.MEMBERSHIP])
def test_one_next_to_another_entry_is_not_received(first: EntryKind) -> None:
    entries = [Entry(first, b"x"), Entry(EntryKind.MEMBERSHIP, b"y")]
    batch = encode_batch(entries, term=0, position=0, timestamp_ms=0, commit_position=0)
    with pytest.raises(WireError, match="a configuration among 2 entries"):
        check_received_untrusted(batch)


async def test_one_is_never_in_the_journal_alone(tmp_path: Path) -> None:
    async with running(at_once(tmp_path)) as store:
        await begin(store)
        await append(store, 2)
        assert store.recorder.tail().records
        row = await configure(store, b"one")
        assert not store.recorder.tail().records
        behind = await append(store, 2)
        assert len(store.recorder.tail().records) == 2
        cut_power(store)
    found = recorded_in(tmp_path)
    assert found.memberships == (row,)
    assert found.append_position == row.position + sum(map(len, behind))


# --- damage ---------------------------------------------------------------------------------------


async def make(directory: Path) -> list[MembershipRow]:
    """Make a store with three configurations and some batches behind them."""
    async with running(open_store(directory, InlineExecutor)) as store:
        await begin_term(store, 0)
        rows = [await configure(store, b"one"), await configure(store, b"two")]
        await begin_term(store, 1)
        rows.append(await configure(store, b"three", term=1))
        await fill(store, 3, term=1)
        return rows


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_a_damaged_row_is_made_again_from_its_batch(tmp_path: Path, index: int) -> None:
    rows = await make(tmp_path)
    key, value = encode_membership(rows[index])
    tamper(tmp_path, b"members", key, flipped(value, 9))
    assert recorded_in(tmp_path).memberships == tuple(rows)
    assert stored(tmp_path, b"members", key) == value


async def test_a_damaged_row_without_its_batch_is_an_error(tmp_path: Path) -> None:
    rows = await make(tmp_path)
    async with running(open_store(tmp_path)) as store:
        await store.drop_prefix(rows[1].position)
        assert store.memberships == tuple(rows[1:])
    key, value = encode_membership(rows[1])
    tamper(tmp_path, b"members", key, flipped(value, 9))
    words = f"the batch that ends at {rows[1].position} is pruned or damaged, too"
    with pytest.raises(LostStoreError, match=words):
        open_store(tmp_path)


@pytest.mark.parametrize("key", [membership_key(32), membership_key(1 << 63), b"short"])
async def test_a_row_under_a_damaged_key_is_an_error(tmp_path: Path, key: bytes) -> None:
    rows = await make(tmp_path)
    tamper(tmp_path, b"members", key, encode_membership(rows[0])[1])
    with pytest.raises(LostStoreError, match="which members vote is lost"):
        open_store(tmp_path)


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_damaged_end_takes_its_configurations_with_it(
    tmp_path: Path,
    damaged: bool,  # noqa: FBT001
) -> None:
    async with running(open_store(tmp_path, InlineExecutor)) as store:
        await begin_term(store, 0)
        first, second = await configure(store, b"one"), await configure(store, b"two")
    at = KEY.pack(0, first.position)
    tamper(tmp_path, b"log", at, flipped(stored(tmp_path, b"log", at), 100))
    if damaged:
        key, value = encode_membership(second)
        tamper(tmp_path, b"members", key, flipped(value, 9))
    store = open_store(tmp_path, peers=True)
    assert store.append_position == first.position
    assert store.memberships == (first,)
    store.close()
    assert [finding.position for finding in verify(tmp_path).findings] == [first.position]
