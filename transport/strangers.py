"""Bounds on what connections may cost us before we know who is at the other end.

Anybody can open connections and say nothing. So the number of connections that are waited for is
bounded. One too many closes the oldest of the host that has most of them; a member gets through,
since it says at once what it has to say. And each reason for a refusal is logged once in an hour: a
peer dials again for ever, and one wrong setting would fill the log.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from ..log_events import log_event
from .limits import REMEMBERED_REASONS

log = logging.getLogger("quorate.transport")

FORGET_SECONDS: Final = 3600.0
"""After this time reasons are logged again. Shorter: strangers can fill the disk with log lines.
Longer: they can hide an impostor for longer, by using up the room before."""


class Audit(Protocol):
    """Takes note of what matters for security; see `quorate.node.upkeep.audit`."""

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
    """Logs reasons for refusing strangers, each once in an hour, and a bounded number of them."""

    def __init__(self) -> None:
        self._logged: dict[str, None] = {}
        self._since = float("-inf")

    def warn(self, reason: str) -> None:
        """Log a reason for refusing a connection, if it is new."""
        if words := self.if_new(reason):
            log_event(log, logging.WARNING, "connection_refused", "%(why)s", why=words)

    def if_new(self, reason: str) -> str:
        """Return what to log; empty if the reason was logged before, or too many were."""
        # Not once for ever: strangers could use up the room with nonsense, and after that an
        # impostor would be refused in silence.
        if trio.current_time() >= self._since + FORGET_SECONDS:
            self._logged, self._since = {}, trio.current_time()
        if reason in self._logged or len(self._logged) > REMEMBERED_REASONS:
            return ""
        self._logged[reason] = None
        if len(self._logged) > REMEMBERED_REASONS:
            return f"more than {REMEMBERED_REASONS} reasons: no more are logged in this hour"
        return reason


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
