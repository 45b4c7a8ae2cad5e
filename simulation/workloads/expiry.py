"""Keys that expire: they must do so at the same log position on all members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import RequestError
from .base import Workload, decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..door import Door

KEYS: Final = tuple(b"lease-%d" % i for i in range(4))
LIVES_MS: Final = (20, 200, 2000, 20_000)


class Expiry(Workload):
    """Clients take leases, and let them expire, renew them, or release them.

    The invariant `EqualExpiry` checks them: at equal positions, all members answer alike.
    """

    @property
    def probes(self) -> Sequence[bytes]:
        """Return queries of each key's remaining time and value."""
        return [encode(b"PTTL", key) + encode(b"GET", key) for key in KEYS]

    async def act(self, door: Door) -> None:
        """Execute one operation on one key."""
        key = door.rng.choice(KEYS)
        life = door.rng.choice(LIVES_MS)
        commands = (
            encode(b"SET", key, b"%d" % door.client, b"PX", life),
            encode(b"SET", key, b"%d" % door.client, b"PX", life, b"NX"),
            encode(b"PEXPIRE", key, life),
            encode(b"PERSIST", key),
            encode(b"DEL", key),
        )
        weights = (4, 4, 3, 1, 1)
        try:
            if door.rng.random() < 0.3:
                decode(await door.query(encode(b"PTTL", key)))
            else:
                decode(await door.command(door.rng.choices(commands, weights)[0]))
        except RequestError:
            pass
