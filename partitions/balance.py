"""Where partitions lie and who leads them: pure functions of a map.

- `first_map`: of a new cluster
- `rebalanced`: the same partitions, evenly spread over the machines that are well
- `split`: twice as many partitions
- `with_replicas`: one partition's replicas elsewhere
- `differences`: what a plan changes, in words

Plans for one machine that goes are in :mod:`.machines`.

A plan is a map: what is to be. The director brings the cluster there. So a plan is shown, and then
stored as a change of the map.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ..errors import ConfigurationError, UsageError
from ..keyvalue.slots.cluster_map import META, MOST_PARTITIONS, ClusterMap, Move, Partition
from ..keyvalue.slots.hashing import SLOTS
from ..keyvalue.slots.ranges import count_of, parse_slots_untrusted, ranges_of, slots_of, text_of
from ..node.config.config import MAX_MEMBERS
from .wishes import with_wishes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ..keyvalue.slots.cluster_map import Machine
    from ..keyvalue.slots.ranges import Slots

__all__ = [
    "check_founded",
    "choose_replicas",
    "differences",
    "first_map",
    "rebalanced",
    "replace_replica",
    "split",
    "with_replicas",
]

_replace = msgspec.structs.replace


def first_map(
    cluster: str, machines: Sequence[Machine], partitions: int, replicas: int
) -> ClusterMap:
    """Return the first map of a cluster: slots, replicas and leaders are spread evenly.

    Replicas of one partition lie in different racks as far as there are racks. The metadata group
    has as many replicas as each partition.

    Args:
        cluster: its name.
        machines: all of them.
        partitions: how many.
        replicas: members of each partition.

    Raises:
        ConfigurationError: a number is out of range.
    """
    ordered = sorted(machines, key=lambda each: each.machine_id)
    places = {each.machine_id: place for place, each in enumerate(ordered)}
    if not 1 <= partitions <= MOST_PARTITIONS:
        expected = f"expected 1 to {MOST_PARTITIONS}"
        raise ConfigurationError(f"partitions = {partitions}: {expected}")
    if not 1 <= replicas <= len(ordered):
        raise ConfigurationError(
            f"replicas = {replicas}: expected 1 to {len(ordered)}, one on each machine at most"
        )
    used: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    found: list[Partition] = []
    for number in range(partitions):
        chosen = choose_replicas(ordered, replicas, used, start=number)
        used.update(chosen)
        # Of several that lead as few, the first at or after the partition's number in the ring.
        preferred = min(
            chosen, key=lambda each: (leads[each], (places[each] - number) % len(ordered))
        )
        leads[preferred] += 1
        first, last = SLOTS * number // partitions, SLOTS * (number + 1) // partitions - 1
        slots = f"{first}-{last}"
        found.append(Partition(number, chosen, preferred, chosen, slots=slots, founded=slots))
    metadata = choose_replicas(ordered, replicas, Counter(), start=0)
    return ClusterMap(cluster, 1, tuple(ordered), tuple(found), metadata)


def choose_replicas(
    machines: Sequence[Machine], count: int, used: Counter[int], *, start: int
) -> tuple[int, ...]:
    """Return machines for the replicas of a partition, ascending.

    Args:
        machines: to choose from.
        count: how many, not more than there are.
        used: how many replicas each machine has already; those with few come first.
        start: where in the ring of machines to begin, of those that are equal.
    """
    ring = [machines[(start + at) % len(machines)] for at in range(len(machines))]
    racks: Counter[str] = Counter()
    chosen: list[int] = []
    for _ in range(count):
        left = [each for each in ring if each.machine_id not in chosen]
        # A machine that names no rack is one of its own.
        best = min(left, key=lambda each: (racks[each.rack], used[each.machine_id]))
        if best.rack:
            racks[best.rack] += 1
        chosen.append(best.machine_id)
    return tuple(sorted(chosen))


def rebalanced(cluster_map: ClusterMap, well: Collection[int]) -> ClusterMap:
    """Return a map whose replicas and preferred machines are spread evenly over healthy machines.

    As few replicas as possible change their machine, one at a time of the machine with most to that
    with least.

    Args:
        cluster_map: the newest map.
        well: ids of the machines that may get replicas. Those that drain get none.

    Raises:
        ConfigurationError: replicas should move of a group that is not founded yet.
    """
    usable = {
        each.machine_id: each.rack
        for each in cluster_map.machines
        if each.machine_id in well and not each.draining
    }
    replicas = [set(each.replicas) for each in cluster_map.partitions]
    for held in replicas:
        _leave(held, replicas, usable)
    while _even(replicas, usable):
        pass
    after: list[Partition] = []
    leads: Counter[int] = Counter()
    for each, held in zip(cluster_map.partitions, replicas, strict=True):
        fit = sorted(held & usable.keys()) or sorted(held)
        # Who is preferred already stays so, of those with as few.
        best = min(fit, key=lambda one: (leads[one], one != each.preferred, one))
        leads[best] += 1
        after.append(_replace(each, replicas=tuple(sorted(held)), preferred=best))
    metadata = {*cluster_map.metadata}
    _leave(metadata, (), usable)
    plan = _replace(cluster_map, partitions=tuple(after), metadata=tuple(sorted(metadata)))
    check_founded(cluster_map, plan)
    return plan


def _leave(held: set[int], replicas: Sequence[set[int]], usable: dict[int, str]) -> None:
    """Replace the replicas of a partition that are on machines which may have none."""
    for machine in sorted(held - usable.keys()):
        replace_replica(held, machine, replicas, usable)


def replace_replica(
    held: set[int], machine: int, replicas: Sequence[set[int]], usable: Mapping[int, str]
) -> None:
    """Put the replica of a partition on another machine; leave it if no other one is free.

    Args:
        held: the machines that have a replica of it; changed.
        machine: the one that is to have none.
        replicas: those of all partitions: a machine with few comes first.
        usable: racks of the machines that may get it, by id.
    """
    if free := usable.keys() - held:
        held.remove(machine)
        held.add(min(free, key=lambda each: (_cost(each, held, usable), _load(replicas, each))))


def _even(replicas: Sequence[set[int]], usable: dict[int, str]) -> bool:
    """Move one replica from a machine with many to one with few; return whether that was done."""
    ordered = sorted(usable, key=lambda each: (_load(replicas, each), each))
    for least in ordered:
        for most in reversed(ordered):
            if _load(replicas, most) - _load(replicas, least) < 2:  # noqa: PLR2004 - else it goes back
                break
            for held in replicas:
                rest = held - {most}
                if most not in held or least in held:
                    continue
                if _cost(least, rest, usable) <= _cost(most, rest, usable):
                    held.remove(most)
                    held.add(least)
                    return True
    return False


def _cost(machine: int, held: set[int], usable: Mapping[int, str]) -> int:
    """Return how many others of a partition are in a machine's rack."""
    rack = usable[machine]
    return sum(bool(rack) and usable.get(each) == rack for each in held)


