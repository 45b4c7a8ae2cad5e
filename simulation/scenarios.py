"""Scenarios: the faults, the settings of the members, and the settings of the environment."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import attrs

from ..node import Timeouts
from ..node.config.config import SnapshotPolicy
from .faults import FAULTS, STRIKES
from .machines.clock import Clock, draw_clock
from .world import TIMEOUTS, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping


@attrs.frozen
class Scenario:
    """A kind of run.

    Args:
        words: a description.
        faults: relative probability of each fault of `faults.FAULTS`.
        clocks: whether the members' clocks are wrong, and run at different rates.
        wipes: probability that a disk is replaced between two storms.
        snapshots: probability of constant snapshots, which leave hardly any log.
        spares: probability that a spare takes the place of a voter that is silent.
        users: clients have users, whose rules change, and talk to the members' ports.
        programs: clients are programs that use recipes, and have troubles of their own.
        partitions: there are several groups, and slots of keys move between them.
        etcd: clients also use etcd's keyspace; in every second run all clocks are right.
    """

    words: str
    faults: Mapping[str, float]
    clocks: bool = False
    wipes: float = 0.0
    snapshots: float = 0.0
    standbys: int = 0
    witnesses: int = 0
    spares: float = 0.0
    users: bool = False
    programs: bool = False
    partitions: bool = False
    etcd: bool = False

    def of(self, seed: int) -> Scenario:
        """Return the scenario of a run, if not all are alike."""
        if not self.etcd or seed % 2:
            return self
        # Only where all clocks are right, a lease's time can be judged by that of its client.
        faults = {name: weight for name, weight in self.faults.items() if name != "set clock"}
        return attrs.evolve(self, faults=faults, clocks=False)

    def setting(self, seed: int, members: int, rng: Random, seconds: float) -> Setting:
        """Draw the settings of a world, for a run of at least this many seconds."""
        paces = {
            each: weight
            for each, weight in PACES.items()
            if LEAST_TIMEOUTS * each.leader_heartbeat_timeout <= seconds
        } or {TIMEOUTS: 1.0}
        timeouts = _perhaps_leased(rng.choices(list(paces), list(paces.values()))[0], seed)
        timeouts = _perhaps_replacing(timeouts, seed, self.spares)
        unit = timeouts.election_timeout  # an operator would choose timeouts that suit the network,
        # too
        return Setting(
            members=members + self.standbys,
            standbys=self.standbys,
            witnesses=self.witnesses,
            seed=seed,
            timeouts=timeouts,
            latency=unit * rng.choice((0.002, 0.02, 0.08)),
            jitter=unit * rng.choice((0.0, 0.004, 0.04)),
            fsync=unit * rng.choice((0.004, 0.04)),
            fsync_jitter=unit * rng.choice((0.0, 0.01)),
            snapshot=_pruning(seed) if rng.random() < self.snapshots else SnapshotPolicy(),
            founded=rng.random() < FOUNDED,
            contain=True,
        )

    def clock(self, rng: Random) -> Clock:
        """Draw a member's clock."""
        clock = draw_clock(rng) if self.clocks else Clock()
        if self.partitions:
            # Groups whose log times are hours apart refuse to move slots.
            return Clock(clock.rate, clock.offset_ms % 100)
        return clock


def _perhaps_leased(timeouts: Timeouts, seed: int) -> Timeouts:
    """Draw the leaders' leases, if any, from a separate generator."""
    rng = Random(f"{seed}/lease")
    if rng.random() >= LEASED:
        return timeouts
    lease = timeouts.leader_heartbeat_timeout * rng.choice((0.3, 0.7, 1.0))
    return attrs.evolve(timeouts, leader_lease=lease)


def _perhaps_replacing(timeouts: Timeouts, seed: int, spares: float) -> Timeouts:
    """Draw whether silent voters are replaced, from a separate generator."""
    rng = Random(f"{seed}/spares")
    if rng.random() >= spares:
        return timeouts
    # Hardly longer than the least that is allowed, so that it happens to voters that are only cut
    # off. Not the least, since each member's clock stretches the two by a rounded factor.
    return attrs.evolve(timeouts, replace_after=11 * timeouts.leader_heartbeat_timeout)


