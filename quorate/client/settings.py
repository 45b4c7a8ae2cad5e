"""The arguments of a client: checked, each mistake with what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..errors import ConfigurationError
from ..keyvalue.limits import MAX_SESSION_MS, MIN_SESSION_MS
from ..keyvalue.retry import check_seconds
from ..transport import Address, parse_address
from .secure import ClientTls

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Member", "check_login", "check_times", "members_of"]

Member: TypeAlias = str | tuple[str, int]
"""A member's client port: ``"10.0.0.1:7000"``, ``"[::1]:7000"`` or ``("10.0.0.1", 7000)``."""

_HIGHEST_PORT: Final = 65535
_EXPECTED: Final = (
    'expected the client ports of members, such as ["10.0.0.1:7000", ("10.0.0.2", 7000)]'
)


def members_of(members: Iterable[Member]) -> tuple[Address, ...]:
    """Return the addresses of members, each once, in their order.

    Raises:
        ConfigurationError: there is none, or one is malformed.
    """
    given: Any = members
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        raise ConfigurationError(f"members = {given!r:.60}: {_EXPECTED}")
    found = tuple(dict.fromkeys(_address(at, one) for at, one in enumerate(given)))
    if not found:
        raise ConfigurationError(f"members = {given!r:.60}: {_EXPECTED}")
    return found


def _address(at: int, member: Any) -> Address:
    host: Any = None
    port: Any = None
    try:
        if isinstance(member, str):
            parsed = parse_address(member)
            host, port = parsed.host, parsed.port
        else:
            host, port = member
    except (ConfigurationError, TypeError, ValueError):
        pass
    if isinstance(host, str) and host and type(port) is int and 0 < port <= _HIGHEST_PORT:
        return Address(host, port)
    raise ConfigurationError(f"members[{at}] = {member!r:.80}: {_EXPECTED}")


def check_login(tls: Any, user: Any, password: Any) -> None:
    """Check TLS, user and password.

    Raises:
        ConfigurationError: it names the argument and what was expected, never the password.
    """
    if tls is not None and not isinstance(tls, ClientTls):
        raise ConfigurationError(f"tls = {tls!r:.60}: expected ClientTls(ca=...) or None")
    if not (user is None or (isinstance(user, str) and user)):
        raise ConfigurationError(f"user = {user!r:.60}: expected the name of a user or None")
    if not (password is None or isinstance(password, str)):
        kind = type(password).__name__
        raise ConfigurationError(f"password: expected a str or None, found {kind}")
    if user is not None and password is None:
        raise ConfigurationError(f"user = {user!r:.60}, password = None: expected both or neither")


def check_times(*, session_timeout_s: float, patience_s: float) -> None:
    """Check how long a session lives, and how long a request is sent again.

    Raises:
        ConfigurationError: one of them is out of range.
    """
    longest = MAX_SESSION_MS / 1000
    check_seconds("session_timeout_s", session_timeout_s, MIN_SESSION_MS / 1000, longest)
    check_seconds("patience_s", patience_s, 0.0, longest)
