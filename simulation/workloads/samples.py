"""The workload of a user's own service: the service class draws what clients send."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import attrs

from ...errors import RequestError
from .base import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from ..door import Door


@attrs.frozen
class Sample:
    """A command or query that a client may send.

    Args:
        payload: the bytes for the service.
        flags: the flags for the service.
        query: whether it is a query, which is not recorded in the log.
    """

    payload: bytes
    flags: int = 0
    query: bool = False


class Sampling(Protocol):
    """A service class that can be simulated: it draws what clients send."""

    @staticmethod
    def sample(rng: Random) -> Sample:
        """Draw a command or query."""
        ...


class Samples(Workload):
    """Clients send commands and queries that the service's class draws.

    Args:
        draw: draws a command or query.
        probes: queries whose answers must be equal on all members at equal positions.
    """

    def __init__(self, draw: Callable[[Random], Sample], probes: Sequence[bytes] = ()) -> None:
        super().__init__()
        self._draw = draw
        self._probes = probes

    @property
    def probes(self) -> Sequence[bytes]:
        """Return the given queries."""
        return self._probes

    def harmless(self, rng: Random) -> bytes:
        """Draw a command."""
        while (sample := self._draw(rng)).query:
            pass
        return sample.payload

    async def act(self, door: Door) -> None:
        """Send one sample."""
        sample = self._draw(door.rng)
        ask = door.query if sample.query else door.command
        with contextlib.suppress(RequestError):
            await ask(sample.payload, sample.flags)
