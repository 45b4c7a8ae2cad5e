"""Walks over the keys of a cluster with partitions.

SCAN has no key, so a partition that has lost slots does not refuse it, and leaves their keys out.

One slot
    Each request reads the record of a key of the slot, too, at the same point of the log. So a
    partition that does not own the slot refuses it. A cursor stands for a key, and means the same
    at the new owner; one that it does not know begins the walk again.

All slots
    The partitions are walked through one after the other. A slot may move meanwhile, from one that
    has its turn later to one that had it before. So a slot counts as seen only if its partition had
    it when its walk began, and when it had ended. Partitions with other slots have another turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import KeyValueError, NoLeaderError
from ...keyvalue.commands.table import lookup
from ...keyvalue.programs.encoding import bytes_of, list_of
from ...keyvalue.protocol import resp
from ...keyvalue.slots.hashing import key_slot
from .search import Search

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ..group import StoreOptions
    from ..joined import JoinedKeyValue
    from .owners import Owners
    from .placement import Placement

__all__ = ["Walk"]

_SCAN: Final = lookup(b"SCAN")
_MOST_ROUNDS: Final = 10
"""Fewer, and a walk fails while many slots move. More, and it goes on although they always do."""


class Walk:
    """One walk over the keys that match a pattern.

    Args:
        owners: the partitions.
        placement: who owns which slot.
        options: how long it waits for a map.
        pattern: of the keys.
        count: keys that one request looks at.
    """

    def __init__(
        self,
        owners: Owners,
        placement: Placement,
        options: StoreOptions,
        *,
        pattern: bytes,
        count: int,
    ) -> None:
        self._owners, self._placement, self._options = owners, placement, options
        self._pattern, self._count = pattern, count

    async def of_slot(self, key: bytes) -> AsyncIterator[bytes]:
        """Walk through the keys of the slot of a key; the pattern has no others."""
        page = _Page(self._encoded, proof=key)
        while not page.is_last:
            page.take(await self._owners.at_owner(key, page.ask))
            for found in page.keys:
                yield found

    async def of_all(self) -> AsyncIterator[bytes]:
        """Walk through the keys of all slots.

        Raises:
            NoLeaderError: no map was found, or slots move all the time.
        """
        placement, seen = self._placement, 0
        await self._look()
        for _ in range(_MOST_ROUNDS):
            partitions = range(len(placement.map.partitions))
            before = {at: slots for at in partitions if (slots := placement.slots_of(at)) & ~seen}
            if not before:
                return
            for partition in before:
                async for key in self._of_partition(partition):
                    if not (seen and seen >> key_slot(key) & 1):
                        yield key
            await self._look()
            for partition, slots in before.items():
                seen |= slots & placement.slots_of(partition)
        raise NoLeaderError("slots moved all the time: begin the walk again")

    async def _of_partition(self, partition: int) -> AsyncIterator[bytes]:
        page = _Page(self._encoded)
        while not page.is_last:
            page.take(await self._owners.at(partition, page.ask))
            for found in page.keys:
                yield found

    async def _look(self) -> None:
        """Take a newer map if there is one."""
        search = Search(self._placement, self._options)
        while not await self._placement.refresh():
            await search.pause("no member has answered", "the map of the cluster")

    def _encoded(self, cursor: bytes) -> bytes:
        words = "SCAN", cursor, "MATCH", self._pattern, "COUNT", self._count
        return resp.encode_command(words)


class _Page:
    """The pages of a walk, one after the other.

    Args:
        encode: makes the command for the page after a cursor.
        proof: a key that the partition must own; None for any partition.

    Attributes:
        keys: of the last page.
        is_last: whether there is none after it.
    """

    def __init__(self, encode: Callable[[bytes], bytes], proof: bytes | None = None) -> None:
        self.keys: list[bytes] = []
        self.is_last = False
        self._encode = encode
        self._proof = b"" if proof is None else resp.encode_command(["QUORATE.RECORDS", proof])
        self._cursor = b"0"

    async def ask(self, kv: JoinedKeyValue) -> bytes:
        """Ask a partition for the next page."""
        assert _SCAN is not None, "it is in the table"
        return await kv.send_alone(_SCAN, self._proof + self._encode(self._cursor))

    def take(self, reply: bytes) -> None:
        """Take over a reply."""
        page = resp.parse_replies_untrusted(reply)[-1]
        if isinstance(page, KeyValueError):
            raise page
        cursor, keys = list_of(page)
        self.keys = [bytes_of(key) for key in list_of(keys)]
        self._cursor = bytes_of(cursor)
        self.is_last = self._cursor == b"0"
