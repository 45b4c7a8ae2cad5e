"""Parameters that several verbs share: addresses of members, places in the log, ``--json``.

Also the words for a library that is missing.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from ..errors import ConfigurationError, UsageError
from ..local.words import parse_position
from ..node.requests.status import MemberAddress

__all__ = ["Address", "Addresses", "AsJson", "needing_certs", "parse_address", "parse_point"]

Addresses = Annotated[Sequence[str], Parameter(negative="", show_default=False)]
Address = Annotated[str, Parameter(show_default=False)]
AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]


def parse_address(text: str) -> MemberAddress:
    """Read ``HOST:PORT``; IPv6 in brackets.

    Raises:
        UsageError: it is not that.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):  # noqa: PLR2004
        raise UsageError(f'--connect "{text}": expected HOST:PORT, as 127.0.0.1:7000')
    return MemberAddress(-1, host.removeprefix("[").removesuffix("]"), int(port))


def parse_point(at: str | None) -> tuple[int | None, int | None]:
    """Read a log position, or a time, into ms since the epoch; without a zone it is UTC.

    Raises:
        UsageError: it is neither.
    """
    if at is None:
        return None, None
    if (position := parse_position(at)) is not None:
        return position, None
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        raise UsageError(
            f'--at "{at}": expected a log position, or a time such as 2026-11-21T12:00:00Z'
        ) from None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return None, int(aware.timestamp() * 1000)


@contextmanager
def needing_certs() -> Generator[None]:
    """Import what needs the library `cryptography`.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f'this needs the extra certs: pip install ".[certs]" in a checkout of quorate ({error})'
        ) from error
