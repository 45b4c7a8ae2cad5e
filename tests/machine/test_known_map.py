"""The newest map of a machine: it never goes back."""

from pathlib import Path

import msgspec
import pytest

from quorate.errors import ConfigurationError, RemovedError
from quorate.keyvalue.slots.cluster_map import ClusterMap, Machine, encode_map
from quorate.keyvalue.slots.folder import MAP_FILE
from quorate.machine.map_watch import KnownMap
from quorate.partitions.balance import first_map

FIRST = first_map("orders", [Machine(0, "127.0.0.1", 7000, 17000)], 2, 1)


def at(epoch: int) -> ClusterMap:
    return msgspec.structs.replace(FIRST, epoch=epoch)


def test_a_map_of_an_older_epoch_is_dropped(tmp_path: Path) -> None:
    known = KnownMap(tmp_path, "orders", 0)
    assert known.newest is None
    taken = [known.offer(encode_map(at(epoch))) for epoch in (3, 2, 3, 5, 4)]
    assert taken == [True, False, False, True, False]
    assert known.newest == at(5)
    assert (tmp_path / MAP_FILE).read_bytes() == encode_map(at(5))


def test_the_map_outlives_the_supervisor(tmp_path: Path) -> None:
    KnownMap(tmp_path, "orders", 0).offer(encode_map(at(5)))
    again = KnownMap(tmp_path, "orders", 0)
    assert again.newest == at(5)
    assert not again.offer(encode_map(at(4)))
    assert (tmp_path / MAP_FILE).read_bytes() == encode_map(at(5))


def test_a_damaged_file_is_replaced_by_the_next_map(tmp_path: Path) -> None:
    (tmp_path / MAP_FILE).write_bytes(encode_map(at(5))[:-9])
    known = KnownMap(tmp_path, "orders", 0)
    assert known.newest is None
    assert known.offer(encode_map(at(4)))


def test_the_map_of_another_cluster_is_refused(tmp_path: Path) -> None:
    known = KnownMap(tmp_path, "billing", 0)
    with pytest.raises(ConfigurationError, match='it is of cluster "orders": expected that of "b'):
        known.offer(encode_map(at(1)))
    assert not (tmp_path / MAP_FILE).exists()
    (tmp_path / MAP_FILE).write_bytes(encode_map(at(1)))
    with pytest.raises(ConfigurationError, match="this folder belongs to another machine"):
        KnownMap(tmp_path, "billing", 0)


def test_a_machine_that_was_forgotten_hears_it_at_each_start(tmp_path: Path) -> None:
    """The map without the machine is not kept, so a restart is no way back."""
    both = [Machine(n, "127.0.0.1", 7000 + 100 * n, 17000 + 100 * n) for n in (0, 1)]
    there = msgspec.structs.replace(FIRST, epoch=5, machines=tuple(both))
    KnownMap(tmp_path, "orders", 1).offer(encode_map(there))
    for _ in range(2):
        known = KnownMap(tmp_path, "orders", 1)
        with pytest.raises(RemovedError, match='machine 1 was removed from cluster "orders" by ma'):
            known.offer(encode_map(at(6)))
        assert known.newest == there
    # A machine that has never been in a map is a new one.
    assert KnownMap(tmp_path / "new", "orders", 2).newest is None
    (tmp_path / "new").mkdir()
    new = KnownMap(tmp_path / "new", "orders", 2)
    assert new.offer(encode_map(at(5)))
    assert new.offer(encode_map(at(6)))
