"""The machines of the cluster: supervisors with their members, and signals to these.

A fault hits a member by the process id in its folder. The id is used only while the process has
that folder in its command line, so that no other process is ever hit.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...keyvalue.slots.cluster_map import META
from ...keyvalue.slots.folder import folder_of, replace_file
from ...local.stores import has_store
from ...local.survey import survey
from ...machine.layout import lay_out_machines, supervisor_of
from ...machine.maps import MACHINE_FILE, newest_map
from ...machine.reach import addresses_of
from ...node.config.config import SnapshotPolicy

if TYPE_CHECKING:
    from ...keyvalue.slots.cluster_map import ClusterMap
    from ...local.child import ChildProcess
    from ...node.requests.status import MemberAddress

__all__ = ["MACHINES", "Machines"]

MACHINES: Final = 3

SNAPSHOTS: Final = SnapshotPolicy(interval_bytes=1 << 20, margin_bytes=1 << 40)
"""Snapshots are taken often, but no log is pruned: all of it is checked in the end."""

_ENDED: Final = re.compile(r"has ended with status (-?\d+)|needs an operator")
_KILLED: Final = str(-signal.SIGKILL)


class Machines:
    """All machines of a cluster.

    Args:
        directory: of the cluster.
        partitions: number of partitions.
        client_port: the first port.

    Attributes:
        found: what was wrong with the ends of processes.
    """

    def __init__(self, directory: Path, partitions: int, client_port: int) -> None:
        made = lay_out_machines(
            directory, machines=MACHINES, partitions=partitions, client_port=client_port
        )
        self.configs = [attrs.evolve(each, snapshot=SNAPSHOTS) for each in made]
        for config in self.configs:
            replace_file(config.directory / MACHINE_FILE, config.to_toml().encode())
        self._supervisors = [supervisor_of(config) for config in self.configs]
        self._down = set[int]()
        self.found: list[str] = []

    @property
    def map(self) -> ClusterMap:
        """The newest map that some machine has seen."""
        return newest_map(self.configs)

    @property
    def groups(self) -> list[int]:
        """The numbers of all groups, `META` first."""
        return [META, *range(len(self.map.partitions))]

    def addresses(self, partition: int) -> list[MemberAddress]:
        """Return where the members of a group are."""
        return addresses_of(self.map, partition)

    def client_ports(self) -> list[int]:
        """Return the client ports of the first partition."""
        return [each.own.as_machine().client_port(0) for each in self.configs]

    def folders(self, partition: int) -> list[Path]:
        """Return the folders of the members of a group that have a log."""
        folders = [folder_of(each.directory, partition) for each in self.configs]
        return [folder for folder in folders if has_store(folder)]

    async def leader(self, partition: int) -> int | None:
        """Return the machine that leads a group, as far as that is known."""
        leader = (await survey(self.addresses(partition))).leader
        return None if leader is None else leader.member_id

    def is_down(self, machine: int) -> bool:
        """Whether a machine was killed, and not started again."""
        return machine in self._down

    async def start(self) -> None:
        """Start all machines.

        Raises:
            OSError: the system refuses it.
        """
        for child in self._supervisors:
            await child.start()

    def kill_machine(self, machine: int) -> None:
        """Kill a machine with all of its members."""
        self._down.add(machine)
        pid = self._supervisors[machine].pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    async def revive_machine(self, machine: int) -> None:
        """Start a machine that was killed.

        Raises:
            OSError: the system refuses it.
        """
        await self._supervisors[machine].wait()
        await self._supervisors[machine].start()
        self._down.discard(machine)

    def signal_machine(self, machine: int, number: signal.Signals) -> None:
        """Send a signal to a machine and all of its members."""
        pid = self._supervisors[machine].pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(pid, number)

    def signal_member(self, machine: int, partition: int, number: signal.Signals) -> bool:
        """Send a signal to a member; return whether it runs."""
        folder = folder_of(self.configs[machine].directory, partition)
        pid = _pid_untrusted(folder)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    async def stop(self) -> None:
        """Stop all machines in order, and note which did not end so."""
        async with trio.open_nursery() as nursery:
            for machine, child in enumerate(self._supervisors):
                nursery.start_soon(self._stop_one, machine, child)

    async def _stop_one(self, machine: int, child: ChildProcess) -> None:
        if child.pid is None and machine not in self._down:
            self.found.append(f"the supervisor of machine {machine} had ended by itself")
        await child.stop()
        if child.returncode != 0:
            self.found.append(f"the supervisor of machine {machine} ended with {child.returncode}")

    async def kill(self) -> None:
        """Kill what is left of all machines."""
        for machine in range(MACHINES):
            self.kill_machine(machine)

    def ends(self) -> list[str]:
        """Return which members have ended by themselves, by the lines of their supervisors."""
        found: Counter[str] = Counter()
        for config in self.configs:
            log = config.directory / "machine.log"
            for line in log.read_text("utf-8", "replace").splitlines():
                ended = _ENDED.search(line)
                if ended and ended[1] != _KILLED:
                    found[f"machine {config.machine_id}: {line[-120:]}"] += 1
        return [f"{line} ({count} times)" for line, count in found.items()][:10]


def _pid_untrusted(folder: Path) -> int | None:
    """Return the process id of the member of a folder; None if it does not run."""
    try:
        pid = int((folder / "pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if str(folder).encode() in words else None
