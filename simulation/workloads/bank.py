"""Transfers between accounts: the sum of all accounts never changes.

A transfer is one transaction of two commands on two keys, so no reader may see one command's effect
without the other's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from ...errors import RequestError
from ...keyvalue.protocol.payload import TRANSACTION
from ..invariants import ViolationError
from .base import Workload, decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..door import Door

ACCOUNTS: Final = tuple(b"account-%d" % i for i in range(5))
LARGEST: Final = 100


class Bank(Workload):
    """Clients transfer money between accounts that begin empty and may be overdrawn.

    Args:
        accounts: their keys.
    """

    def __init__(self, accounts: Sequence[bytes] = ACCOUNTS) -> None:
        super().__init__()
        self._accounts = accounts

    async def act(self, door: Door) -> None:
        """Transfer some money, or check all accounts."""
        if door.rng.random() < 0.3:
            await self._look(door)
            return
        one, other = door.rng.sample(self._accounts, 2)
        amount = door.rng.randint(1, LARGEST)
        body = encode(b"DECRBY", one, amount) + encode(b"INCRBY", other, amount)
        with contextlib.suppress(RequestError):
            decode(await door.command(body, TRANSACTION))

    async def _look(self, door: Door) -> None:
        try:
            (values,) = decode(await door.query(encode(b"MGET", *self._accounts)))
        except RequestError:
            return
        assert isinstance(values, list)
        balances = [int(value) for value in values if isinstance(value, bytes)]
        if sum(balances):
            raise ViolationError(f"Bank: the balances are {balances}, which is not nothing")

    async def finish(self, door: Door) -> None:
        """Check all accounts."""
        await self._look(door)
