"""The machines of a torture: where members run, and the processes that come and go on them.

A machine has at most one member at a time, and several sets of ports, so that a member can move
without another machine. With partitions each machine is a network namespace of its own; otherwise
all are on this host, with different ports. A member keeps its directory, ``member-<id>``, for good;
a machine whose member was removed takes another member with another directory, perhaps on the same
ports.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import attrs

from ..local.cluster import (
    HOST,
    MemberProcess,
    free_client_port,
    lay_out,
    ports_for,
    tls_ports_for,
)
from ..local.member_list import Listed, joiner_file
from ..node.config.config import NodeConfig, Security, load_config
from ..node.config.etcd import Etcd

__all__ = ["CLUSTER", "Machines", "Place"]

CLUSTER: Final = "torture"

_SETS: Final = 3
"""Sets of ports of each machine. If smaller, a member could not move and a removed one start at the
same time. If larger, the ports of a removed member are hardly ever used again by another one."""


@attrs.frozen
class Place:
    """Where a member listens.

    Args:
        machine: number of the machine.
        host: of the machine.
        client_port: for clients.
        member_port: for members.
        redirect_port: for cluster clients.
        etcd_port: for clients of etcd.
    """

    machine: int
    host: str
    client_port: int
    member_port: int
    redirect_port: int
    etcd_port: int

    @property
    def words(self) -> tuple[str, ...]:
        """The words of an order that gives a member this address."""
        return (
            f"host={self.host}",
            f"member_port={self.member_port}",
            f"client_port={self.client_port}",
            f"redirect_port={self.redirect_port}",
        )


class Machines:
    """Places for members, and the processes of the members on them.

    Args:
        directory: of all members.
        count: number of machines.
        hosts: of each machine; this host if left out.
        prepare: called with each new process, and the number of its machine.
        security: of every member's file, with paths relative to its directory.
        equip: writes what a member proves itself by, into the directory of the member with that id.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        hosts: Sequence[str] = (),
        prepare: Callable[[MemberProcess, int], None] = lambda _process, _machine: None,
        security: Security | None = None,
        equip: Callable[[Path, int], None] = lambda _directory, _member_id: None,
    ) -> None:
        self.count = count
        self._directory = directory
        self._hosts = hosts or [HOST] * count
        # The machines are network namespaces of this one, which nobody else reaches.
        self._security = attrs.evolve(security or Security(), insecure_network=bool(hosts))
        self._prepare = prepare
        self._equip = equip
        self._client_port = free_client_port(_SETS * count)
        # The first of these are those of the founders: see `lay_out`.
        ports = ports_for(_SETS * count, self._client_port)
        # No member listens for clients with TLS.
        etcd_ports = tls_ports_for(_SETS * count, self._client_port)
        self._places = [
            Place(i % count, self._hosts[i % count], *triple, etcd_ports[i])
            for i, triple in enumerate(ports)
        ]

    def founders(self, members: int) -> list[NodeConfig]:
        """Write the files of the first members, one on each machine."""
        configs = lay_out(
            self._directory,
            members=members,
            client_port=self._client_port,
            cluster=CLUSTER,
            hosts=self._hosts,
            security=self._security,
            etcd_port=self._places[0].etcd_port,
        )
        for config in configs:
            self._equip(config.directory, config.member_id)
        return configs

    def prepare(self, process: MemberProcess) -> None:
        """Prepare a process for its machine, before its first start."""
        self._prepare(process, self.of(process).machine)

    def of(self, process: MemberProcess) -> Place:
        """Return where a process listens, by its file."""
        own = process.config.own
        return self.find(own.host, own.client_port)

    def find(self, host: str, client_port: int) -> Place:
        """Return the place with an address."""
        return next(
            each for each in self._places if (each.host, each.client_port) == (host, client_port)
        )

    def choose(self, rng: random.Random, taken: Sequence[MemberProcess]) -> Place | None:
        """Return a place on a machine without a member; None if there is none."""
        busy = {self.of(process).machine for process in taken}
        return self._one_of(rng, [each for each in self._places if each.machine not in busy])

    def neighbour(self, rng: random.Random, process: MemberProcess) -> Place | None:
        """Return another place on the machine of a process; None if there is none."""
        # No file may have an address twice, and its other entries may have any of former members.
        filed = {(each.host, each.client_port) for each in process.config.members}
        machine = self.of(process).machine
        others = [
            each
            for each in self._places
            if each.machine == machine and (each.host, each.client_port) not in filed
        ]
        return self._one_of(rng, others)

    def _one_of(self, rng: random.Random, places: list[Place]) -> Place | None:
        return rng.choice(places) if places else None

    def join(self, listed: Listed, member_id: int) -> MemberProcess:
        """Write the file of a member that has a seat, and return its process, not started yet."""
        directory = self._directory / f"member-{member_id}"
        directory.mkdir(mode=0o700)
        process = MemberProcess(self._joiner(listed, member_id))
        self.prepare(process)
        return process

    def wipe(self, process: MemberProcess, listed: Listed) -> None:
        """Give a member an empty disk, and a file with which its new store begins without a vote.

        The old one is kept, so that one can look at it.
        """
        directory, member = process.config.directory, process.member_id
        lost = directory.with_name(f"lost-{member}-{listed.version}")
        lost.mkdir()
        for each in sorted(directory.iterdir()):
            if each != process.log and each.name != "pid":
                each.rename(lost / each.name)
        process.config = self._joiner(listed, member)

    def _joiner(self, listed: Listed, member_id: int) -> NodeConfig:
        """Write and return the file of a member whose new store begins without a vote."""
        directory = self._directory / f"member-{member_id}"
        file = directory / "node.toml"
        text = joiner_file(CLUSTER, listed, member_id, Path(), self._security)
        file.write_text(text, encoding="utf-8")
        self._equip(directory, member_id)
        config = load_config(file)
        if not config.own.witness:
            place = self.find(config.own.host, config.own.client_port)
            etcd = attrs.evolve(config, directory=Path(), etcd=Etcd(place.etcd_port))
            file.write_text(etcd.to_toml(), encoding="utf-8")
        return load_config(file)

    def move(self, process: MemberProcess, place: Place) -> None:
        """Change where a process listens from its next start on."""
        file = process.config.directory / "node.toml"
        config = load_config(file)
        own = attrs.evolve(
            config.own,
            host=place.host,
            member_port=place.member_port,
            client_port=place.client_port,
            redirect_port=place.redirect_port,
        )
        members = tuple(own if each is config.own else each for each in config.members)
        etcd = Etcd(0 if own.witness else place.etcd_port)
        moved = attrs.evolve(config, directory=Path(), members=members, etcd=etcd)
        file.write_text(moved.to_toml(), encoding="utf-8")
        process.config = load_config(file)
