"""Connections that have to log in first: how many there may be, and for how long.

A stranger can open connections and say nothing. So they may be a quarter of all clients, and each
has ten seconds. Beyond the number, the one that has waited longest is closed: a client that knows
its password needs no more than a moment.
"""

from typing import Final, Protocol

from .client_state import ClientState

__all__ = ["LOGIN_SECONDS", "Strangers"]

LOGIN_SECONDS: Final = 10.0
"""Time to log in. Shorter, and a client far away, or behind many that log in, is closed; longer,
and strangers hold more connections."""

SHARE: Final = 4
"""One in this many clients may be a stranger. Smaller, and strangers keep clients out; larger, and
clients that come back all at once push out each other."""


class _Connection(Protocol):
    client: ClientState
    fileno: int

    def close(self) -> None: ...


class Strangers:
    """The connections of a port that have to log in first."""

    def __init__(self) -> None:
        self._since: dict[_Connection, float] = {}  # the oldest first

    def came(self, connection: _Connection, now: float, max_clients: int) -> int:
        """Note a connection that has to log in first; return how many were closed for it.

        Args:
            connection: a new one, or one that was logged out.
            now: of trio's clock.
            max_clients: how many clients of any kind there may be.
        """
        self._since.setdefault(connection, now)
        if len(self._since) <= max(max_clients // SHARE, 1):
            return 0
        # Only now: most log in at once, and looking at all of them for each would take long.
        self._forget_known()
        closed = 0
        while len(self._since) > max(max_clients // SHARE, 1):
            self._close(next(iter(self._since)))
            closed += 1
        return closed

    def end_overdue(self, now: float) -> int:
        """Close those whose time is over; return how many."""
        self._forget_known()
        overdue = [each for each, since in self._since.items() if now - since >= LOGIN_SECONDS]
        for connection in overdue:
            self._close(connection)
        return len(overdue)

    def _forget_known(self) -> None:
        for connection in [*self._since]:
            if connection.client.logged_in or connection.fileno < 0:
                del self._since[connection]

    def _close(self, connection: _Connection) -> None:
        del self._since[connection]
        connection.close()
