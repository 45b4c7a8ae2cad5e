"""Bounds on what connections may cost us before we know who is at the other end.

Anybody can open connections and say nothing. So the number of connections that are waited for is
bounded. One too many closes the oldest of the host that has most of them; a member gets through,
since it says at once what it has to say. And each reason for a refusal is logged once: a peer dials
again for ever, and one wrong setting would fill the log.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol

import trio

from .limits import REMEMBERED_REASONS

log = logging.getLogger("quorate.transport")


class Audit(Protocol):
    """Takes note of what matters for security; see `quorate.node.audit`."""

    def note(self, event: str, /, *, of: str = "", **facts: object) -> None:
        """Note an event; returns at once, and never raises.

        Args:
            event: its name.
            of: the address, without a port, that may cause such events without being let in.
            facts: about it; nothing secret.
        """
        ...


class NoAudit:
    """Notes nothing."""

    def note(self, event: str, /, *, of: str = "", **facts: object) -> None:
        """Do nothing."""


class OnceLog:
    """Logs reasons for refusing connections, each once."""

    def __init__(self) -> None:
        self._logged: dict[str, None] = {}

    def warn(self, reason: str) -> None:
        """Log a reason, unless it was logged before, or too many were."""
        if reason not in self._logged and len(self._logged) < REMEMBERED_REASONS:
            self._logged[reason] = None
            log.warning("%s", reason)


class Strangers:
    """The connections whose other end has not said yet who it is.

    Args:
        most: how many of them are waited for.
        awaited: what they have not done yet, for the log: ``without a hello``.
        warn: logs a reason, each once.
    """

    def __init__(self, most: int, awaited: str, warn: Callable[[str], None]) -> None:
        self._most = most
        self._awaited = awaited
        self._warn = warn
        self._waiting: dict[trio.CancelScope, str] = {}  # hosts, the oldest connection first

    @contextmanager
    def waiting(self, host: str) -> Generator[None]:
        """Wait in this block for a connection of a host; it is cancelled if room is needed."""
        if len(self._waiting) >= self._most:
            self._make_room()
        with trio.CancelScope() as scope:
            # The scope is the handle by which `_make_room` ends this wait.
            self._waiting[scope] = host
            try:
                yield
            finally:
                self._waiting.pop(scope, None)

    def _make_room(self) -> None:
        """Stop waiting for the oldest connection of the host that has most of them."""
        counts = Counter(self._waiting.values())
        # A flood from one address then costs that address, not a member.
        host = max(counts, key=counts.__getitem__)
        scope = next(one for one, of in self._waiting.items() if of == host)
        del self._waiting[scope]
        scope.cancel()
        self._warn(
            f"more than {self._most} connections {self._awaited}, most of them from {host}: "
            "the oldest of these are closed"
        )


def host_of(peer: str) -> str:
    """Return a peer's address without the port, which differs for each of its connections."""
    return peer.rpartition(":")[0]
