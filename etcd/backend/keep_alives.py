"""Renewals of leases that share an entry of the log.

Ten thousand leases of ten seconds are renewed three thousand times a second. As entries of their
own they would cost as much as three thousand puts. A renewal may be some milliseconds late, so all
of one moment become one entry.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Never

import trio

from ...node.protocol.signal import Signal
from ..codes import EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["GATHER_S", "KeepAlives", "Renewal"]

GATHER_S: Final = 0.05
"""Seconds for which renewals are gathered. If smaller, there are more entries. If larger, each
renewal waits longer, and TTLs are 2 s at least."""

_MOST: Final = 5000
"""Renewals in one entry. If smaller, there are more entries; if larger, each holds up the members
for longer."""


class Renewal:
    """A renewal that was begun."""

    def __init__(self) -> None:
        self._result: int | EtcdError = 0
        self._done = trio.Event()

    def end(self, result: int | EtcdError) -> None:
        """Note the TTL, or the error."""
        self._result = result
        self._done.set()

    async def ttl(self) -> int:
        """Wait for the TTL in seconds; 0 if there is no such lease.

        Raises:
            EtcdError: no leader has taken the renewal.
        """
        await self._done.wait()
        if isinstance(self._result, EtcdError):
            # An error of its own for each task: one that is raised in several gathers tracebacks.
            raise EtcdError(self._result.code, self._result.text)
        return self._result


class KeepAlives:
    """Gathers renewals.

    Args:
        call: submits a request and returns revision and body of the reply.
    """

    def __init__(self, call: Callable[[Op, bytes], Awaitable[tuple[int, bytes]]]) -> None:
        self._call = call
        # A client may renew a lease several times in one moment; all get the same answer.
        self._wanted: dict[int, list[Renewal]] = {}
        self._begun = Signal()

    def begin(self, lease: int) -> Renewal:
        """Begin to renew a lease."""
        renewal = Renewal()
        self._wanted.setdefault(lease, []).append(renewal)
        self._begun.notify()
        return renewal

    async def run(self) -> Never:
        """Submit what is gathered, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                while not self._wanted:
                    await self._begun.wait()
                await trio.sleep(GATHER_S)
                while self._wanted:
                    taken = dict(islice(self._wanted.items(), _MOST))
                    for lease in taken:
                        del self._wanted[lease]
                    # Not one after the other: while there is no leader, each waits for seconds.
                    nursery.start_soon(self._submit, taken)

    async def _submit(self, taken: dict[int, list[Renewal]]) -> None:
        message = rpc.KeepAliveBatch(ids=[*taken]).SerializeToString()
        try:
            _, body = await self._call(Op.LEASE_KEEP_ALIVE, message)
        except EtcdError as error:
            results: list[int | EtcdError] = [error] * len(taken)
        else:
            results = [*rpc.KeepAliveBatchReply.FromString(body).ttls]
        for renewals, result in zip(taken.values(), results, strict=True):
            for renewal in renewals:
                renewal.end(result)
