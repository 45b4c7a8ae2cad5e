"""What one request may do: bounds that are counted, so they are the same on all members.

A bound that decides whether a request is applied is part of the state machine: members with other
figures would drift apart. etcd has none of these; its code for such errors is 8.
"""

from typing import Final

from ..codes import Code, EtcdError

__all__ = ["CHANGE_STEPS", "MAX_KEY_BYTES", "MAX_LEASE_KEYS", "ROW_STEPS", "SORT_STEPS", "Work"]

MAX_KEY_BYTES: Final = 64 << 10
"""A key. The index has all keys in memory, so long keys would take it."""

MAX_CHANGES: Final = 10_000
"""Keys that a request deletes or puts: some 70 ms. Larger, and one request holds up the member. In
a transaction they are steps, too, and so fewer."""

MAX_LEASE_KEYS: Final = 10_000
"""Keys of a lease; they all go in one revision when it ends."""

MAX_STEPS: Final = 400_000
"""About half a microsecond each. A current range costs only the keys that it returns, so reading in
pages has no end. Smaller, and etcd's clients cannot list what they list today; larger, and one
request holds up the member's heartbeats."""

MAX_TXN_STEPS: Final = 80_000
"""The same for a transaction, which all members apply, one after the other with all else: less than
50 ms. Larger, and one request holds up the whole cluster; smaller, and a transaction can't compare
the keys of a prefix as etcd's clients do."""

ROW_STEPS: Final = 4
"""Reading a row; looking at a key in the index is one step."""

CHANGE_STEPS: Final = 14
"""Deleting or putting a key, some 7 microseconds. Smaller, and a transaction takes longer than its
steps say; larger, and it can change fewer keys."""

SORT_STEPS: Final = 8
"""Filtering, sorting or shortening a row that was read."""

MAX_REPLY_BYTES: Final = 48 << 20
"""Keys and values that a request returns, or compares. A forwarded reply must fit into one frame
between members (64 MiB)."""


class Work:
    """What the request under way has left.

    Args:
        txn: it is a transaction.
    """

    __slots__ = ("_bytes", "_changes", "_most", "_steps")

    def __init__(self, *, txn: bool = False) -> None:
        self._most = self._steps = MAX_TXN_STEPS if txn else MAX_STEPS
        self._changes = MAX_CHANGES
        self._bytes = MAX_REPLY_BYTES

    def look(self, steps: int = 1) -> None:
        """Charge steps.

        Raises:
            EtcdError: these are more than a request may take.
        """
        self._steps -= steps
        if self._steps < 0:
            raise EtcdError(
                Code.RESOURCE_EXHAUSTED,
                "etcdserver: the request looks at too many keys; compare smaller ranges, or read "
                "the range in pages, with a limit",
            )

    def read(self, size: int) -> None:
        """Charge a row that is returned or compared, of some bytes; errors as for `look`."""
        self.look(ROW_STEPS)
        self._bytes -= size
        if self._bytes < 0:
            raise EtcdError(
                Code.RESOURCE_EXHAUSTED,
                f"etcdserver: a request can read {MAX_REPLY_BYTES} bytes; compare smaller ranges, "
                "or read the range in pages, with a limit",
            )

    def change(self, keys: int) -> None:
        """Charge changing keys; errors as for `look`."""
        self._changes -= keys
        self._steps -= CHANGE_STEPS * keys
        if self._changes < 0 or self._steps < 0:
            most = min(MAX_CHANGES, self._most // CHANGE_STEPS)
            raise EtcdError(
                Code.RESOURCE_EXHAUSTED,
                f"etcdserver: the request can change {most} keys, and fewer where it reads many; "
                "delete smaller ranges",
            )
