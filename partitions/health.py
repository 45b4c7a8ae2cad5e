"""Leaders are where they are to be: at the preferred machines, and away from unhealthy ones.

What is seen
    Only what the leaders of the groups say: each knows its links to the other members, and itself.
    A machine is unhealthy if

    - an operator drains it,
    - most leaders with a member there do not hear it,
    - one of its leaders says that its disk is full or damaged,
    - its disk is far slower than those of the other machines.

    If no majority of the groups answers, it is perhaps we who are cut off, and nothing is done.

What is done
    One transfer at a time, to a member that the leader hears and that has nearly all of its log. A
    group elects by itself when its leader is lost; here only leaders that are there are moved.

No ping-pong
    What an operator wants is done at once. All else must be seen at several looks, one after the
    other. A machine that was unhealthy gets leaders only after `WELL_S` seconds without a fault,
    and twice as long after each relapse.
"""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias, cast

import attrs
import trio

from ..errors import QuorateError
from ..keyvalue.slots.cluster_map import META
from ..log_events import log_event
from .metadata import load
from .waits import Waits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..keyvalue.slots.cluster_map import ClusterMap
    from .groups import Groups

__all__ = ["Health", "Transfer", "choose_transfer", "faults", "lasting_faults", "watch_health"]

_log = logging.getLogger("quorate.partitions")

PERIOD_S: Final = 1.0

SICK_LOOKS: Final = 3
"""Looks at which a fault must be seen. Fewer, and a short disturbance moves leaders. More, and a
leader with a bad disk stays for longer."""

WELL_S: Final = 30.0
"""Seconds without a fault, before a machine gets leaders again. Shorter, and leaders go to and fro.
Longer, and the load is uneven for longer."""

MOST_DOUBLINGS: Final = 6

_STEADY_S: Final = 600.0
"""After so many seconds without a fault, earlier ones are forgotten."""

_ANSWER_S: Final = 2.0
_TRANSFER_S: Final = 30.0
_PAUSE_S: Final = 10.0
"""After a transfer that was refused, for its partition."""

_BEHIND_BYTES: Final = 1 << 20
"""How far a member's log may be behind, to get the leadership. The leader waits for the rest."""

_SLOW_TIMES: Final = 10
_SLOW_S: Final = 0.05
"""A disk is slow if 1 sync of 100 takes longer than this, and `_SLOW_TIMES` that of the others."""

Statuses: TypeAlias = "Mapping[int, Mapping[str, Any]]"
"""By partition, `META` among them: the leader's answer to QUORATE.STATUS. Those are left out that
do not answer."""

_Recent: TypeAlias = "Mapping[str, Mapping[str, Mapping[str, float] | None]]"


@attrs.frozen
class Transfer:
    """A leadership that should be elsewhere.

    Args:
        partition: whose; or `META`.
        machine: where it should go.
        why: in words.
    """

    partition: int
    machine: int
    why: str


# --- judgements


def faults(cluster_map: ClusterMap, statuses: Statuses) -> dict[int, str] | None:
    """Return what is wrong with each unhealthy machine; None if too few groups answer."""
    if 2 * len(statuses) <= len(cluster_map.partitions) + 1:
        return None
    found: dict[int, str] = {}
    slow = _slow_disks(statuses)
    for machine in (each.machine_id for each in cluster_map.machines):
        heard = Counter(
            _hears(status, machine)
            for partition, status in statuses.items()
            # One that is to get a member has perhaps none yet that could be heard.
            if machine in cluster_map.present_in(partition)
        )
        own = [each for each in statuses.values() if each["member_id"] == machine]
        if heard[False] > heard[True]:
            found[machine] = "it does not answer"
        elif any(each.get("disk_full") for each in own):
            found[machine] = "its disk is full"
        elif any(each.get("damage") for each in own):
            found[machine] = "its disk has damaged something"
        elif machine in slow:
            found[machine] = f"its disk takes {slow[machine]:.2f} s for a sync"
    return found


