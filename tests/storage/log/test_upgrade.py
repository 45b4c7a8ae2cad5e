"""A store that the version before has written: it is read as it is, and upgraded by a writer.

``format3.tar.zst`` has the files of such a store, written by the code of commit 96a3073 through the
functions of `tests.support.storage_world`. Member 1 of the cluster "testing" has 18 batches: five
of term 0, two of term 2, eleven of term 3; the last four are only in the journal. The second batch
of term 2 admits a store. There are a snapshot's row at 1344, a vote, and the service's kind.
"""

from __future__ import annotations

import io
import tarfile
from hashlib import blake2b
from pathlib import Path

import attrs
import lmdb
import pytest
import zstandard

from quorate.errors import StorageError, StoreMismatchError
from quorate.storage import (
    LogEnd,
    MembershipRow,
    NodeState,
    SnapshotRow,
    TermRow,
    VotingRight,
    describe,
    force,
    open_readonly,
    verify,
)
from quorate.storage.log import upgrade as upgrade_file
from quorate.storage.rows.identity import IDENTITY_KEY, Identity, encode_identity
from quorate.storage.testing import InlineExecutor
from tests.support.storage_world import begin_term, configuration_at, open_store, running, tamper

ARCHIVE = Path(__file__).with_name("format3.tar.zst")
LOG_DIGEST = "9e45dd3d8a52d519"
END = 6112


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Unpack the old store."""
    data = zstandard.ZstdDecompressor().decompress(ARCHIVE.read_bytes(), max_output_size=1 << 20)
    directory = tmp_path / "log"
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def digest(log: list[bytes]) -> str:
    """Return a fingerprint of a log."""
    return blake2b(b"".join(log), digest_size=8).hexdigest()


def format_of(directory: Path) -> int:
    """Read which format a store says that it has."""
    with open_readonly(directory) as store:
        return store.identity.format_version


def test_it_is_read_as_it_is(old: Path) -> None:
    before = (old / "data.mdb").read_bytes()
    with open_readonly(old) as store:
        assert store.identity.format_version == 3
        assert store.memberships == ()
        assert digest(list(store.scan(0))) == LOG_DIGEST
    assert describe(old).batches == 18
    report = verify(old)
    assert (report.ok, report.batches) == (True, 18), report.findings
    assert (old / "data.mdb").read_bytes() == before


async def test_it_is_upgraded_when_it_is_opened_for_writing(old: Path) -> None:
    async with running(open_store(old, InlineExecutor)) as store:
        assert store.identity.format_version == 4
        assert digest(list(store.scan(0))) == LOG_DIGEST
        assert store.node_state == NodeState(4, 2)
        assert store.voting_status.kind is VotingRight.VOTER
        assert store.terms == (
            TermRow(0, 0, 1120, 1000),
            TermRow(2, 1120, 1600, 2000),
            TermRow(3, 1600, None, 3000),
        )
        assert store.snapshots == (SnapshotRow(1344, 2, 2000, "snapshot-00000000000000001344-2"),)
        assert store.recorded.admission == LogEnd(2, 1600)
        assert store.recorded.service == "key-value"
        assert not store.memberships
        await store.append_durably(configuration_at(END, b"{}", term=3, timestamp_ms=4000))
        rows = (MembershipRow(3, store.append_position, b"{}"),)
        assert store.memberships == rows
    async with running(open_store(old)) as again:
        assert (again.identity, again.memberships) == (store.identity, rows)
        assert again.voting_status == store.voting_status
        await begin_term(again, 5, timestamp_ms=4000)
    report = verify(old)
    assert (report.ok, report.batches) == (True, 20), report.findings


def test_a_forced_quorum_upgrades_it_too(old: Path) -> None:
    row = force(old, instance_id=7, timestamp_ms=1)
    assert row.position == END
    assert format_of(old) == 4
    store = open_store(old)
    assert (store.memberships, store.identity.instance_id) == ((), 7)
    store.close()


def test_an_upgrade_that_fails_leaves_the_old_format(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_identity: Identity) -> bytes:
        raise OSError("the power is cut")

    with monkeypatch.context() as patch:
        patch.setattr(upgrade_file, "encode_identity", fail)
        with pytest.raises(StorageError, match="the power is cut"):
            open_store(old)
    assert format_of(old) == 3
    test_it_is_read_as_it_is(old)
    store = open_store(old)
    assert (store.identity.format_version, store.memberships) == (4, ())
    assert digest(list(store.scan(0))) == LOG_DIGEST
    store.close()


def test_an_upgrade_goes_on_in_a_larger_map(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Identity] = []

    def once_too_large(identity: Identity) -> bytes:
        calls.append(identity)
        if len(calls) == 1:
            raise lmdb.MapFullError("too large")
        return encode_identity(identity)

    monkeypatch.setattr(upgrade_file, "encode_identity", once_too_large)
    store = open_store(old)
    assert (len(calls), store.identity.format_version) == (2, 4)
    store.close()
    assert verify(old).ok


def test_another_member_does_not_upgrade_it(old: Path) -> None:
    with pytest.raises(StoreMismatchError, match="expected cluster 'testing', member 2"):
        open_store(old, member_id=2)
    assert format_of(old) == 3


def test_a_store_of_this_format_without_the_table_is_refused(old: Path) -> None:
    with open_readonly(old) as store:
        identity = attrs.evolve(store.identity, format_version=4)
    tamper(old, b"meta", IDENTITY_KEY, encode_identity(identity))
    for opened in (open_store, open_readonly):
        with pytest.raises(StoreMismatchError, match="of other tables"):
            opened(old)
