"""What counts as damage of tables, and what becomes of the folder."""

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from quorate.errors import DamagedTablesError, StorageError, StoreBusyError, StoreMismatchError
from quorate.storage.rows.identity import IDENTITY_KEY, Identity, encode_identity
from quorate.storage.tables.damage import MARK, open_or_rebuild, report_damage
from quorate.storage.tables.disk import tables_position
from quorate.storage.tables.tables import Tables
from tests.support.storage_world import flipped, running, stored, tamper
from tests.support.tables_world import open_tables, record


async def make(directory: Path) -> None:
    async with running(open_tables(directory)) as tables:
        for i in range(20):
            tables.put(b"key:%d" % i, record(b"value"))
        tables.put(b"long" * 200, record(b"value", 50))
        tables.put_note(b"note", b"row")
        tables.advance(64, 5)
        await tables.flush()


def damaged_row(table: bytes, key: bytes) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        tamper(directory, table, key, flipped(stored(directory, table, key), 1))

    return damage


def first_of(table: bytes) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        with lmdb.open(str(directory), max_dbs=8) as raw:
            found = raw.open_db(table, create=False)
            with raw.begin() as txn:
                key = next(iter(txn.cursor(found)))[0]
        damaged_row(table, key)(directory)

    return damage


def cut_short(directory: Path) -> None:
    path = directory / "data.mdb"
    path.write_bytes(path.read_bytes()[: 3 * 4096])


def no_lmdb(directory: Path) -> None:
    (directory / "data.mdb").write_bytes(b"?" * 16384)


@pytest.mark.parametrize(
    "damage",
    [
        damaged_row(b"meta", b"applied"),
        damaged_row(b"meta", IDENTITY_KEY),
        first_of(b"deadlines"),
        first_of(b"notes"),
        cut_short,
        no_lmdb,
    ],
    ids=["applied", "identity", "deadline", "note", "cut short", "no LMDB"],
)
async def test_damage_at_the_opening_makes_room_for_new_tables(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    directory = tmp_path / "tables"
    await make(directory)
    damage(directory)
    with pytest.raises(DamagedTablesError):
        open_tables(directory)
    async with running(open_or_rebuild(directory, lambda: open_tables(directory))) as tables:
        assert (tables.position, len(tables)) == (0, 0)
    assert not directory.with_name("tables.damaged").exists()


@pytest.mark.parametrize("key", [b"key:7", b"long" * 200])
async def test_damage_that_is_met_later_is_noted_for_the_next_start(
    tmp_path: Path, key: bytes
) -> None:
    directory = tmp_path / "tables"
    await make(directory)
    if len(key) > 100:
        with lmdb.open(str(directory), max_dbs=8) as raw:
            records = raw.open_db(b"records", create=False)
            with raw.begin() as txn:
                stored_key = txn.cursor(records)
                assert stored_key.last()
                damaged_row(b"records", stored_key.key())
                where = stored_key.key()
    else:
        where = key
    damaged_row(b"records", where)(directory)
    async with running(open_tables(directory)) as tables:
        with pytest.raises(DamagedTablesError, match="damaged"):
            tables.get(key)
    assert (directory / MARK).exists()
    with pytest.raises(DamagedTablesError, match="were found damaged"):
        open_tables(directory)
    with pytest.raises(StorageError, match="were found damaged"):
        tables_position(directory)
    async with running(open_or_rebuild(directory, lambda: open_tables(directory))) as tables:
        assert (tables.position, tables.get(key)) == (0, None)


async def test_a_damaged_record_is_in_no_snapshot(tmp_path: Path) -> None:
    await make(tmp_path)
    damaged_row(b"records", b"key:7")(tmp_path)
    async with running(open_tables(tmp_path)) as tables:
        pieces = await tables.save()
        with pytest.raises(DamagedTablesError, match="key:7"):
            list(pieces)
    assert (tmp_path / MARK).exists()


async def test_what_is_no_damage_is_not_thrown_away(tmp_path: Path) -> None:
    directory = tmp_path / "tables"
    await make(directory)

    def other() -> Tables:
        return Tables.open(directory, cluster="another", member_id=1)

    with pytest.raises(StoreMismatchError, match="cluster 'test'"):
        open_or_rebuild(directory, other)
    async with running(open_tables(directory)) as tables:
        with pytest.raises(StoreBusyError):
            open_or_rebuild(directory, lambda: open_tables(directory))
        assert tables.position == 64
    newer = Identity("test", 1, 0, format_version=99)
    tamper(directory, b"meta", IDENTITY_KEY, encode_identity(newer))
    with pytest.raises(StoreMismatchError, match="format 99"):
        open_or_rebuild(directory, lambda: open_tables(directory))
    assert not directory.with_name("tables.damaged").exists()


async def test_damaged_tables_that_an_operator_has_moved_away_stay(tmp_path: Path) -> None:
    kept = tmp_path / "tables.damaged"
    await make(kept)
    async with running(
        open_or_rebuild(tmp_path / "tables", lambda: open_tables(tmp_path / "tables"))
    ):
        assert (kept / "data.mdb").exists()


@pytest.mark.parametrize("crash", ["data.mdb", "lock.mdb"])
async def test_a_crash_while_they_are_thrown_away_leaves_nothing_of_them(
    tmp_path: Path, crash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "tables"
    await make(directory)
    report_damage(directory, StorageError("damaged"))
    unlink = Path.unlink

    def die(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == crash:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            open_or_rebuild(directory, lambda: open_tables(directory))
    async with running(open_or_rebuild(directory, lambda: open_tables(directory))) as tables:
        assert (tables.position, len(tables)) == (0, 0)
    assert not (directory / MARK).exists()
