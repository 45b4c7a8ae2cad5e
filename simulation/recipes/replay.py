"""A replay of the committed log, by a service that no program asks and no fault hits.

The first member that applies an entry shows it to this service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from ...keyvalue.service import KeyValueService
from ...storage.testing import InlineExecutor
from .tenures import Tenures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ...node import Command
    from ..machines.host import Place
    from ..store import Store


class Replay:
    """A replay of a log.

    Args:
        directory: for the tables of the replay; it must not exist.
        prefixes: of the keys whose tenures are noted.

    Attributes:
        tenures: of all keys.
        position: up to which the log was applied.
    """

    def __init__(self, directory: Path, prefixes: tuple[bytes, ...] = (b"",)) -> None:
        self.tenures = Tenures(prefixes)
        self._service = KeyValueService.open(
            directory, cluster="replay", member_id=0, executor=InlineExecutor
        )
        self._applied = (-1, -1)
        self.position = 0

    def close(self) -> None:
        """Close the tables."""
        self._service.close()

    def attending(self, make: Callable[[Place], Store]) -> Callable[[Place], Store]:
        """Have every store that is made show what it applies."""

        def made(place: Place) -> Store:
            store = make(place)
            self._attend(store)
            return store

        return made

    def apply(self, command: Command) -> None:
        """Apply a command, unless that was done before."""
        if (point := (command.position, command.index)) > self._applied:
            self._applied = point
            self._service.apply(attrs.evolve(command))

    def advance(self, position: int, timestamp_ms: int, at: float) -> None:
        """Everything up to a position is applied, at a time in seconds."""
        if position > self.position:
            self._service.advance(position, timestamp_ms)
            while self.position < position:
                changes, self.position = self._service.changes.after(self.position, b"")
                self.tenures.note(changes, timestamp_ms, at)

    def _attend(self, store: Store) -> None:
        apply, advance = store.apply, store.advance

        def applied(command: Command) -> bytes:
            self.apply(command)
            return apply(command)

        def advanced(position: int, timestamp_ms: int) -> None:
            self.advance(position, timestamp_ms, trio.current_time())
            advance(position, timestamp_ms)

        setattr(store, "apply", applied)  # noqa: B010 - of this one store
        setattr(store, "advance", advanced)  # noqa: B010