def _load(replicas: Sequence[set[int]], machine: int) -> int:
    return sum(machine in held for held in replicas)


def split(cluster_map: ClusterMap) -> ClusterMap:
    """Return a map with twice as many partitions, and the moves of half of each one's slots.

    Raises:
        ConfigurationError: they would be too many, or slots are moving already.
    """
    count = len(cluster_map.partitions)
    if 2 * count > MOST_PARTITIONS:
        raise ConfigurationError(
            f"{count} partitions: expected {MOST_PARTITIONS // 2} at most to split them"
        )
    used = Counter(one for each in cluster_map.partitions for one in each.replicas)
    leads = Counter(each.preferred for each in cluster_map.partitions)
    machines = [each for each in cluster_map.machines if not each.draining]
    partitions, moves = [*cluster_map.partitions], list[Move]()
    for each in cluster_map.partitions:
        number = len(partitions)
        copies = min(len(each.replicas), len(machines))
        chosen = choose_replicas(machines, copies, used, start=number)
        used.update(chosen)
        preferred = min(chosen, key=lambda one: (leads[one], one))
        leads[preferred] += 1
        partitions.append(Partition(number, chosen, preferred, chosen))
        half = _upper_half(parse_slots_untrusted(each.slots))
        if half:
            moves.append(Move(0, text_of(half), each.partition, number))
    grown = _replace(cluster_map, partitions=tuple(partitions))
    return with_wishes(grown, moves) or grown