def _peer(status: Mapping[str, Any], machine: int) -> Mapping[str, Any] | None:
    return next((each for each in status["peers"] if each["member_id"] == machine), None)


def _hears(status: Mapping[str, Any], machine: int) -> bool:
    """Whether a leader hears a machine's member, or is that."""
    peer = _peer(status, machine)
    return status["member_id"] == machine or (peer is not None and peer["connected"])


def _slow_disks(statuses: Statuses) -> dict[int, float]:
    """Return how long syncs of the slow machines take, as far as their leaders say it."""
    syncs: dict[int, float] = {}
    for status in statuses.values():
        # It is there if it was asked for, and something was written.
        recent = cast("_Recent", status.get("recent") or {})
        sync = recent.get("quantiles", {}).get("sync")
        if sync is not None:
            machine = status["member_id"]
            syncs[machine] = max(syncs.get(machine, 0.0), sync["p99"])
    slow: dict[int, float] = {}
    for machine, seconds in syncs.items():
        others = [each for one, each in syncs.items() if one != machine]
        if others and seconds > max(_SLOW_S, _SLOW_TIMES * statistics.median(others)):
            slow[machine] = seconds
    return slow


def choose_transfer(
    cluster_map: ClusterMap,
    statuses: Statuses,
    *,
    avoided: Mapping[int, str],
    resting: frozenset[int],
    paused: frozenset[int] = frozenset(),
) -> Transfer | None:
    """Return the next leadership that should be elsewhere; None if all are where they should be.

    Args:
        cluster_map: the newest map.
        statuses: of the leaders.
        avoided: machines that should lead nothing, and why.
        resting: machines that get nothing yet, but keep what they have.
        paused: partitions that are left alone for now.
    """
    leads = Counter(status["member_id"] for status in statuses.values())
    home: Transfer | None = None
    for partition, status in sorted(statuses.items()):
        leader = status["member_id"]
        fit = [
            machine
            for machine in cluster_map.replicas_of(partition)
            if not (machine in avoided or machine in resting or partition in paused)
            and _is_steady(status, machine)
        ]
        preferred = None if partition == META else cluster_map.partitions[partition].preferred
        if fit and leader in avoided:
            best = min(fit, key=lambda each: (each != preferred, leads[each], each))
            return Transfer(partition, best, f"machine {leader}: {avoided[leader]}")
        if preferred is not None and preferred in fit and home is None:
            home = Transfer(partition, preferred, "it is the preferred one")
    return home


def _is_steady(status: Mapping[str, Any], machine: int) -> bool:
    """Whether a leader hears a member, which has nearly all of its log."""
    peer = _peer(status, machine)
    return (
        peer is not None
        and peer["connected"]
        and peer["append_position"] >= status["append_position"] - _BEHIND_BYTES
    )


# --- over time


@attrs.define
class _Course:
    """What was seen of one machine.

    Args:
        looks: at how many looks, one after the other, it had a fault.
        well_at: since when it has had none; None if it never had one that counted.
        relapses: how often it fell ill after it was well.
    """

    looks: int = 0
    well_at: float | None = None
    relapses: int = -1

    def see(self, now: float, *, fault: bool) -> None:
        """Note what was seen."""
        if not fault:
            if self.looks >= SICK_LOOKS:
                self.well_at = now
            self.looks = 0
            if self.well_at is not None and now - self.well_at > max(_STEADY_S, self.rest_s()):
                self.well_at, self.relapses = None, -1
            return
        self.looks += 1
        if self.looks == SICK_LOOKS:
            self.relapses += 1

    def rest_s(self) -> float:
        """Return for how long it rests after its last fault."""
        return WELL_S * (1 << min(max(self.relapses, 0), MOST_DOUBLINGS))