def _pruning(seed: int) -> SnapshotPolicy:
    """Draw how little log is kept, from a separate generator."""
    return Random(f"{seed}/pruning").choice((OFTEN, AT_ONCE))


def _slower(factor: float) -> Timeouts:
    return Timeouts(**{name: factor * value for name, value in attrs.asdict(TIMEOUTS).items()})


PACES: Final[dict[Timeouts, float]] = {
    TIMEOUTS: 1,
    _slower(4): 2,
    _slower(20): 10,
    Timeouts.of("aeron"): 2,
}
"""The members' timeouts: for one building, longer ones, or Aeron's defaults; with their weights.

The cost of a run is proportional to its heartbeats, and so is what happens in it. An hour with
short timeouts costs as much as twenty hours with long ones. So long timeouts are drawn more often.
"""

LEAST_TIMEOUTS: Final = 25
"""A run must be at least this many heartbeat timeouts long; otherwise shorter timeouts are used."""

LEASED: Final = 0.4
"""Probability that a lease answers reads."""

FOUNDED: Final = 0.9
"""Probability that the cluster is already founded. Smaller: more runs are mostly spent founding one
in a storm. Larger: founding is tested less."""

OFTEN: Final = SnapshotPolicy(keep=2, interval_bytes=64 << 10, interval_entries=50, margin_bytes=0)

AT_ONCE: Final = attrs.evolve(OFTEN, keep=1, interval_entries=10)
"""A member that was away hardly ever finds its missing entries in the other members' logs."""

USUAL: Final[dict[str, float]] = {
    "kill": 2,
    "cut power": 2,
    "crash at some step": 3,
    "revive": 2,
    "stop": 0.5,
    "transfer": 0.5,
    "snapshot": 0.5,
    "pause": 2,
    "cut": 4,
    "isolate": 3,
    "strand": 0.5,
    "partition": 1,
    "mend": 1,
    "clog": 3,
    "swizzle": 0.5,
    "slow link": 1,
    "reset": 2,
    "half break": 1,
    "refuse": 0.5,
    "disconnect": 1,
    "slow disk": 2,
    "stall disk": 1,
    "fail disk": 0.5,
    "fill disk": 0.3,
    "crowd disk": 0.5,
    "rot disk": 0.1,
    "lose disk": 0.2,
    "set clock": 0.5,
}
"""All faults that are no changes of the membership, with weights that still let the cluster make
progress at times."""

CHANGES: Final = {"members": 6.0}
"""Operators change the membership, of which all other scenarios know nothing."""

PASSING: Final[dict[str, float]] = {
    "kill": 1,
    "crash at some step": 1,
    "revive": 6,
    "transfer": 1,
    "pause": 1,
    "isolate": 1,
    "partition": 0.5,
    "mend": 8,
    "clog": 1,
    "reset": 1,
    "slow disk": 1,
    "snapshot": 0.5,
    "isolate at a transition": 1,
}
"""Faults that leave a leader most of the time. With more of them hardly a lease begins, and with
wrong clocks a lease may end in log time before its owner can know."""

SEVERAL: Final[dict[str, float]] = PASSING | {
    "cut power": 1,
    "stop": 0.5,
    "stall disk": 0.3,
    "fail disk": 0.2,
    "lose disk": 0.1,
    "set clock": 0.3,
    "slow link": 0.5,
}
"""Faults of each of several groups. With more of them hardly a move between two groups ends."""

assert (USUAL | CHANGES).keys() == FAULTS.keys()

_STRIKES: Final = {f"{name} at a transition": 1.0 for name in STRIKES}


def _only(*names: str) -> dict[str, float]:
    return {name: (USUAL | _STRIKES)[name] for name in names}


