"""Bounds of the key-value store, with their reasons."""

from typing import Final

MAX_VALUE_BYTES: Final = 32 << 20
"""A value: APPEND and SETRANGE could otherwise grow one beyond what a request or a batch holds."""

MAX_REPLY_BYTES: Final = 48 << 20
"""All replies to one request: MGET or a pipeline may name a big value again and again. A forwarded
reply must fit into one frame between members (64 MiB)."""

MAX_EXPIRED_PER_BATCH: Final = 1000
"""Keys that one record batch removes because their time has come; a few milliseconds of work."""

TICK_MS: Final = 1000
"""How far log time may fall behind while nobody writes and some key has an expiry."""

MAX_SCAN_COUNT: Final = 10_000
"""Keys that one SCAN looks at; COUNT is a hint."""

MAX_CURSORS: Final = 16_384
"""SCAN cursors that a member remembers; the oldest go first."""
