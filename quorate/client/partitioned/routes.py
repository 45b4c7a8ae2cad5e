"""Which member of a partition a client talks to: its leader, by the map and the members' word."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

from ...errors import NoLeaderError, WireError
from ..routing import Routes
from .placement import ask_map

if TYPE_CHECKING:
    from ...transport import Address
    from ..dialling import Dialler, Wire
    from .placement import Placement

__all__ = ["PartitionRoutes"]


class PartitionRoutes(Routes):
    """Finds the leader of one partition; its members are those of the newest map.

    Each new connection asks for the map, so a member that was moved is found at its next one.

    Args:
        dialler: opens connections.
        placement: knows the members.
        partition: its number.
    """

    def __init__(self, dialler: Dialler, placement: Placement, partition: int) -> None:
        super().__init__(dialler, placement.members_of(partition))
        self._placement, self._partition = placement, partition

    def serves(self, address: Address) -> bool:
        """Whether this may be a member of this partition."""
        # The map may not know a new member of it yet. It is asked, and found out if it is none.
        return self._placement.partition_at(address) in {None, self._partition}

    async def open(self, deadline: float = math.inf) -> Wire:
        """Open a connection to the leader; see `Routes.open`."""
        members = self._placement.members_of(self._partition)
        if not members:
            raise NoLeaderError(f"no member of partition {self._partition} has a port of this kind")
        if {*members} != {*self._given}:  # otherwise it goes on with the one whose turn it is
            self._replace(members)
        try:
            return await super().open(deadline)
        except NoLeaderError:
            with anyio.CancelScope(deadline=deadline):
                await self._placement.refresh()  # its members may be on other machines by now
            raise

    async def _ask_leader(self, wire: Wire) -> Address | None:
        try:
            reply = await ask_map(wire)
        except WireError as error:
            raise ConnectionAbortedError(str(error)) from None
        self._placement.take(reply)
        if reply.partition != self._partition:
            raise ConnectionRefusedError(
                f"it is a member of partition {reply.partition}: expected {self._partition}"
            )
        return self._placement.address_of(reply.leaders.get(self._partition), self._partition)
