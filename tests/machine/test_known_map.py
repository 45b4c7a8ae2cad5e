"""The newest map of a machine: it never goes back."""

from pathlib import Path

import msgspec
import pytest

from quorate.errors import ConfigurationError
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