def _upper_half(slots: Slots) -> Slots:
    left = count_of(slots) // 2
    half: list[tuple[int, int]] = []
    for first, last in reversed(ranges_of(slots)):
        if left:
            begin = max(first, last + 1 - left)
            half.append((begin, last))
            left -= last + 1 - begin
    return slots_of(half)


def with_replicas(cluster_map: ClusterMap, number: int, machines: Sequence[int]) -> ClusterMap:
    """Return a map with the replicas of one partition on some machines.

    Args:
        cluster_map: the newest map.
        number: of the partition.
        machines: ids of those that are to have a replica. The preferred one stays preferred if it
            is one of them; otherwise the first one is.

    Raises:
        UsageError: there is no such partition, or no such machine.
        ConfigurationError: the partition is not founded yet.
    """
    if not 0 <= number < len(cluster_map.partitions):
        last = len(cluster_map.partitions) - 1
        raise UsageError(f"partition {number}: expected one of 0 to {last}")
    known = [each.machine_id for each in cluster_map.machines]
    chosen = tuple(sorted({*machines}))
    if not chosen or len(chosen) != len(machines) or not {*chosen} <= {*known}:
        raise UsageError(
            f"replicas {_listed(machines)}: expected machines of {_listed(known)}, each once"
        )
    if len(chosen) > MAX_MEMBERS:
        raise UsageError(f"{len(chosen)} replicas: expected {MAX_MEMBERS} at most")
    partitions = [*cluster_map.partitions]
    was = partitions[number]
    preferred = was.preferred if was.preferred in chosen else machines[0]
    partitions[number] = _replace(was, replicas=chosen, preferred=preferred)
    after = _replace(cluster_map, partitions=tuple(partitions))
    check_founded(cluster_map, after)
    return after


def check_founded(before: ClusterMap, after: ClusterMap) -> None:
    """Refuse to have the members elsewhere of a group that has not said yet where they are.

    Nobody would look for it where it is.

    Raises:
        ConfigurationError: one is not founded, as far as the map says.
    """
    for number in range(META, len(before.partitions)):
        wanted = after.replicas_of(number)
        if not (before.is_founded(number) or wanted == before.replicas_of(number)):
            name = "the metadata group" if number == META else f"partition {number}"
            raise ConfigurationError(
                f"{name}: by map {before.epoch} it is not founded yet: expected one with members, "
                "for its replicas to go elsewhere: see quorate partition list, and try again"
            )


def differences(before: ClusterMap, after: ClusterMap) -> list[str]:
    """Return what one map changes of another: machines, partitions, replicas, leaders, moves."""
    words = _changed_machines(before, after)
    for each in after.partitions:
        number = each.partition
        if number >= len(before.partitions):
            words.append(f"partition {number}: new, on machines {_listed(each.replicas)}")
            continue
        was = before.partitions[number]
        if gone := {*was.replicas} - {*each.replicas}:
            new = {*each.replicas} - {*was.replicas}
            words.append(f"partition {number}: replicas {_listed(gone)} -> {_listed(new)}")
        elif new := {*each.replicas} - {*was.replicas}:
            words.append(f"partition {number}: one more replica on {_listed(new)}")
        if was.preferred != each.preferred:
            words.append(f"partition {number}: leader {was.preferred} -> {each.preferred}")
    if gone := {*before.metadata} - {*after.metadata}:
        new = {*after.metadata} - {*before.metadata}
        words.append(f"metadata: replicas {_listed(gone)} -> {_listed(new)}")
    known = {each.move for each in before.moves}
    words += [
        f"slots {each.slots}: partition {each.source} -> {each.target}"
        for each in after.moves
        if each.move not in known
    ]
    return words


def _changed_machines(before: ClusterMap, after: ClusterMap) -> list[str]:
    words: list[str] = []
    for was in before.machines:
        now = after.machine(was.machine_id)
        if now is None:
            words.append(f"machine {was.machine_id}: forgotten")
        elif now.draining != was.draining:
            words.append(f"machine {was.machine_id}: {'drains' if now.draining else 'stays'}")
    return words


def _listed(machines: Collection[int]) -> str:
    return ", ".join(map(str, sorted(machines))) or "none"
