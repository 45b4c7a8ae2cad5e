"""Keys that expire: they do so at one place of the log, for everybody."""

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
    """Clients take leases, and let them run out, renew them or give them up.

    What is checked is `EqualExpiry`: at equal positions all members say the same of each key.
    """

    @property
    def probes(self) -> Sequence[bytes]:
        """How long each key has left, and what it holds."""
        return [encode(b"PTTL", key) + encode(b"GET", key) for key in KEYS]

    async def act(self, door: Door) -> None:
        """Do one thing to one key."""
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
