"""Cluster timers: what a service has postponed until a moment of the log's time.

A service keeps its :class:`Timers` as a part of its state and uses them in three steps:

1. It sets timers while it applies commands.
2. It returns :meth:`Timers.next_deadline_ms` as its own next deadline. The leader records an entry
   then if nobody else writes.
3. When a batch has been applied (``advance``) it takes the timers that are due.

All of that depends on the log alone. So a timer fires at the same log position on all members,
exactly once, across restarts and changes of leader. It is never early: it fires at the first batch
whose time has reached the deadline, which without a leader is late.

See ``examples/reminders.py``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import StorageError
from ...storage.tables.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Timer", "Timers"]

_ROW: Final = struct.Struct("<IIq")  # length of the id, of the payload, deadline
_PIECE_BYTES: Final = 1 << 20


@attrs.frozen
class Timer:
    """One timer.

    Args:
        timer_id: identifies it; chosen by the service.
        deadline_ms: the log time from which on it is due, in milliseconds since the epoch;
            positive.
        payload: bytes that the service gets back when it is due.
    """

    timer_id: bytes
    deadline_ms: int
    payload: bytes = b""


class Timers:
    """The timers of one service. The service must bound their number."""

    def __init__(self) -> None:
        self._payloads: dict[bytes, bytes] = {}
        self._deadlines = Deadlines({}, tracked=False)

    def __len__(self) -> int:
        """Return the number of timers that are set."""
        return len(self._payloads)

    def get(self, timer_id: bytes) -> Timer | None:
        """Return a timer that is set, or None."""
        if timer_id not in self._payloads:
            return None
        return Timer(timer_id, self._deadlines.by_key[timer_id], self._payloads[timer_id])

    def schedule(self, timer_id: bytes, deadline_ms: int, payload: bytes = b"") -> None:
        """Set a timer; one with the same id is replaced.

        Raises:
            ValueError: the deadline is not positive.
        """
        if deadline_ms <= 0:
            raise ValueError(f"deadline_ms = {deadline_ms}: expected a positive log time in ms")
        self._deadlines.set(timer_id, deadline_ms)
        self._payloads[timer_id] = payload

    def cancel(self, timer_id: bytes) -> bool:
        """Remove a timer; return whether it was set."""
        if self._payloads.pop(timer_id, None) is None:
            return False
        self._deadlines.set(timer_id, 0)
        return True

    def next_deadline_ms(self) -> int | None:
        """Return when the next timer is due, None without any; see `Service.next_deadline_ms`.

        If very many timers were replaced or cancelled, the time may be too early.
        """
        return self._deadlines.first()

    def due(self, now_ms: int, limit: int = 1000) -> list[Timer]:
        """Remove and return the timers that are due, ordered by deadline, then by id.

        Args:
            now_ms: the log's time.
            limit: the most to return; the rest is due again after the next batch.
        """
        timers: list[Timer] = []
        deadlines = self._deadlines
        # One by one: replaced and cancelled timers must not count towards the limit. Only a member
        # that has not restarted since still has them in its heap.
        while len(timers) < limit:
            first = deadlines.first()
            if first is None or first > now_ms:
                break
            for timer_id in deadlines.due(now_ms, 1):
                timers.append(Timer(timer_id, deadlines.by_key[timer_id], self._payloads[timer_id]))
                self.cancel(timer_id)
        return timers

    # --- snapshots

    def save(self) -> Iterator[bytes]:
        """Return the timers that are set now, in pieces of about a megabyte.

        Later changes do not show in the pieces. Equal timers give equal pieces.
        """
        by_key = self._deadlines.by_key
        return _pieces([(key, by_key[key], self._payloads[key]) for key in sorted(self._payloads)])

    @classmethod
    def load_untrusted(cls, pieces: Iterator[bytes]) -> Timers:
        """Make timers from the pieces of `save`, which may have been cut anywhere.

        Raises:
            StorageError: the pieces are not valid.
        """
        timers, data, at = cls(), b"".join(pieces), 0
        while at < len(data):
            if len(data) - at < _ROW.size:
                raise StorageError("saved timers: the last one is cut off")
            id_bytes, payload_bytes, deadline_ms = _ROW.unpack_from(data, at)
            middle = at + _ROW.size + id_bytes
            end = middle + payload_bytes
            if end > len(data) or deadline_ms <= 0:
                raise StorageError(f"saved timers: invalid lengths or deadline at byte {at}")
            timers.schedule(data[at + _ROW.size : middle], deadline_ms, data[middle:end])
            at = end
        return timers


def _pieces(rows: list[tuple[bytes, int, bytes]]) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    for timer_id, deadline_ms, payload in rows:
        parts += _ROW.pack(len(timer_id), len(payload), deadline_ms), timer_id, payload
        size += _ROW.size + len(timer_id) + len(payload)
        if size >= _PIECE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)
