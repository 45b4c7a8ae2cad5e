"""Whether a partition may execute a command: the slots of its keys decide.

The handlers of commands with keys are wrapped, so that a cluster without partitions pays nothing.
They run at the command's place in the log, where all members own the same slots.

- Keys of different slots: ``-CROSSSLOT``, as in Redis Cluster.
- A slot of another partition: the reply of `moved`. If the command belongs to a session, its reply
  is kept, and must be the same on all members: ``-NOTHERE``.
- A frozen slot: nobody may read or write it until its move has ended. The state machine stops
  before the command (:data:`~..protocol.payload.FROZEN`), and its sender tries again later.

A transaction, or a request of a session, is executed whole or not at all, so all of its commands
are looked at before the first one runs.
"""

from binascii import crc_hqx
from collections.abc import Callable, Sequence
from typing import Final

from ..protocol import resp
from ..protocol.payload import FROZEN, watched_keys
from ..protocol.resp import CommandError
from ..slots.hashing import BRACE, LAST_SLOT, key_slot
from ..state.ownership import FOREIGN, FROZEN_SLOT, OWNED, Ownership
from ..state.store import KeyStore
from . import slots
from .spec import CommandSpec
from .strings import Handler
from .table import keys_of, lookup, resolve

__all__ = ["SlotChecks"]

_CROSSSLOT: Final = resp.error("CROSSSLOT Keys in request don't hash to the same slot")
_NOT_ALONE: Final = resp.error(
    "ERR QUORATE.SLOTS must be the only command of its request; nothing was done"
)
_TRY_AGAIN: Final = resp.error(
    "TRYAGAIN slots move into this partition; nothing was deleted, try again later"
)
_FLUSHES: Final = frozenset(("flushall", "flushdb"))


def _not_here(slot: int) -> bytes:
    # No address: members may know different ones, and each of them keeps this reply.
    return resp.error(f"NOTHERE slot {slot} is not in this partition; nothing was done")


class SlotChecks:
    """The checks of one partition.

    Args:
        ownership: of its slots.
        moved: returns the error reply for a slot of another partition.
    """

    def __init__(self, ownership: Ownership, moved: Callable[[int], bytes]) -> None:
        self._ownership = ownership
        self._moved = moved

    def around(self, handlers: dict[str, Handler]) -> dict[str, Handler]:
        """Return handlers that first look at the slots of their keys."""
        return {name: self._around(name, handler) for name, handler in handlers.items()}

    def refusal(
        self, commands: Sequence[list[bytes]], *, atomic: bool, stamped: bool
    ) -> bytes | None:
        """Return the reply to commands of which none may be executed; None if all may.

        Args:
            commands: in order; the first one may be the watch of a transaction.
            atomic: they are a transaction, so their keys must have one slot.
            stamped: they are of a session, so the reply must be the same on all members.
        """
        states = self._ownership.states
        found = dict[int, None]()
        waits = False
        for arguments in commands:
            spec = resolve(arguments)
            if spec is None or not spec.takes(len(arguments)):
                continue
            if spec.name in _FLUSHES:
                waits |= self._ownership.frozen
                if atomic and self._ownership.importing:
                    return _TRY_AGAIN
            elif spec.name.startswith(slots.NAME) and len(commands) > 1:
                return _NOT_ALONE
            # At the head of a transaction each key has a condition behind it.
            watch = atomic and spec.name == "watch"
            keys = watched_keys(arguments) if watch else keys_of(spec, arguments)
            found |= dict.fromkeys(map(key_slot, keys))
        if atomic and len(found) > 1:
            return _CROSSSLOT
        for slot in found:
            if states[slot] == FOREIGN:
                return _not_here(slot) if stamped else self._moved(slot)
        return FROZEN if waits or any(states[slot] == FROZEN_SLOT for slot in found) else None

    def _around(self, name: str, handler: Handler) -> Handler:
        spec = lookup(name.encode())
        assert spec is not None, f"{name} is not in the table of commands"
        if name in _FLUSHES:
            return self._around_flush(handler)
        if spec.subcommands:
            return self._around_container(handler)
        if not spec.first_key:
            return handler
        if spec.first_key == spec.last_key == 1:
            return self._around_one_key(handler)
        return self._around_keys(spec, handler)

    def _around_one_key(self, handler: Handler) -> Handler:
        states = self._ownership.states

        # The hot path: each SET and GET of a partition comes here. No call of `key_slot`: it would
        # take a third of the time.
        def checked(store: KeyStore, arguments: list[bytes]) -> bytes:
            key = arguments[1]
            slot = key_slot(key) if BRACE in key else crc_hqx(key, 0) & LAST_SLOT
            if states[slot] == OWNED:
                return handler(store, arguments)
            raise self._refused(slot)

        return checked

    def _around_keys(self, spec: CommandSpec, handler: Handler) -> Handler:
        def checked(store: KeyStore, arguments: list[bytes]) -> bytes:
            self._check(keys_of(spec, arguments))
            return handler(store, arguments)

        return checked

    def _around_container(self, handler: Handler) -> Handler:
        def checked(store: KeyStore, arguments: list[bytes]) -> bytes:
            spec = resolve(arguments)
            if spec is not None and spec.takes(len(arguments)):
                self._check(keys_of(spec, arguments))
            return handler(store, arguments)

        return checked

    def _around_flush(self, handler: Handler) -> Handler:
        ownership = self._ownership

        def checked(store: KeyStore, arguments: list[bytes]) -> bytes:
            # The rows of a slot that moves are deleted on both sides, or on none.
            if ownership.frozen:
                raise CommandError(FROZEN)
            if ownership.importing:
                return _TRY_AGAIN
            reply = handler(store, arguments)
            if reply == resp.OK:
                ownership.cleared()
            return reply

        return checked

    def _check(self, keys: Sequence[bytes]) -> None:
        """Raise the reply to a command that must not be executed."""
        found = set(map(key_slot, keys))
        if len(found) > 1:
            raise CommandError(_CROSSSLOT)
        for slot in found:
            if self._ownership.states[slot] != OWNED:
                raise self._refused(slot)

    def _refused(self, slot: int) -> CommandError:
        frozen = self._ownership.states[slot] == FROZEN_SLOT
        return CommandError(FROZEN if frozen else self._moved(slot))
