"""A second keyspace in the same log and the same tables: what the service asks of it.

Redis's keys and the keys of the other keyspace do not see each other. The log, the snapshots and
the log position of the tables are common. Entries with the flag `ETCD` are the other keyspace's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..node.state_machine.service import Command

__all__ = ["Keyspace"]


class Keyspace(Protocol):
    """A deterministic state machine over the rows and notes of the tables.

    Times are log time in milliseconds, which never go backwards.
    """

    def apply(self, command: Command, now_ms: int) -> bytes:
        """Apply a committed command and return the reply. Bad input is a reply, not an error."""
        ...

    def query(self, payload: bytes, now_ms: int) -> bytes:
        """Answer a read-only request from the applied state."""
        ...

    def begin_term(self, now_ms: int) -> None:
        """Note that a new leadership term begins with the present entry, at `now_ms`."""
        ...

    def advance(self, now_ms: int) -> None:
        """Note that a whole batch is applied."""
        ...

    def next_deadline_ms(self) -> int | None:
        """Return when log time must next advance even if nobody writes; None for never."""
        ...

    def halt(self) -> None:
        """Read nothing from the tables until `reload`: their content is going to be replaced."""
        ...

    def reload(self) -> None:
        """Take the state from the tables anew: a snapshot was loaded."""
        ...

    def resume(self, now_ms: int) -> None:
        """Note the log time from which it goes on: in the beginning, and after each `reload`.

        The tables may say an earlier one: a partition's log time is that of the slots that came to
        it, if that is later than the log says.
        """
        ...
