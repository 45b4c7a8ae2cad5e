"""Faults of disks: slowness, stalls, errors, fullness, and rot.

What the cluster must survive, and what it may refuse:

- Slowness and stalls, of any number of disks: survived. A leader whose disk stands still steps
  down.
- A failed or a refused write: the member stops with an error. Nothing that was acknowledged is
  lost, whether the bytes of the failed write are there after a restart or not. The cluster serves
  as long as a quorum of disks works. A member that starts on a full disk may stop again.
- Little room, but still the reserve: survived. Such a member takes and installs no snapshots.
- Rot in recorded batches, on a minority of the disks: nothing that was acknowledged is lost. A
  member that reads a rotten batch repairs it from another member or stops; it never sends it. A
  member with a rotten end of its log votes only for candidates whose log reaches that far. The
  intact members are a quorum and must serve without it. Its disk is replaced in the end.
- Rot on a majority of the disks may lose data; it is not injected here.
- A lost disk (replaced by an empty one), at any time: survived as long as the members whose store
  has no vote yet, or is rotten, are a minority. The other members must admit it
  (:mod:`quorate.node.membership.admission`) before it counts again. Beyond a minority, too few
  voters may be left for a quorum, for good; that is not injected here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import DamagedRecordError, StorageError, StoreFullError
from ..machines.disk import PLENTY, rot
from .processes import revive_later

if TYPE_CHECKING:
    from .context import FaultContext


class SimulatedDiskError(StorageError):
    """The simulated disk fails a read or a write."""


class SimulatedFullError(StoreFullError):
    """The simulated disk is full."""


def expected(n: FaultContext, member: int, failure: BaseException) -> bool:
    """Return whether a member may fail with this error because of its disk's faults."""
    if isinstance(failure, DamagedRecordError):
        return member in n.rotten
    return isinstance(failure, SimulatedDiskError | SimulatedFullError)


async def slow_disk(n: FaultContext) -> None:
    """Make a disk slow for a while."""
    disk, usual = n.world.hosts[n.anyone()].disk, n.world.setting.fsync
    disk.latency = n.rng.choice((0.04, 0.2, 0.6, 1.4)) * n.unit
    n.later(n.a_while(), lambda: setattr(disk, "latency", usual))


async def stall_disk(n: FaultContext) -> None:
    """Have a disk complete nothing for a while, perhaps for longer than anybody waits."""
    n.world.hosts[n.anyone()].disk.stall(n.unit * n.rng.choice((0.5, 2.0, 6.0)) * n.rng.random())


async def fail_disk(n: FaultContext) -> None:
    """Have the next write of a member fail; perhaps it is on the disk all the same."""
    disk = n.world.hosts[n.anyone()].disk
    disk.errors.append((SimulatedDiskError("input/output error"), n.rng.random() < 0.5))


async def fill_disk(n: FaultContext) -> None:
    """Have a disk be full for a while."""
    disk = n.world.hosts[n.anyone()].disk
    disk.full = SimulatedFullError("no space left on device")
    n.later(n.a_while(), disk.mend)


async def crowd_disk(n: FaultContext) -> None:
    """Leave so little room for a while that a member serves, but writes no snapshot."""
    host = n.world.hosts[n.anyone()]
    host.disk.room = host.config.limits.reserve_bytes * 3 // 2
    n.later(n.a_while(), lambda: setattr(host.disk, "room", PLENTY))


async def rot_disk(n: FaultContext) -> None:
    """Flip a bit in a batch that a member has recorded, if a minority only is rotten then."""
    bad = n.without_good_stores()
    full = bad and not any(n.may_spoil(i) for i in n.ids if i not in bad)
    member = n.rng.choice(bad) if full else n.anyone()
    if member not in bad and (n.orders or not n.may_spoil(member)):
        return  # also while an order may take a vote from another member
    latest = n.observer.known.latest
    if latest.version and not latest.has_vote(member):
        return  # it may get a vote, since nobody sees the damage
    batches = n.observer.known.disks[member].batches
    host = n.world.hosts[member]
    if not batches or (host.member is None and host.starts == 0):
        return
    found = n.find_batch(member, n.rng.choice(batches[-50:]))
    if found is not None and rot(host.config.directory / "log", found, n.rng):
        n.world.trace.tell("fault", member, what="a bit of its log flips", targets=[member])
        if member not in n.rotten:
            n.rotten.append(member)


async def lose_disk(n: FaultContext) -> None:
    """Replace a disk by an empty one, if a minority only is without a good store then."""
    member = n.anyone()
    host = n.world.hosts[member]
    if host.member is None and not host.stopped:
        return  # it is just starting or ending
    if not n.may_spoil(member):
        return
    await n.world.kill(member)
    if not host.stopped:
        return  # it was started again already
    n.world.replace_disk(member)
    if member in n.rotten:
        n.rotten.remove(member)
    revive_later(n, [member])