SCENARIOS: Final[dict[str, Scenario]] = {
    "storm": Scenario(
        "every fault there is", USUAL | _STRIKES, clocks=True, wipes=0.2, snapshots=0.3
    ),
    "standby": Scenario(
        "every fault there is, and a standby, which has no vote",
        USUAL | _STRIKES,
        clocks=True,
        wipes=0.2,
        snapshots=0.3,
        standbys=1,
    ),
    "witness": Scenario(
        "every fault there is, and one of the voters has no tables",
        USUAL | _STRIKES,
        clocks=True,
        wipes=0.2,
        witnesses=1,
    ),
    "members": Scenario(
        "members are added, replaced, moved and removed, among every fault there is",
        USUAL | _STRIKES | CHANGES,
        clocks=True,
        wipes=0.2,
        snapshots=0.3,
        spares=0.5,
    ),
    "changes": Scenario(
        "members are added, replaced, moved and removed; they die, and come back",
        _only("kill", "revive", "crash at a transition", "isolate at a transition", "transfer")
        | CHANGES,
        snapshots=0.3,
        spares=0.5,
    ),
    "acl": Scenario(
        "users are changed and deleted, among every fault there is but wrong clocks",
        {name: weight for name, weight in (USUAL | _STRIKES).items() if name != "set clock"},
        wipes=0.2,
        snapshots=0.3,
        users=True,
    ),
    "recipes": Scenario(
        "programs use recipes; they stand still, are cut off and die, and so do members",
        PASSING,
        snapshots=0.3,
        programs=True,
    ),
    "partitions": Scenario(
        "several groups, whose directors move slots, stand still and die, and so do members",
        SEVERAL,
        clocks=True,
        snapshots=0.3,
        partitions=True,
    ),
    "etcd": Scenario(
        "clients of etcd's keyspace, with leases and watches, among most faults there are",
        PASSING
        | {"cut power": 1, "stop": 0.5, "fail disk": 0.2, "lose disk": 0.1}
        | {"set clock": 0.5, "slow link": 0.5, "snapshot": 1, "crowd disk": 0.3},
        clocks=True,
        wipes=0.2,
        snapshots=0.5,
        etcd=True,
    ),
    "calm": Scenario("no fault at all: load, and what it costs", {}),
    "crashes": Scenario(
        "members die at any step, with and without their machines, and come back",
        _only("kill", "cut power", "crash at some step", "revive", "stop", "crash at a transition"),
    ),
    "network": Scenario(
        "cuts of all shapes, slowness, broken and half-broken connections",
        _only(
            "cut",
            "isolate",
            "partition",
            "mend",
            "clog",
            "swizzle",
            "slow link",
            "reset",
            "half break",
            "refuse",
            "disconnect",
            "isolate at a transition",
            "reset at a transition",
        ),
    ),
    "pauses": Scenario(
        "processes stand still for longer than anybody waits, and go on as if nothing had been",
        _only("pause", "pause at a transition", "clog", "kill", "revive", "transfer"),
        clocks=True,
    ),
    "disks": Scenario(
        "slow, stalled, failing, full, rotten and replaced disks",
        _only(
            "slow disk",
            "stall disk",
            "fail disk",
            "fill disk",
            "rot disk",
            "lose disk",
            "cut power",
            "revive",
        ),
        wipes=0.5,
    ),
    "snapshots": Scenario(
        "members die while snapshots are taken, sent and installed, and the log is pruned",
        _only(
            "kill",
            "cut power",
            "crash at some step",
            "revive",
            "isolate",
            "strand",
            "mend",
            "reset",
            "slow disk",
            "lose disk",
            "snapshot",
            "crowd disk",
            "crash at a transition",
        ),
        wipes=0.5,
        snapshots=1.0,
    ),
    "clocks": Scenario(
        "clocks that are wrong, run at different rates and are set, while leaders change",
        _only("set clock", "kill", "revive", "pause", "transfer"),
        clocks=True,
    ),
}
"""The scenarios by name, for `quorate simulate --scenario`."""
