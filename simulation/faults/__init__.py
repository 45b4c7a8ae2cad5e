"""Faults that the nemesis injects. Each file says which of its faults the cluster must survive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from . import clocks, disks, members, network, processes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .context import FaultContext

    Fault: TypeAlias = Callable[[FaultContext], Awaitable[None]]
    Strike: TypeAlias = Callable[[FaultContext, int], None]

__all__ = ["BETWEEN_MEMBERS", "FAULTS", "STRIKES", "Fault", "Strike"]

FAULTS: Final[dict[str, Fault]] = {
    "kill": processes.kill,
    "cut power": processes.cut_power,
    "crash at some step": processes.crash_at_some_step,
    "revive": processes.revive,
    "stop": processes.stop,
    "transfer": processes.transfer,
    "snapshot": processes.snapshot,
    "pause": processes.pause,
    "cut": network.cut,
    "isolate": network.isolate,
    "strand": network.strand,
    "partition": network.partition,
    "mend": network.mend,
    "clog": network.clog,
    "swizzle": network.swizzle,
    "slow link": network.slow_link,
    "reset": network.reset,
    "half break": network.half_break,
    "refuse": network.refuse,
    "disconnect": network.disconnect,
    "slow disk": disks.slow_disk,
    "stall disk": disks.stall_disk,
    "fail disk": disks.fail_disk,
    "fill disk": disks.fill_disk,
    "crowd disk": disks.crowd_disk,
    "rot disk": disks.rot_disk,
    "lose disk": disks.lose_disk,
    "set clock": clocks.set_clock,
    "members": members.members,
}
"""What may be done at any time."""

BETWEEN_MEMBERS: Final = frozenset(
    name for name, fault in FAULTS.items() if fault.__module__ == network.__name__
)
"""Those that need two members: a cluster may have shrunk to one."""


def _crash_soon(n: FaultContext, victim: int) -> None:
    processes.crash_soon(n, victim, n.rng.choice((0, 1, 3, 10, 30, 100)))


STRIKES: Final[dict[str, Strike]] = {
    "crash": _crash_soon,
    "isolate": network.isolate_it,
    "reset": network.reset_it,
    "pause": processes.pause_for_a_while,
}
"""What may be done to a member at the very moment when it enters a state."""
