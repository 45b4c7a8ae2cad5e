"""A manifest says what a backup of all partitions holds, and new machines are made of it."""

from pathlib import Path

import msgspec
import pytest

from quorate.errors import ConfigurationError
from quorate.machine.config import MachineConfig, MachineEntry
from quorate.machine.manifest import (
    Manifest,
    check_place,
    read_manifest_untrusted,
    write_manifest,
)
from quorate.machine.maps import map_of_file
from quorate.machine.restored import new_map

MACHINES = tuple(MachineEntry(n, f"10.0.0.{n}", 7000, 17000) for n in range(3))


def manifest() -> Manifest:
    """Of a cluster whose slots have moved."""
    even = map_of_file(MachineConfig("orders", 0, MACHINES, 2))
    first, second = even.partitions
    parts = (
        msgspec.structs.replace(first, slots="0-99"),
        msgspec.structs.replace(second, slots="100-16383"),
    )
    now = msgspec.structs.replace(even, epoch=17, partitions=parts)
    return Manifest("orders", 17, True, 1, {0: 64, 1: 32}, now)


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    assert read_manifest_untrusted(tmp_path) == manifest()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"positions": {0: 64}}, "positions of partitions"),
        ({"positions": {0: 64, 1: -1}}, "positions of partitions"),
        ({"cluster": 7}, "expected one of quorate backup"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, change: object, words: str) -> None:
    write_manifest(tmp_path, msgspec.structs.replace(manifest(), **change))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=words):
        read_manifest_untrusted(tmp_path)


def test_a_backup_takes_no_folder_of_machines_and_stays_of_one_moment(tmp_path: Path) -> None:
    check_place(tmp_path / "not there yet", consistent=False)
    write_manifest(tmp_path, manifest())
    check_place(tmp_path, consistent=True)
    with pytest.raises(ConfigurationError, match="as of one moment"):
        check_place(tmp_path, consistent=False)
    write_manifest(tmp_path, msgspec.structs.replace(manifest(), consistent=False))
    check_place(tmp_path, consistent=False)
    for machine in (tmp_path / "machine-0", tmp_path):
        machine.mkdir(exist_ok=True)
        (machine / "machine.toml").touch()
        with pytest.raises(ConfigurationError, match="has the files of machines"):
            check_place(tmp_path, consistent=True)
        (machine / "machine.toml").unlink()


def test_a_new_cluster_has_the_slots_of_the_backup_and_a_higher_epoch() -> None:
    config = MachineConfig("other", 0, MACHINES[:1], 2, replicas=1)
    made = new_map(config, manifest())
    assert made.cluster == "other"
    assert made.epoch == 18
    assert [each.slots for each in made.partitions] == ["0-99", "100-16383"]
    assert [each.replicas for each in made.partitions] == [(0,), (0,)]
