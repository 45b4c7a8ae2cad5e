"""The state machine behind replicated objects.

Each member has the same objects, by their names. An entry of the log is a batch of calls. Each call
is applied or, if it raises an exception, undone as a whole; its reply says which.

An entry that names an object, a method or a version that this member's program does not have ends
the member: to leave it out would make this member differ from the others. With the right program it
goes on where it stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import trio

from ..errors import ConfigurationError, StorageError
from ..state_machine import SnapshotStateMachine
from . import wire
from .sessions import Session, Sessions
from .shapes import without_addresses

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..node import Command
    from .base import Home

__all__ = ["ObjectsMachine", "Part"]

MAX_TEXT: Final = 1000
"""Characters of an exception's text in a reply. If larger, kept replies grow with it."""


class Part(Protocol):
    """One object, as the state machine sees it; its methods are those of :class:`Replicated`."""

    @property
    def object_name(self) -> str:
        """By which the log knows it."""
        ...

    def open(self, home: Home) -> None: ...  # noqa: D102 - see the class
    def knows(self, method: str, version: int) -> bool: ...  # noqa: D102
    def apply(  # noqa: D102
        self, command: Command, method: str, version: int, arguments: bytes
    ) -> bytes: ...
    def note_time(self, position: int, timestamp_ms: int) -> None: ...  # noqa: D102
    def advance(self, position: int, timestamp_ms: int) -> None: ...  # noqa: D102
    def answer(self, method: str, version: int, arguments: bytes) -> bytes: ...  # noqa: D102
    def next_deadline_ms(self) -> int | None: ...  # noqa: D102
    def dump(self) -> bytes: ...  # noqa: D102
    def restore_untrusted(self, data: bytes) -> None: ...  # noqa: D102


class _Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A snapshot: sessions in the order of their use, and the state of each object."""

    sessions: list[tuple[int, Session]]
    objects: dict[str, bytes]


_SAVED: Final = msgspec.msgpack.Decoder(_Saved)


class ObjectsMachine(SnapshotStateMachine):
    """Replicated objects as a state machine.

    Args:
        parts: the objects.
        home: where their calls go.

    Raises:
        ConfigurationError: two have the same name, or one is not ready to be opened.

    Attributes:
        applied: everything below this position of the log is applied.
    """

    kind = "replicated objects"

    def __init__(self, parts: Sequence[Part], home: Home) -> None:
        self._parts: dict[str, Part] = {}
        for part in parts:
            name = part.object_name
            if name in self._parts:
                raise ConfigurationError(
                    f"two objects have the name {name!r}: expected different ones"
                )
            self._parts[name] = part
        for part in parts:
            part.open(home)
        self._sessions = Sessions()
        self.applied = 0
        self._moved = trio.Event()

    def moved(self) -> trio.Event:
        """Return an event that is set once more was applied."""
        return self._moved

    def apply(self, command: Command) -> bytes:
        """Apply a batch of calls, unless it was applied before; return the reply."""
        try:
            batch = wire.batch_untrusted(command.payload)
        except ValueError as error:
            return wire.encode(wire.Malformed(str(error)))
        if not batch.session:
            return self._sessions.open(command.position + command.index)
        reply = self._sessions.reply_to(batch.session, batch.sequence)
        if reply is None:
            outcomes = self._apply_all(command, batch.calls)
            reply = wire.encode(wire.Done(command.position, outcomes))
            self._sessions.keep(batch.session, batch.sequence, reply)
        return reply

    def _apply_all(
        self, command: Command, calls: tuple[wire.Call, ...]
    ) -> tuple[wire.Outcome, ...]:
        outcomes: list[wire.Outcome] = []
        size = 0
        for call in calls:
            if size > wire.ENOUGH_BYTES:
                break
            outcome = self._apply_one(command, call)
            outcomes.append(outcome)
            size += len(outcome.data) if isinstance(outcome, wire.Result) else 0
        return tuple(outcomes)

    def _apply_one(self, command: Command, call: wire.Call) -> wire.Outcome:
        part = self._find(call)
        try:
            return wire.Result(part.apply(command, call.method, call.version, call.arguments))
        except MemoryError:  # this machine's trouble alone: the others may have applied it
            raise
        except Exception as error:  # noqa: BLE001 - any error of a method is its reply
            return _failure(error)

    def _find(self, call: wire.Call) -> Part:
        part = self._parts.get(call.target)
        if part is None or not part.knows(call.method, call.version):
            what = f"version {call.version} of {call.target}.{call.method}"
            raise ConfigurationError(
                f"the log has a call of {what}, which this program does not have: run the program "
                "that has it, on all members, and it goes on from here"
            )
        return part

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Note the end of a batch of the log, and wake those that wait for a change."""
        self.applied = position
        for part in self._parts.values():
            part.advance(position, timestamp_ms)
        self._moved.set()
        self._moved = trio.Event()

    def next_deadline_ms(self) -> int | None:
        """Return the first deadline of all objects."""
        deadlines = [part.next_deadline_ms() for part in self._parts.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def query(self, payload: bytes, flags: int) -> bytes:
        """Run a query; return its outcome."""
        del flags
        try:
            call = wire.call_untrusted(payload)
            part = self._parts.get(call.target)
            if part is None or call.version or not part.knows(call.method, 0):
                return wire.encode(wire.Malformed(f"no query {call.target}.{call.method} here"))
            outcome: wire.Outcome = wire.Result(
                wire.check_result(part.answer(call.method, 0, call.arguments))
            )
        except Exception as error:  # noqa: BLE001 - any error of a method is its reply
            outcome = _failure(error)
        return wire.encode(wire.Done(0, (outcome,)))

    def dump(self) -> bytes:
        """Return the state of all objects."""
        objects = {name: self._parts[name].dump() for name in sorted(self._parts)}
        return wire.encode(_Saved(list(self._sessions.by_id.items()), objects))

    def restore(self, state: bytes) -> None:
        """Take the state of all objects from a snapshot.

        Raises:
            StorageError: it is none, or of other objects.
        """
        try:
            saved = _SAVED.decode(state)
        except msgspec.DecodeError as error:
            raise StorageError(f"a snapshot of replicated objects: {error}") from None
        if missing := sorted(set(saved.objects) - set(self._parts)):
            raise StorageError(
                f"the snapshot has the objects {', '.join(missing)}, which this program does not "
                "have: give them to open_objects"
            )
        self._sessions.by_id = dict(saved.sessions)
        empty = wire.encode({})
        for name, part in self._parts.items():
            part.restore_untrusted(saved.objects.get(name, empty))

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Take the state from the pieces of a snapshot."""
        await super().load(pieces, position, timestamp_ms)
        self.applied = position
        for part in self._parts.values():
            part.note_time(position, timestamp_ms)

    def state(self) -> bytes:
        """Return the whole state; the simulation compares members by this."""
        return self.dump()


def _failure(error: Exception) -> wire.Failure:
    text = without_addresses(str(error))[:MAX_TEXT]
    # Surrogates have no bytes.
    return wire.Failure(type(error).__name__, text.encode("utf-8", "replace").decode())
