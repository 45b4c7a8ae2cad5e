"""Numbers as people read them: ages, sizes, counts, positions and times."""

import re
import time
from collections.abc import Sequence
from typing import Final

from ..node.requests.status import EtcdStatus

__all__ = ["age", "counted", "etcd_line", "parse_position", "size", "span", "utc"]

_UNITS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
_KIB: Final = 1024


def age(seconds: float) -> str:
    """Write a time in the past: ``0.05 s``, ``12 s``, ``3 min``."""
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return span(seconds)


def span(seconds: float) -> str:
    """Write seconds, with more digits if they are few."""
    digits = 2 if seconds < 1 else 1 if seconds < 10 else 0  # noqa: PLR2004
    return f"{seconds:.{digits}f} s"


def size(count: int) -> str:
    """Write a number of bytes: ``640 B``, ``12.3 KiB``."""
    if count < _KIB:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= _KIB
        if value < _KIB:
            return f"{value:.1f} {unit}"
    return f"{value / _KIB:.1f} TiB"


def parse_position(text: str) -> int | None:
    """Read a log position as it is printed, ``3,264``, or without commas; None for other text."""
    if re.fullmatch(r"[0-9]+|[0-9]{1,3}(,[0-9]{3})+", text) is None:
        return None
    return int(text.replace(",", ""))


def counted(count: int, one: str, many: str) -> str:
    """Write a count with its noun: ``1 batch``, ``2,000 batches``."""
    return f"{count:,} {one if count == 1 else many}"


def etcd_line(ports: Sequence[EtcdStatus]) -> str:
    """Write what etcd's keyspace holds, and what its clients have at all members.

    Args:
        ports: of the members that report one.

    Returns:
        One line; empty if no member has such a port.
    """
    if not ports:
        return ""
    # All have one keyspace, and some are a moment behind.
    newest = max(ports, key=lambda each: each.revision)
    history = f" (readable from {newest.compacted:,} on)" if newest.compacted else ""
    keys = counted(newest.keys, "key", "keys")
    leases = counted(newest.leases, "lease", "leases")
    watches = counted(sum(each.watches for each in ports), "watch", "watches")
    connections = counted(sum(each.connections for each in ports), "connection", "connections")
    members = counted(len(ports), "member", "members")
    return (
        f"etcd: revision {newest.revision:,}{history}, {keys}, {leases}; "
        f"{watches} and {connections} at {members}."
    )


def utc(timestamp_ms: int) -> str:
    """Write log time in UTC: ``2026-11-21 20:55:10.123Z``."""
    seconds, millis = divmod(timestamp_ms, 1000)
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + f".{millis:03d}Z"
