"""Cluster timers: what a service has put off until a moment of the log's time.

A service keeps its :class:`Timers` as a part of its state. It sets them while it applies commands,
says by :meth:`Timers.next_deadline_ms` when the next one is due, so that the leader records an
entry then if nobody else does, and takes those that are due when a batch has been applied
(``advance``). All of that hangs on the log alone. So a timer is due at the same position of the log
on all members, once, whoever leads and whoever restarts meanwhile; and it is never early: it is due
at the first batch whose time has reached its deadline, which without a leader is late.

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
        timer_id: names it among the others; chosen by the service.
        deadline_ms: the log's time from which on it is due, in milliseconds; positive.
        payload: whatever the service wants to be told then.
    """

    timer_id: bytes
    deadline_ms: int
    payload: bytes = b""


class Timers:
    """The timers of one service. How many there are is the service's to bound."""

    def __init__(self) -> None:
        self._payloads: dict[bytes, bytes] = {}
        self._deadlines = Deadlines({}, recorded=False)

    def __len__(self) -> int:
        """Count those that are set."""
        return len(self._payloads)

    def get(self, timer_id: bytes) -> Timer | None:
        """Return a timer that is set, or None."""
        if timer_id not in self._payloads:
            return None
        return Timer(timer_id, self._deadlines.by_key[timer_id], self._payloads[timer_id])

    def schedule(self, timer_id: bytes, deadline_ms: int, payload: bytes = b"") -> None:
        """Set a timer; one of the same id is replaced.

        Raises:
            ValueError: the deadline is not positive.
        """
        if deadline_ms <= 0:
            raise ValueError(f"a deadline of {deadline_ms} ms")
        self._deadlines.set(timer_id, deadline_ms)
        self._payloads[timer_id] = payload

    def cancel(self, timer_id: bytes) -> bool:
        """Take a timer away; whether it was set."""
        if self._payloads.pop(timer_id, None) is None:
            return False
        self._deadlines.set(timer_id, 0)
        return True

    def next_deadline_ms(self) -> int | None:
        """Say when the next one is due, None without any; as `Service.next_deadline_ms` wants it.

        Amidst very many timers that were replaced or cancelled it may say a time that is too early.
        """
        return self._deadlines.first()

    def due(self, now_ms: int, limit: int = 1000) -> list[Timer]:
        """Take the timers that are due, in the order of their deadlines, then of their ids.

        Args:
            now_ms: the log's time.
            limit: leave the others for the next time, that is for the next batch.
        """
        found: list[Timer] = []
        deadlines = self._deadlines
        # One by one: what was replaced or cancelled must not count, for only a member that has not
        # been restarted since still has it in its heap.
        while len(found) < limit:
            first = deadlines.first()
            if first is None or first > now_ms:
                break
            for timer_id in deadlines.due(now_ms, 1):
                found.append(Timer(timer_id, deadlines.by_key[timer_id], self._payloads[timer_id]))
                self.cancel(timer_id)
        return found

    # --- snapshots

    def save(self) -> Iterator[bytes]:
        """Say which timers are set now, in pieces of about a megabyte; changes don't show in them.

        Equal timers give equal pieces.
        """
        by_key = self._deadlines.by_key
        return _pieces([(key, by_key[key], self._payloads[key]) for key in sorted(self._payloads)])

    @classmethod
    def load_untrusted(cls, pieces: Iterator[bytes]) -> Timers:
        """Make timers of what `save` said, cut anywhere.

        Raises:
            StorageError: it makes no sense.
        """
        timers, data, at = cls(), b"".join(pieces), 0
        while at < len(data):
            if len(data) - at < _ROW.size:
                raise StorageError("the saved timers end early")
            id_bytes, payload_bytes, deadline_ms = _ROW.unpack_from(data, at)
            middle = at + _ROW.size + id_bytes
            end = middle + payload_bytes
            if end > len(data) or deadline_ms <= 0:
                raise StorageError(f"a saved timer at byte {at} makes no sense")
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
