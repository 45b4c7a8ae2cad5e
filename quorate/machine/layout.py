"""A whole cluster with partitions on this machine, for trials and for crash tests.

A directory holds it. In it ``machine-<i>/`` is the folder of machine *i*, with ``machine.toml`` and
the folders of its members. All machines are at 127.0.0.1, and their ports are 100 apart. Each has a
supervisor, which is started again when it ends. The supervisor's log lines are in ``machine.log``
of its folder, and those of a member in ``member.log`` of its own.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from ..errors import ConfigurationError, UsageError
from ..keyvalue.slots.cluster_map import MOST_PARTITIONS
from ..keyvalue.slots.folder import replace_file
from ..local.child import ChildProcess
from ..local.cluster import HOST
from ..node.config.config import Security
from .config import MachineConfig, MachineEntry, load_machine
from .maps import MACHINE_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ..node.config.config import Profile

__all__ = ["LOG_FILE", "MOST_LOCAL", "lay_out_machines", "supervisor_of"]

LOG_FILE: Final = "machine.log"
"""Of a supervisor's log lines, in the folder of its machine."""

MOST_LOCAL: Final = 9
"""Machines that are tried out on this one."""

_APART: Final = 100
_MEMBER_PORT_OFFSET: Final = 10_000  # as Redis Cluster's bus port
_TLS_PORT_OFFSET: Final = 3000
_FIRST_OUTGOING_PORT: Final = 32_768


def lay_out_machines(
    directory: Path,
    *,
    machines: int,
    partitions: int,
    client_port: int,
    profile: Profile | None = None,
    cluster: str = "local",
    security: Callable[[int], Security] | None = None,
) -> list[MachineConfig]:
    """Write ``machine-<i>/machine.toml`` for each machine that has none; return all of them.

    Args:
        directory: of the cluster; created if it is missing.
        machines: number of machines; each partition has a member on each of three, if there are.
        partitions: number of partitions.
        client_port: first port of machine 0; machine *i* has it + 100 *i*.
        profile: how patient the members are; if left out, what existing files say, or "lan".
        cluster: name of a new cluster.
        security: returns the table [security] of a new machine. Its members listen for clients with
            TLS, too, on 3000 above the port of others.

    Raises:
        UsageError: a number is out of range.
        ConfigurationError: an existing file disagrees.
        OSError: the directory cannot be created.
    """
    _check_numbers(machines, partitions, client_port)
    entries = tuple(
        _entry(i, client_port + i * _APART, tls=security is not None) for i in range(machines)
    )
    usual = partial(
        MachineConfig,
        cluster,
        machines=entries,
        partitions=partitions,
        profile=profile or "lan",
    )
    made = [
        usual(
            machine_id=i,
            directory=directory / f"machine-{i}",
            security=Security() if security is None else security(i),
        )
        for i in range(machines)
    ]
    return [_one(config, profile) for config in made]


def _check_numbers(machines: int, partitions: int, client_port: int) -> None:
    if not 1 <= machines <= MOST_LOCAL:
        raise UsageError(f"--machines {machines}: expected 1 to {MOST_LOCAL}")
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise UsageError(f"--partitions {partitions}: expected 1 to {MOST_PARTITIONS}")
    last = _FIRST_OUTGOING_PORT - _MEMBER_PORT_OFFSET - machines * _APART
    if not 1 <= client_port <= last:
        raise UsageError(f"--client-port {client_port}: expected 1 to {last}")


def _entry(machine_id: int, port: int, *, tls: bool) -> MachineEntry:
    tls_port = port + _TLS_PORT_OFFSET if tls else 0
    return MachineEntry(machine_id, HOST, port, port + _MEMBER_PORT_OFFSET, tls_port=tls_port)


def supervisor_of(config: MachineConfig) -> ChildProcess:
    """Return what runs the supervisor of a machine that was laid out."""
    folder = config.directory
    child = ChildProcess(folder / MACHINE_FILE, folder / LOG_FILE)
    child.options = ("--own-logs",)
    return child


def _one(config: MachineConfig, profile: Profile | None) -> MachineConfig:
    """Write the file of a machine if there is none; return what it says.

    Raises:
        ConfigurationError: it says something else than was asked for.
        OSError: it cannot be written.
    """
    file = config.directory / MACHINE_FILE
    if not file.exists():
        replace_file(file, config.to_toml().encode())
    found = load_machine(file)
    if config.own.tls_port and not found.own.tls_port:
        raise ConfigurationError(
            f"{file}: it has no certificate: expected a cluster that was made with --tls; leave it "
            "out, or use another directory"
        )
    asked = {
        "machines": (_plain(config.machines), _plain(found.machines)),
        "partitions": (config.partitions, found.partitions),
        "profile": (profile or found.profile, found.profile),
    }
    for name, (wanted, there) in asked.items():
        if wanted != there:
            raise ConfigurationError(
                f"{file}: {name}: this cluster was made with other ones: ask for the same as "
                "before, or use another directory"
            )
    return found


def _plain(machines: Sequence[MachineEntry]) -> list[MachineEntry]:
    """Return machines without their ports for TLS, which a later call need not name."""
    return [attrs.evolve(each, tls_port=0) for each in machines]
