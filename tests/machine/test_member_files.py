"""The files that a machine writes for its members."""

from pathlib import Path

import attrs
import msgspec
import pytest

from quorate.errors import ConfigurationError
from quorate.keyvalue.slots.cluster_map import META, ClusterMap
from quorate.keyvalue.slots.folder import MAP_FILE
from quorate.machine.config import MachineConfig, MachineEntry
from quorate.machine.files import member_config, write_member
from quorate.machine.maps import map_of_file
from quorate.machine.reach import addresses_of
from quorate.node.config.config import Security, Web, load_config

MACHINES = tuple(MachineEntry(n, f"10.0.0.{n}", 7000, 17000) for n in range(4))
SECURITY = Security(cluster_key_file="/keys/cluster.key")


def machine(machine_id: int, tmp_path: Path, **changes: object) -> MachineConfig:
    config = MachineConfig("orders", machine_id, MACHINES, 4, tmp_path, security=SECURITY)
    return attrs.evolve(config, **changes)  # type: ignore[arg-type]


def with_replicas(cluster_map: ClusterMap, partition: int, replicas: tuple[int, ...]) -> ClusterMap:
    partitions = list(cluster_map.partitions)
    changed = msgspec.structs.replace(
        partitions[partition], replicas=replicas, preferred=replicas[0]
    )
    partitions[partition] = changed
    return msgspec.structs.replace(cluster_map, epoch=2, partitions=tuple(partitions))


def test_all_founders_of_a_group_have_the_same_members(tmp_path: Path) -> None:
    configs = [machine(n, tmp_path) for n in range(3)]
    first = map_of_file(configs[0])
    made = [member_config(each, map_of_file(each), 0) for each in configs]
    assert {each.members for each in made} == {made[0].members}
    assert [each.member_id for each in made[0].members] == list(first.partitions[0].founders)
    assert not any(each.join for each in made)


def test_a_file_has_the_names_and_ports_of_its_group(tmp_path: Path) -> None:
    config = machine(1, tmp_path, web=Web(9000))
    file = write_member(config, map_of_file(config), 0)
    assert file == tmp_path / "partition-0" / "node.toml"
    read = load_config(file)
    assert (read.cluster, read.member_id, read.directory) == ("orders.p0", 1, file.parent)
    assert (read.own.client_port, read.own.member_port, read.web.port) == (7001, 17001, 9001)
    assert read.partition.number == 0
    assert read.partition.folder is not None
    assert read.partition.folder.resolve() == tmp_path.resolve()
    assert read.security == SECURITY
    meta = member_config(config, map_of_file(config), META)
    assert (meta.cluster, meta.own.client_port, meta.web.port) == ("orders.meta", 7000, 9000)
    assert not meta.partition.is_one


def test_a_machine_that_did_not_found_a_partition_joins_it(tmp_path: Path) -> None:
    config = machine(3, tmp_path)
    moved = with_replicas(map_of_file(config), 0, (1, 2, 3))
    made = member_config(config, moved, 0)
    assert made.join
    assert [each.member_id for each in made.members] == [1, 2, 3]


def test_a_group_is_founded_once(tmp_path: Path) -> None:
    """Machines of founders that get new disks join the group, wherever it was in between."""
    first = map_of_file(machine(0, tmp_path))
    for n in (0, 1, 2):
        assert not member_config(machine(n, tmp_path), with_replicas(first, 0, (1, 2, 3)), 0).join
    there = msgspec.structs.replace(first.partitions[0], members=(1, 3))
    back = msgspec.structs.replace(first, epoch=4, partitions=(there, *first.partitions[1:]))
    for n in (0, 1, 2):
        made = member_config(machine(n, tmp_path), back, 0)
        assert made.join
        assert [each.member_id for each in made.members] == [0, 1, 2, 3]


def test_a_new_member_hears_of_the_members_that_are_there(tmp_path: Path) -> None:
    """All replicas are to be elsewhere: the group that has the data is in its file."""
    first = map_of_file(machine(0, tmp_path))
    moved = msgspec.structs.replace(
        first.partitions[0], members=first.partitions[0].replicas, replicas=(3,), preferred=3
    )
    after = msgspec.structs.replace(first, epoch=2, partitions=(moved, *first.partitions[1:]))
    made = member_config(machine(3, tmp_path), after, 0)
    assert made.join
    assert [each.member_id for each in made.members] == [0, 1, 2, 3]
    assert [each.member_id for each in addresses_of(after, 0)] == [3, 0, 1, 2]


def test_a_machine_that_joins_the_cluster_founds_nothing(tmp_path: Path) -> None:
    config = machine(3, tmp_path, join=True)
    assert member_config(config, map_of_file(machine(0, tmp_path)), META).join


def test_a_member_of_the_metadata_group_stays_a_founder_or_a_joiner(tmp_path: Path) -> None:
    founder, other = machine(0, tmp_path / "0"), machine(3, tmp_path / "3")
    first = map_of_file(founder)
    now = msgspec.structs.replace(first, epoch=2, metadata=(1, 2, 3))
    for each in (founder, other):
        write_member(each, first, META)
        for name in ("meta/log/data.mdb", MAP_FILE):
            (each.directory / name).parent.mkdir(exist_ok=True)
            (each.directory / name).touch()
    kept = member_config(founder, now, META)
    assert not kept.join
    assert [each.member_id for each in kept.members] == [0, 1, 2]
    # Of a group that is founded, all that come later are joiners, whatever their file says.
    (other.directory / "meta/log/data.mdb").unlink()
    assert member_config(other, now, META).join
    write_member(other, now, META)
    (other.directory / "meta/log/data.mdb").touch()
    assert member_config(other, now, META).join


def test_a_member_listens_where_the_file_of_its_machine_says(tmp_path: Path) -> None:
    config = machine(1, tmp_path)
    moved = [
        attrs.evolve(each, host="10.9.9.9") if each is MACHINES[1] else each for each in MACHINES
    ]
    made = member_config(attrs.evolve(config, machines=moved), map_of_file(config), 0)
    assert made.own.host == "10.9.9.9"


def test_a_founder_whose_address_is_unknown_is_named(tmp_path: Path) -> None:
    config = machine(1, tmp_path, machines=MACHINES[1:])
    first = map_of_file(machine(1, tmp_path))
    lost = msgspec.structs.replace(first, machines=first.machines[1:])
    with pytest.raises(ConfigurationError, match="machine 0: it founded a group, and neither"):
        member_config(config, lost, 0)


def test_a_founder_stays_in_the_files_of_the_others_after_it_was_forgotten(tmp_path: Path) -> None:
    config = machine(1, tmp_path)
    first = map_of_file(config)
    before = load_config(write_member(config, first, 0))
    (tmp_path / "partition-0/log").mkdir()
    (tmp_path / "partition-0/log/data.mdb").touch()
    without = attrs.evolve(config, machines=MACHINES[1:])
    lost = msgspec.structs.replace(first, machines=first.machines[1:])
    assert load_config(write_member(without, lost, 0)).members == before.members
