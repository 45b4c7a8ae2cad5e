"""A memtable: the changes since some point, over what lies below.

A *record* is a plain tuple ``(value, expires_at_ms, revision, tag)``, since making records is the
most frequent thing the tables do. It becomes bytes only when it is flushed. A deleted key stays as
None: it hides what lies below.

Sorting
-------
Keys are sorted in runs of about a thousand as they arrive. Runs of similar size are merged, up to
sixteen thousand keys. So no single sort holds up the event loop for long, a page of a scan looks
into few runs, and a flush merges the runs.

Stored keys
-----------
LMDB takes keys of 1 to 511 bytes::

    key of 1 to 479 bytes    stored as it is
    empty or longer key      480 bytes: the first 448 (padded with zeros), then SHA-256 of the key;
                             the whole key stands next to the value

The order of the tables is that of the stored keys.
"""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Record: TypeAlias = tuple[bytes, int, int, int]
"""Value, when it expires (log time in ms, 0 for never), revision, type tag (0..255)."""

MAX_PLAIN_BYTES: Final = 479
HASHED_BYTES: Final = 480
ENTRY_BYTES: Final = 320
"""About what Python keeps for one key and record besides their bytes (measured). With a smaller
figure the memtable takes more memory than it is allowed; with a larger one it flushes too soon."""
ROW_BYTES: Final = 200
"""The same for a row and its key; a row has no record, and stands in no run."""

_PREFIX_BYTES: Final = HASHED_BYTES - 32
# Fewer: more runs, and each page of a scan looks into all of them. More: a sort in one batch takes
# longer.
_RUN_KEYS: Final = 1024
_MAX_RUN_KEYS: Final = 16 * _RUN_KEYS
_PART_KEYS: Final = 16
_DISPOSE_KEYS: Final = 512


class Absent(enum.Enum):
    """What a layer says about a key that it does not know (None: the key is deleted)."""

    ABSENT = 0


ABSENT: Final = Absent.ABSENT


def stored_key(key: bytes) -> bytes:
    """Return the key under which LMDB holds `key`."""
    # A plain key is shorter than a hashed one, so the length alone says which it is.
    if 0 < len(key) <= MAX_PLAIN_BYTES:
        return key
    # The beginning of the key stays, so long keys are sorted among the others by it. The hash
    # distinguishes keys with the same beginning.
    return key[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\0") + hashlib.sha256(key).digest()


class Layer:
    """Changes on top of what lies below. `LayeredTables` writes `records` and the counts directly.

    Attributes:
        records: by key; None for a deleted key. Keys are never removed.
        fresh: keys that are in no run yet.
        present: how many records are not None.
        bytes: about how much memory they take.
        cleared: nothing below shows through.
        checked: for this many records it is known whether their key is below, too.
        hits: for this many of those it is.
        hashed: keys by stored key, where the two differ and the key is in a run.
        rows: rows that are not keys, see `LayeredTables.put_row`; None for a deleted one.
    """

    __slots__ = (
        "_runs",
        "bytes",
        "checked",
        "cleared",
        "fresh",
        "hashed",
        "hits",
        "present",
        "records",
        "rows",
    )

    def __init__(self, *, cleared: bool = False) -> None:
        self.records: dict[bytes, Record | None] = {}
        self.fresh: list[bytes] = []
        self.present = 0
        self.bytes = 0
        self.cleared = cleared
        self._runs: list[list[bytes]] = []
        self.checked = 0
        self.hits = 0
        self.hashed: dict[bytes, bytes] = {}
        self.rows: dict[bytes, bytes | None] = {}

    def settle(self) -> None:
        """Sort the fresh keys once they are enough for a run."""
        # Not key by key: sorting a thousand at once is cheaper than keeping a list in order.
        if len(self.fresh) >= _RUN_KEYS:
            self._seal()

    def runs(self) -> list[list[bytes]]:
        """Return all stored keys, as sorted lists without common keys."""
        if self.fresh:
            self._seal()
        return self._runs

    def _seal(self) -> None:
        fresh, self.fresh = self.fresh, []
        # Hashed here, not in `put`: a key that is set again and again is hashed once.
        run = [key if 0 < len(key) <= MAX_PLAIN_BYTES else self._hash(key) for key in fresh]
        run.sort()
        runs = self._runs
        # Only runs of similar size: each key then takes part in few merges, and no sort gets long.
        while runs and len(runs[-1]) <= len(run) <= _MAX_RUN_KEYS - len(runs[-1]):
            run += runs.pop()
            # Python's sort finds the two sorted halves, and merges them in linear time.
            run.sort()
        runs.append(run)

    def _hash(self, key: bytes) -> bytes:
        stored = stored_key(key)
        self.hashed[stored] = key
        return stored

    def page(self, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Return stored keys above `after`, ascending, and the last one if there are more.

        Args:
            after: a stored key, or empty.
            limit: most keys to return. At least one is returned if there is any: each run gives
                only its share.
        """
        runs = self.runs()
        # Each run gives its share, so that many runs do not make a page many times as long.
        share = min(max(limit // max(len(runs), 1), _PART_KEYS), limit)
        keys: list[bytes] = []
        cut: bytes | None = None
        for run in runs:
            at = bisect_right(run, after)
            part = run[at : at + share]
            keys += part
            # Behind the lowest cut this page would miss keys of that run.
            if at + share < len(run) and (cut is None or part[-1] < cut):
                cut = part[-1]
        keys.sort()
        count = len(keys) if cut is None else bisect_right(keys, cut)
        if count > limit:
            count, cut = limit, keys[limit - 1]
        return keys[:count], cut

    def last(self) -> bytes:
        """Return the highest stored key, empty without any."""
        return max((run[-1] for run in self.runs()), default=b"")

    def dispose(self) -> Iterator[None]:
        """Free the memory step by step: all at once would stop the event loop."""
        held: dict[bytes, Record | None] | dict[bytes, bytes | None]
        for held in (self.records, self.rows):
            while held:
                for _ in range(min(_DISPOSE_KEYS, len(held))):
                    # From the end: taking the first key each time would walk over all places that
                    # are empty by then.
                    held.popitem()
                # After each step the caller lets other tasks run.
                yield
