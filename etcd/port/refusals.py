"""Connections to the etcd port that never became clients.

The other end rarely says why: etcdctl repeats "context deadline exceeded", whatever is wrong. So
the member says it: in its log, in its audit log and in a figure.
"""

from __future__ import annotations

import ssl
from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from ...transport.strangers import OnceLog
from ...transport.tls.connection import describe_tls

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NO_USERS", "TLS", "TOO_MANY", "Refusals", "no_audit", "why_no_tls"]

TOO_MANY: Final = "too_many"
TLS: Final = "tls"
NO_USERS: Final = "no_users"


def no_audit(_address: tuple[str, int], _reason: str) -> None:
    """Note nothing."""


class Refusals:
    """Counts and logs refused connections.

    Args:
        audited: notes an address and a reason in the audit log.

    Attributes:
        counts: how many there were, by kind.
    """

    def __init__(self, audited: Callable[[tuple[str, int], str], None]) -> None:
        self.counts = Counter[str]()
        self._audited = audited
        # Each reason once an hour: a client with a wrong setting tries again for ever.
        self._once = OnceLog()

    def note(self, address: tuple[str, int], kind: str, reason: str) -> None:
        """Note that a connection from an address was refused."""
        self.counts[kind] += 1
        self._audited(address, reason)
        self._once.warn(f"no connection with a client of etcd at {address[0]}: {reason}")


def why_no_tls(error: BaseException) -> str:
    """Return in words why a handshake failed."""
    cause = error.__cause__
    if isinstance(error, trio.TooSlowError):
        return "TLS: it sent no whole handshake in time"
    if isinstance(cause, ssl.SSLEOFError) or not isinstance(cause, ssl.SSLError):
        return "TLS: it closed the connection during the handshake"
    return f"TLS: {describe_tls(cause)}"
