"""A transaction in a cluster with partitions: all its keys have one slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import KeyValueError
from ...keyvalue.commands.table import keys_of
from ...keyvalue.programs.encoding import command_of, words_of
from ...keyvalue.programs.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from ...keyvalue.programs.encoding import Argument, Text
    from ...keyvalue.programs.records import Record
    from ...keyvalue.programs.transaction import Commit
    from .one_slot import OneSlot

__all__ = ["PartitionedTransaction"]


class PartitionedTransaction(Transaction):
    """See `Transaction`; a key of another slot raises `CrossSlotError` where it is read or written.

    Args:
        place: the slot of its keys.
        read: reads records.
        commit: sends the payload.
    """

    def __init__(
        self,
        place: OneSlot,
        read: Callable[[Sequence[Text]], Awaitable[list[Record | None]]],
        commit: Commit,
    ) -> None:
        super().__init__(read, commit)
        self._place = place

    async def records(self, keys: Iterable[Text]) -> list[Record | None]:
        """Return value, revision and expiry of each key; see `Transaction.records`.

        Raises:
            CrossSlotError: a key has another slot than the first one of the transaction.
        """
        words = words_of(keys)
        self._place.check(words)
        return await super().records(words)

    def execute(self, *arguments: Argument) -> None:
        """Queue any command with keys; see `Transaction.execute`.

        Raises:
            CrossSlotError: a key has another slot than the first one of the transaction.
        """
        spec, words = command_of(arguments)
        keys = keys_of(spec, words)
        if not keys:
            name = spec.name.replace("|", " ").upper()
            raise KeyValueError(
                f"ERR {name} has no key: a transaction in a cluster with partitions has only "
                "commands with keys"
            )
        self._place.check(keys)
        super().execute(*arguments)
