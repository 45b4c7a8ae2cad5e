"""The slot of a key, as in Redis Cluster."""

import binascii
from typing import Final

__all__ = ["SLOTS", "key_slot", "prefix_slot"]

SLOTS: Final = 16384


def key_slot(key: bytes) -> int:
    """Return the slot of a key; if the first braces hold anything, only that counts."""
    start = key.find(b"{") + 1
    if start:
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return binascii.crc_hqx(key, 0) % SLOTS


def prefix_slot(prefix: bytes) -> int | None:
    """Return the slot of all keys with a prefix; None if they have different ones."""
    start = prefix.find(b"{") + 1
    return key_slot(prefix) if start and prefix.find(b"}", start) > start else None
