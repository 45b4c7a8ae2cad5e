"""The interface through which a client port uses a member.

A port hands in requests and learns of the cluster; it knows neither the election nor the log.
:class:`~..member.Member` implements it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from .journey import Latencies
    from .request import Request
    from .status import NodeStatus, Topology


OWN_ORDERS: Final = "trace"
"""With this word begins what an operator asks of one member, and not of the leader."""


class Gateway(Protocol):
    """What a client port may call of a member."""

    def submit(self, request: Request) -> None:
        """Take a request: propose it, read, forward it to the leader, or park it.

        On the leader, its batch is formed by a task that runs after this turn of the event loop.
        """
        ...

    def submit_all(self, requests: list[Request]) -> None:
        """Take all requests of one turn of the event loop.

        On the leader they become a batch at once: nothing more of this turn is expected.
        """
        ...

    def stale_query(self, payload: bytes, flags: int) -> bytes:
        """Answer a query from this member's applied state, which may be old."""
        ...

    def now_ms(self) -> int:
        """Return the log's time now, in milliseconds since the epoch."""
        ...

    @property
    def topology(self) -> Topology:
        """The members and the last known leader."""
        ...

    def status(self) -> NodeStatus:
        """Return what this member reports of itself now."""
        ...

    def own_order(self, words: bytes) -> bytes:
        """Do what an operator asks of this member alone; return what was done, in words.

        Raises:
            RefusedError: it is nothing that a member does by itself, or can't be done now.
        """
        ...

    def recent(self, since: int) -> dict[str, Any]:
        """Return rates, quantiles and the last steps of elections, see `Reporter.recent`."""
        ...

    def latencies(self) -> Latencies:
        """Return how long things took here, and which batches took long."""
        ...
