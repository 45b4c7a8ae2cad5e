"""The door through which a client port reaches the replicated state machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .request import Request
    from .status import NodeStatus, Topology


class Gateway(Protocol):
    """What the client side may ask of a member."""

    def submit(self, request: Request) -> None:
        """Take a request: propose it, read, forward it to the leader, or park it meanwhile."""
        ...

    def submit_all(self, requests: list[Request]) -> None:
        """Take what came in one turn of the event loop; they need not wait for others of it.

        `submit` has to wake a task that comes round after the turn.
        """
        ...

    def stale_query(self, payload: bytes, flags: int) -> bytes:
        """Answer a query from this member's applied state, however old."""
        ...

    def now_ms(self) -> int:
        """The log's time by now, in milliseconds since the epoch: what a command would get."""
        ...

    @property
    def topology(self) -> Topology:
        """The members and the last known leader."""
        ...

    def status(self) -> NodeStatus:
        """What this member says of itself now."""
        ...
