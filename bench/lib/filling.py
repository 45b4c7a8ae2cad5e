"""Sets all keys of a load before the first run, and checks them on all members at the end."""

from collections.abc import Iterator
from typing import Final

import trio

from bench.lib.checking import LostError, values_of
from bench.lib.measuring import Load, address_of, settled
from quorate.client.resp import open_resp
from quorate.local.cluster import LocalCluster
from quorate.node.requests.status import MemberAddress

MSET_BYTES: Final = 64 << 10
MSET_KEYS: Final = 200
FILLERS: Final = 4
SAMPLE: Final = 20_000
"""At most this many keys, evenly spread, are read back one by one."""


def key_groups(load: Load, sample: int) -> Iterator[list[bytes]]:
    """Return the keys that redis-benchmark may choose, in groups: all of them, or only `sample`."""
    step = max(1, load.keys // sample)
    size = max(1, min(MSET_KEYS, MSET_BYTES // load.value_bytes))
    for start in range(0, load.keys, size * step):
        numbers = range(start, min(start + size * step, load.keys), step)
        yield [b"key:%012d" % number for number in numbers]


def value_of(name: bytes, load: Load, pool: bytes) -> bytes:
    """Return the value that :func:`fill` sets for a key: a piece of a pool of bytes."""
    at = (int(name[4:]) * 4099) % (len(pool) - load.value_bytes)
    return pool[at : at + load.value_bytes]


def pool_for(load: Load, pool: bytes) -> bytes:
    """Make a pool of random bytes that is long enough."""
    return pool * (1 + 2 * load.value_bytes // len(pool))


async def fill(cluster: LocalCluster, load: Load, pool: bytes = b"x") -> None:
    """Set every key that a load may read, to pieces of a pool of bytes."""
    pool = pool_for(load, pool)
    leader, _ = await settled(cluster)
    at = address_of(cluster, leader.member_id)
    groups = key_groups(load, load.keys)

    async def some() -> None:
        async with open_resp(at.host, at.client_port) as client:
            for names in groups:
                values = (value_of(name, load, pool) for name in names)
                pairs = zip(names, values, strict=True)
                await client.call(b"MSET", *(part for pair in pairs for part in pair))

    async with trio.open_nursery() as nursery:
        for _ in range(FILLERS):
            nursery.start_soon(some)


async def check(cluster: LocalCluster, load: Load, pool: bytes = b"") -> None:
    """Check that all members have exactly the keys, and that sampled values agree.

    Args:
        cluster: the members.
        load: the load.
        pool: the pool of :func:`fill`, if no client has set the keys since.

    Raises:
        LostError: keys or values differ, so the figures are worthless.
    """
    await settled(cluster)
    found: list[list[list[object]]] = []
    for member in cluster.addresses:
        async with open_resp(member.host, member.client_port) as client:
            await client.call("READONLY")
            values: list[list[object]] = []
            for names in key_groups(load, SAMPLE):
                values.append(await values_of(client, names))
                _check_group(member, load, names, values[-1], pool and pool_for(load, pool))
            if (count := await client.call("DBSIZE")) != load.keys:
                raise LostError(f"member {member.member_id} has {count!r} of {load.keys} keys")
            found.append(values)
            if values != found[0]:
                others = cluster.addresses[0].member_id
                raise LostError(f"members {others} and {member.member_id} have different values")


def _check_group(
    member: MemberAddress, load: Load, names: list[bytes], values: list[object], pool: bytes
) -> None:
    """See that values are of the right length, and taken from a pool if there is one."""
    for name, value in zip(names, values, strict=True):
        right = isinstance(value, bytes) and len(value) == load.value_bytes
        if not right or (pool and value != value_of(name, load, pool)):
            raise LostError(f"member {member.member_id}: {name!r} has a wrong value, {value!r:.60}")
