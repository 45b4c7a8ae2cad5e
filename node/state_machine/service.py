"""What a replicated state machine looks like to a member.

A service is fed the committed commands of the log, in order, exactly the same ones on every
member. If it is deterministic, all members hold equal states at equal positions. So time and
randomness come from the command (its timestamp and position), never from the machine.

A service that can also give its state as bytes, and take it (`SnapshotService`), has snapshots: its
members restart from the last one, drop the log before it, and send it to whoever is far behind. One
that can't keeps the whole log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import attrs

from ...errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trio


KEY_VALUE: Final = "key-value store"
"""The kind of the service that a member runs unless it is given another one."""

OWN: Final = "service of one's own"
"""The kind of all services that do not say theirs."""

MAX_KIND_BYTES: Final = 64


def kind_of(service: Service) -> str:
    """Say of what kind a service is: by its attribute `kind`, a few words, if it has one.

    A store, and a cluster, are of one kind for ever.

    Raises:
        ConfigurationError: it is too long.
    """
    kind = str(getattr(service, "kind", OWN))
    if not 1 <= len(kind.encode()) <= MAX_KIND_BYTES:
        raise ConfigurationError(
            f"service: its kind is {kind!r}, expected 1 to {MAX_KIND_BYTES} bytes"
        )
    return kind


@attrs.define
class Command:
    """A committed command, as the log holds it.

    One is made for every entry, so it is not frozen, which would cost ten times more; nobody
    changes one.

    Args:
        payload: the client's bytes; their meaning is the service's.
        flags: one byte of the service's own.
        session: session id, 0 for none.
        sequence: sequence number within the session, 0 for none.
        term: leadership term in which it was recorded.
        position: log position at which its record batch begins.
        index: its place in that batch, from 0.
        timestamp_ms: cluster time in milliseconds, given by the leader and recorded.
        wants_reply: whether anybody waits for the reply here; else any bytes will do for one. It
            must not bear on the state: it differs between members.
    """

    payload: bytes
    flags: int
    session: int
    sequence: int
    term: int
    position: int
    index: int
    timestamp_ms: int
    wants_reply: bool = True


class Service(Protocol):
    """A deterministic state machine. Every method runs on the member's trio thread.

    It may have an attribute `kind`, a few words that tell it from others: see :func:`kind_of`.
    """

    @property
    def position(self) -> int:
        """Log position up to which the state is complete at start; 0 for a volatile service."""
        ...

    def apply(self, command: Command) -> bytes:
        """Apply a committed command and return the reply. Bad input is a reply, not an error."""
        ...

    def advance(self, position: int, timestamp_ms: int) -> None:
        """A whole record batch, ending at `position`, is applied; log time is `timestamp_ms`."""
        ...

    def query(self, payload: bytes, flags: int) -> bytes:
        """Answer a read-only request from the applied state."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When log time should next move although nobody writes; None for never.

        The leader records a timer entry at that cluster time, so that whatever the service does
        then in :meth:`advance` happens on all members alike. See :class:`.timers.Timers`.
        """
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Do background work until cancelled; `started()` once commands may be applied."""
        ...


@runtime_checkable
class PatientService(Service, Protocol):
    """A service whose background work costs less if it is put off while much is applied."""

    def put_off(self, *, wanted: bool) -> None:
        """Put off what may wait, or do so no more: the member fetches the log that it lacks.

        That may take more memory, and make for more to apply again after a crash, within bounds.
        """
        ...


@runtime_checkable
class RemadeService(Service, Protocol):
    """A service that may find its state damaged when it is opened, and begin without it.

    Attributes:
        remade: it has.
    """

    remade: bool


@runtime_checkable
class SnapshotService(Service, Protocol):
    """A service whose state can be saved and loaded."""

    async def save(self, *, task_status: trio.TaskStatus[None] = ...) -> Iterator[bytes]:
        """Say what the state is now, in pieces of up to 16 MiB.

        Nothing is applied until `started()`; it should come soon: a leader for which it takes more
        than 8 s and two heartbeat timeouts steps down. From then on commands are applied
        again, and still the pieces are those of the state in that moment: make them of a copy, or
        of what never changes. They are taken one by one on another thread.

        Equal states must give equal pieces, whichever member saves them.

        Raises:
            StorageError: it can't be done now; the member goes on without this snapshot.
        """
        ...

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Replace the whole state by one that was saved at a log position, perhaps elsewhere.

        The pieces come as they were given; taking one may need a few milliseconds. Nothing is
        applied meanwhile. Afterwards `position` is this position, if the state is kept on disk.

        Raises:
            StorageError: the pieces make no sense.
        """
        ...
