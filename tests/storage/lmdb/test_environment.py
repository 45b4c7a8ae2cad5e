"""The environment under the store: its map and its lock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from quorate.storage.lmdb.environment import Environment, content_of

if TYPE_CHECKING:
    from pathlib import Path

    import lmdb

    from quorate.storage.lmdb.environment import Transaction

VALUE = bytes(1 << 20)


def make(raw: lmdb.Environment) -> None:
    raw.open_db(b"things")


def put(txn: Transaction) -> None:
    txn.put(b"key", VALUE)


def get(txn: Transaction) -> bytes | None:
    return txn.get(b"key")


def test_the_map_does_not_grow_under_a_reader(tmp_path: Path) -> None:
    environment = Environment.open(tmp_path, max_dbs=1, initialise=make, map_bytes=1 << 16)
    writer = threading.Thread(target=environment.write, args=(put,), daemon=True)

    def look(txn: Transaction) -> bytes | None:
        writer.start()
        writer.join(0.05)
        assert writer.is_alive()
        return get(txn)

    assert environment.read(look) is None
    writer.join(5)
    assert environment.read(get) == VALUE
    environment.close()


def test_a_volume_that_holds_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert content_of(tmp_path) == []
    (tmp_path / "photo").touch()
    assert content_of(tmp_path) == [tmp_path / "photo"]
