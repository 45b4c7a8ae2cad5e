"""Finds the commands in a log that move slots between partitions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ...keyvalue.protocol.payload import ETCD
from ...keyvalue.slots.history import SLOTS_COMMAND
from ...storage import EntryKind, decode_entries_untrusted, decode_header_untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...storage import BatchHeader, Entry
    from .reading import Log

__all__ = ["slots_entries"]

_SLOTS: Final = re.compile(re.escape(SLOTS_COMMAND), re.IGNORECASE)
_HEAD_BYTES: Final = 64


def slots_entries(log: Log, begin: int, end: int) -> Iterator[tuple[BatchHeader, int, Entry]]:
    """Yield the entries with QUORATE.SLOTS, each with its batch and its place there.

    It is one look at the log, which is mostly a search for a word.

    Raises:
        StorageError, TransportError: the log can't be read.
    """
    for first, last in log.cut(begin, end, 1):
        for batch in log.batches(first, last):
            if SLOTS_COMMAND not in batch.upper():  # ten times as fast as the pattern
                continue
            header = decode_header_untrusted(batch)
            for index, entry in enumerate(decode_entries_untrusted(batch)):
                # A request with QUORATE.SLOTS has nothing else, and names it at its beginning.
                head = _SLOTS.search(entry.payload, 0, _HEAD_BYTES)
                if head and entry.kind is EntryKind.COMMAND and not entry.flags & ETCD:
                    yield header, index, entry
