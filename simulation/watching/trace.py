"""What happened in a run: a digest of all of it, and the whole in a file.

An event is a fact of one moment: a message that arrived, bytes that became durable, a transition,
a fault, an operation of a client. Every event goes into the digest, so two runs with the same
digest did the same.

Some events are only in the file, and cost nothing without one: messages that are sent, positions,
the begins of clients' operations, and pictures of all members (`Trace.show`). The file is a
recording, see :mod:`quorate.recordings`.
"""

from __future__ import annotations

import hashlib
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import trio

from ...recordings import NOBODY, Event
from ...recordings.writing import RecordingWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...recordings import Fields
    from ...recordings.head import Head

Detail: TypeAlias = int | float | str | bytes | list[int] | None

_NOTHING: Final[Fields] = {}


class Trace:
    """The events of one run.

    Args:
        file: where all of them are written.
        head: the first line of the file, which says what is run.

    Attributes:
        count: number of events in the digest.
        picture: returns the fields of a keyframe.
    """

    def __init__(self, file: IO[str] | None = None, head: Head | None = None) -> None:
        self.count = 0
        self.picture: Callable[[], Fields] = dict[str, Any]
        self._hash = hashlib.sha256()
        self._writer: RecordingWriter | None = None
        if file is not None:
            assert head is not None
            self._writer = RecordingWriter(file, head, self._now)

    def _now(self) -> Fields:
        return self.picture()

    @property
    def has_file(self) -> bool:
        """Whether events are written; if not, what is only for the file need not be made."""
        return self._writer is not None

    def tell(
        self,
        kind: str,
        member: int = NOBODY,
        *unnamed: Detail,
        more: Fields = _NOTHING,
        **fields: Detail,
    ) -> None:
        """Note that something happens now.

        Args:
            kind: see `KINDS`.
            member: the member, -1 for none in particular.
            unnamed: goes into the digest only.
            more: fields that go into the file only.
            fields: those of the kind; they go into both.
        """
        now = trio.current_time()
        self.count += 1
        self._hash.update(f"{now!r} {member} {kind} {unnamed!r} {fields!r}\n".encode())
        if self._writer is not None:
            self._writer.write(Event(now, member, kind, {**fields, **more}))

    def show(self, kind: str, member: int = NOBODY, **fields: Any) -> None:
        """Write an event that the digest need not have."""
        if self._writer is not None:
            self._writer.write(Event(trio.current_time(), member, kind, fields))

    def end(self, invariant: str, text: str) -> None:
        """Write that something did not hold; nothing is written after that."""
        self.show("violation", invariant=invariant, text=text)
        self.close()

    def close(self) -> None:
        """Write nothing more; the digest goes on."""
        self._writer = None

    @property
    def digest(self) -> str:
        """Of all events so far: 16 hexadecimal digits."""
        return self._hash.hexdigest()[:16]
