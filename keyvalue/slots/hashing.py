"""The slot of a key, as in Redis Cluster."""

from binascii import crc_hqx
from typing import Final

__all__ = ["BRACE", "LAST_SLOT", "SLOTS", "key_slot", "prefix_slot"]

SLOTS: Final = 16384

LAST_SLOT: Final = SLOTS - 1
"""The last slot; its bits are those of a checksum that count."""

BRACE: Final = ord("{")
"""Without this byte, all of a key counts. To look for a byte takes a tenth of `bytes.find`."""


def key_slot(key: bytes) -> int:
    """Return the slot of a key; if the first braces hold anything, only that counts."""
    if BRACE in key:
        start = key.index(BRACE) + 1
        end = key.find(b"}", start)
        if end > start:
            key = key[start:end]
    return crc_hqx(key, 0) & LAST_SLOT


def prefix_slot(prefix: bytes) -> int | None:
    """Return the slot of all keys with a prefix; None if they have different ones."""
    start = prefix.find(b"{") + 1
    return key_slot(prefix) if start and prefix.find(b"}", start) > start else None
