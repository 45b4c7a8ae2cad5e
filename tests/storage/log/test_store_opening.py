"""Opening a store: whose it is, what is refused, what an interrupted making left."""

import os
from pathlib import Path

import pytest

from quorate.errors import ConfigurationError, StorageError, StoreBusyError, StoreMismatchError
from quorate.storage import Identity, NodeState
from quorate.storage.rows.identity import IDENTITY_KEY, encode_identity
from tests.support.storage_world import open_store, tamper


def test_a_new_store_is_empty_and_has_an_identity_of_its_own(tmp_path: Path) -> None:
    stores = [open_store(tmp_path / "deep" / name, seed=seed) for seed, name in enumerate("ab")]
    for store in stores:
        assert (store.start_position, store.append_position, store.submitted_position) == (0, 0, 0)
        assert (store.terms, store.log_term, store.snapshots) == ((), -1, ())
        assert store.node_state == NodeState(-1, -1)
        assert (store.last_commit_position, store.last_timestamp_ms) == (0, 0)
        store.close()
        store.close()
    assert stores[0].identity.instance_id != stores[1].identity.instance_id
    again = open_store(tmp_path / "deep" / "a", seed=99)
    assert again.identity == stores[0].identity
    again.close()


@pytest.mark.parametrize(
    ("cluster", "member_id", "words"),
    [
        ("other", 1, "store of cluster 'testing', member 1; expected cluster 'other', member 1"),
        (
            "testing",
            2,
            "store of cluster 'testing', member 1; expected cluster 'testing', member 2",
        ),
    ],
)
def test_a_store_of_another_is_refused(
    tmp_path: Path, cluster: str, member_id: int, words: str
) -> None:
    open_store(tmp_path).close()
    with pytest.raises(StoreMismatchError, match=words):
        open_store(tmp_path, cluster=cluster, member_id=member_id)
    open_store(tmp_path).close()


def test_a_store_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    newer = encode_identity(Identity("testing", 1, 5, format_version=5))
    tamper(tmp_path, b"meta", IDENTITY_KEY, newer)
    with pytest.raises(StoreMismatchError, match="store of format 5, expected 3 or 4"):
        open_store(tmp_path)


def test_a_damaged_identity_is_refused(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    tamper(tmp_path, b"meta", IDENTITY_KEY, b"testing")
    with pytest.raises(StoreMismatchError, match="its checksum differs, expected a store"):
        open_store(tmp_path)


def test_a_store_is_opened_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreBusyError, match=f"open in process {os.getpid()}"):
        open_store(tmp_path)
    store.close()
    open_store(tmp_path).close()


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(16384)])
def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(StoreMismatchError, match="expected a store of quorate"):
        open_store(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == content


def test_what_an_interrupted_making_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "data.mdb.new").write_bytes(b"half")
    (tmp_path / "data.mdb.new-lock").write_bytes(b"half")
    open_store(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.mdb", "lock", "lock.mdb"]


@pytest.mark.parametrize("cluster", ["", "x" * 257])
def test_a_cluster_name_has_1_to_256_bytes(tmp_path: Path, cluster: str) -> None:
    with pytest.raises(ConfigurationError, match="expected 1 to 256"):
        open_store(tmp_path, cluster=cluster)


def test_a_path_that_is_no_directory_is_an_error_of_storage(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        open_store(tmp_path / "file")
