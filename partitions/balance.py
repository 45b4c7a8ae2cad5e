"""Where partitions lie and who leads them: pure functions of a map.

- `first_map`: of a new cluster
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..errors import ConfigurationError
from ..keyvalue.slots.cluster_map import MOST_PARTITIONS, ClusterMap, Partition
from ..keyvalue.slots.hashing import SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..keyvalue.slots.cluster_map import Machine

__all__ = ["first_map"]


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
