"""What a host may be: it stands in entries of the log, hellos, maps, and replies to clients."""

import re
from ipaddress import ip_address
from typing import Final

MAX_HOST_CHARACTERS: Final = 253
"""Longest host name (RFC 1035). If smaller, hosts that the DNS has are refused. If larger, a
configuration of many members does not fit into an entry of the log."""


def is_host(text: str) -> bool:
    """Return whether a text can be a host: an IP address, or a name (which has no colon)."""
    # The zone of an address may be any text. But hosts are in the log, and in hellos.
    if len(text) > MAX_HOST_CHARACTERS or not text.isprintable():
        return False
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return re.fullmatch(r"[^\s\[\]:/]+", text) is not None
    return True