class Health:
    """Which machines are well, over time."""

    def __init__(self) -> None:
        self._courses: dict[int, _Course] = {}

    def see(self, now: float, seen: Mapping[int, str], machines: frozenset[int]) -> None:
        """Note the faults of one look.

        Args:
            now: seconds.
            seen: of the machines with a fault.
            machines: all of them.
        """
        self._courses = {each: self._courses.get(each, _Course()) for each in machines}
        for machine, course in self._courses.items():
            course.see(now, fault=machine in seen)

    def sick(self) -> frozenset[int]:
        """Return the machines with a fault that counts."""
        return frozenset(
            each for each, course in self._courses.items() if course.looks >= SICK_LOOKS
        )

    def resting(self, now: float) -> frozenset[int]:
        """Return the machines that get no leaders: they have a fault, or had one shortly ago."""
        return frozenset(
            machine
            for machine, each in self._courses.items()
            if each.looks or (each.well_at is not None and now - each.well_at < each.rest_s())
        )


async def _ask(groups: Groups, cluster_map: ClusterMap) -> dict[int, Mapping[str, Any]]:
    """Ask all leaders how they are."""
    found: dict[int, Mapping[str, Any]] = {}

    async def ask(partition: int) -> None:
        with trio.move_on_after(_ANSWER_S):
            try:
                found[partition] = await groups.group(partition).status()
            except QuorateError:
                return

    async with trio.open_nursery() as nursery:
        for partition in range(META, len(cluster_map.partitions)):
            nursery.start_soon(ask, partition)
    return found


async def lasting_faults(groups: Groups, cluster_map: ClusterMap) -> dict[int, str] | None:
    """Look several times; return the machines that have a fault each time, and the last one.

    Returns:
        None if too few groups answer.
    """
    lasting: dict[int, str] | None = None
    for look in range(SICK_LOOKS):
        if look:
            await trio.sleep(PERIOD_S)
        found = faults(cluster_map, await _ask(groups, cluster_map))
        if found is None:
            return None
        lasting = {each: found[each] for each in found if lasting is None or each in lasting}
        if not lasting:
            break
    return lasting


class _Watch:
    """Looks at all groups from time to time, and transfers leaderships."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._health = Health()
        self._paused_until: dict[int, float] = {}

    async def look(self) -> None:
        """Look once; do one transfer at most."""
        cluster_map = await load(self._groups.group(META))
        if cluster_map is None:
            return
        statuses = await _ask(self._groups, cluster_map)
        seen = faults(cluster_map, statuses)
        if seen is None:
            return
        now = trio.current_time()
        machines = cluster_map.machines
        self._health.see(now, seen, frozenset(each.machine_id for each in machines))
        avoided = {each: seen[each] for each in self._health.sick() if each in seen}
        avoided |= {each.machine_id: "it is draining" for each in machines if each.draining}
        transfer = choose_transfer(
            cluster_map,
            statuses,
            avoided=avoided,
            resting=self._health.resting(now),
            paused=frozenset(each for each, until in self._paused_until.items() if until > now),
        )
        if transfer is not None:
            await self._do(transfer)

    async def _do(self, transfer: Transfer) -> None:
        partition, machine = transfer.partition, transfer.machine
        outcome = "no answer"
        with trio.move_on_after(_TRANSFER_S):
            try:
                outcome = await self._groups.group(partition).control(f"transfer {machine}")
            except QuorateError as error:
                outcome = str(error)
        self._paused_until[partition] = trio.current_time() + _PAUSE_S
        log_event(
            _log,
            logging.INFO,
            "transfers",
            "partition %(partition)d gets machine %(to)d as its leader: %(why)s; %(outcome)s",
            partition=partition,
            to=machine,
            why=transfer.why,
            outcome=outcome,
        )


async def watch_health(groups: Groups) -> Never:
    """Keep the leaders where they should be, until cancelled."""
    watch, waits = _Watch(groups), Waits()
    while True:
        try:
            await watch.look()
        except QuorateError as error:
            waits.say(error)
        await trio.sleep(PERIOD_S)
