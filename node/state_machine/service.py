"""The interface between a member and its replicated state machine.

A service receives the committed commands of the log, in order, the same ones on every member. If it
is deterministic, all members have equal states at equal positions. So time and randomness must come
from the command (its timestamp and position), never from the machine.

A service that can save and load its state (`SnapshotService`) has snapshots. Its members restart
from the last one, drop the log before it, and send it to members that are far behind. Without
snapshots the whole log is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import attrs

from ...errors import ConfigurationError
from ...storage import NO_STATE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import trio


KEY_VALUE: Final = "key-value store"
"""The kind of the service that a member runs unless it is given another one."""

OWN: Final = "service of one's own"
"""The kind of every service that does not name its kind."""

MAX_KIND_BYTES: Final = 64
"""The kind is part of each link's handshake and of the store. If smaller, names get cryptic; if
larger, they no longer fit the fields there."""


def kind_of(service: Service) -> str:
    """Return the kind of a service: the text of its attribute `kind`, if it has one.

    A store, and a cluster, belong to one kind for ever.

    Raises:
        ConfigurationError: the text is empty, too long or reserved.
    """
    kind = str(getattr(service, "kind", OWN))
    if not 1 <= len(kind.encode()) <= MAX_KIND_BYTES or kind == NO_STATE:
        raise ConfigurationError(
            f"service: its kind is {kind!r}, expected 1 to {MAX_KIND_BYTES} bytes, and not "
            f"{NO_STATE!r}"
        )
    return kind


# Not frozen: one is made for every entry, and a frozen class takes ten times longer to make.
@attrs.define
class Command:
    """A committed command, as the log holds it. Treat it as read-only.

    Args:
        payload: the client's bytes; their meaning is the service's.
        flags: one byte whose meaning is the service's.
        session: session id, 0 for none.
        sequence: sequence number within the session, 0 for none.
        term: leadership term in which it was recorded.
        position: log position at which its batch begins.
        index: its place in that batch, from 0.
        timestamp_ms: log time in milliseconds since the epoch, assigned by the leader and recorded.
        wants_reply: whether anybody waits for the reply here; if not, any bytes will do. It differs
            between members, so the state must not depend on it.
        principal: number of the user that sent it, recorded; 0 for the user `default`, or for a
            program that names none.
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
    principal: int = 0


class Service(Protocol):
    """A deterministic state machine. Every method runs on the member's trio thread.

    It may have an attribute `kind`, a few words that distinguish it from other services: see
    :func:`kind_of`.
    """

    @property
    def position(self) -> int:
        """Log position up to which the state is complete at the start; 0 for a volatile service."""
        ...

    def apply(self, command: Command) -> bytes:
        """Apply a committed command and return the reply. Bad input is a reply, not an error."""
        ...

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Note that a whole batch is applied: it ends at `position`, at log time `timestamp_ms`."""
        ...

    def query(self, payload: bytes, flags: int) -> bytes:
        """Answer a read-only request from the applied state."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Return when log time must next advance even if nobody writes; None for never.

        The leader records a timer entry at that log time. So whatever the service then does in
        :meth:`advance` happens on all members alike. See :class:`.timers.Timers`.
        """
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Do background work until cancelled; call `started()` once commands may be applied."""
        ...


@runtime_checkable
class PatientService(Service, Protocol):
    """A service that can postpone background work while much is applied."""

    def put_off(self, *, wanted: bool) -> None:
        """Postpone what may wait, or stop doing so; wanted while the member catches up.

        Within bounds, that may take more memory, and a crash may cause more to be applied again.
        """
        ...


@runtime_checkable
class RemadeService(Service, Protocol):
    """A service that may find its state damaged when it is opened, and start without it.

    Attributes:
        remade: it has started without its state.
    """

    remade: bool


@runtime_checkable
class RuledService(Service, Protocol):
    """A service that has rules in its state, by which members allow requests or not.

    Attributes:
        rules: their version; it grows with each change, and 0 stands for none.
    """

    @property
    def rules(self) -> int:
        """See the class."""
        ...


@runtime_checkable
class TermService(Service, Protocol):
    """A service that must know when a leadership term begins.

    Log time may jump there, by as long as the election took.
    """

    def begin_term(self, timestamp_ms: int) -> None:
        """Note that a term begins, with an entry of this log time; called before `advance`."""
        ...


def rules_of(service: Service) -> Callable[[], int]:
    """Return a function that gives the version of a service's rules; 0 if it has none."""
    if isinstance(service, RuledService):
        return lambda: service.rules
    return lambda: 0


@runtime_checkable
class SnapshotService(Service, Protocol):
    """A service whose state can be saved and loaded."""

    async def save(self, *, task_status: trio.TaskStatus[None] = ...) -> Iterator[bytes]:
        """Return the state as of now, in pieces of up to 16 MiB.

        Nothing is applied until `started()` is called. It must come soon: a leader for which it
        takes more than 8 s and two heartbeat timeouts steps down. After it, commands are applied
        again, and the pieces must still be those of that moment: make them from a copy, or from
        immutable data. The iterator runs on another thread.

        Equal states must give equal pieces on all members.

        Raises:
            StorageError: the state cannot be saved now; the member continues without this snapshot.
        """
        ...

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Replace the whole state by one that was saved at a log position, perhaps elsewhere.

        The pieces come as they were saved; each may take a few milliseconds to arrive. Nothing is
        applied during the call. After it, :attr:`position` equals `position` if the state is kept
        on disk.

        Raises:
            StorageError: the pieces are not a valid state.
        """
        ...
