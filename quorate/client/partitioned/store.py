"""The key-value store of a cluster with partitions: each request goes to the owner of its keys.

A call with keys of one slot is one request to one partition, as it is without partitions. What of
the other ones is split, and what is refused?

- Split: calls that promise nothing about several keys together, `get_many`, `records`, `delete`,
  `scan` and `scan_items`. The keys of one partition are one request.
- Refused with `CrossSlotError`: calls that take effect at one point of the log, as no log has all
  of their keys: `mget`, `mset`, `set_many`, transactions, and commands with several keys.
- Everywhere: a few commands without keys, such as DBSIZE. Others have no partition: refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import KeyValueError, NoLeaderError, UnknownOutcomeError
from ...keyvalue.commands.glob import literal_prefix
from ...keyvalue.commands.table import all_commands, keys_of, wrong_arity
from ...keyvalue.programs.client import SCAN_COUNT, KeyValue
from ...keyvalue.programs.encoding import command_of, decoded, integer_in, list_of, words_of
from ...keyvalue.protocol import resp
from ...keyvalue.protocol.resp import word_of
from ...keyvalue.slots.hashing import key_slot, prefix_slot
from .one_slot import OneSlot
from .owners import Owners
from .transaction import PartitionedTransaction
from .walk import Walk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from ...keyvalue.commands.spec import CommandSpec
    from ...keyvalue.programs.encoding import Argument, Text
    from ..group import StoreOptions
    from .groups import Groups
    from .placement import Placement

__all__ = ["PartitionedKeyValue"]

_SPECS: Final = {spec.name: spec for spec in all_commands()}
_SET: Final = _SPECS["set"]
_RECORDS: Final = _SPECS["quorate.records"]
_POSITION: Final = resp.encode_command(["QUORATE.POSITION"])


def _first(replies: Sequence[resp.Reply]) -> resp.Reply:
    return replies[0]


def _sum(replies: Sequence[resp.Reply]) -> resp.Reply:
    return sum(map(integer_in, replies))


def _all(replies: Sequence[resp.Reply]) -> resp.Reply:
    return [each for reply in replies for each in list_of(reply)]


_EVERYWHERE: Final[dict[str, Callable[[Sequence[resp.Reply]], resp.Reply]]] = {
    **dict.fromkeys(("dbsize", "quorate.expiring", "quorate.sessions"), _sum),
    **dict.fromkeys(("flushall", "flushdb", "acl|setuser", "acl|deluser"), _first),
    **dict.fromkeys(("acl|getuser", "acl|list", "acl|users"), _first),
    "keys": _all,
}
"""Commands without keys that go to all partitions, and what becomes of the replies."""


class PartitionedKeyValue(KeyValue):
    """The store of a cluster with partitions; made by `connect`.

    Args:
        groups: the inner stores.
        placement: who owns which slot.
        options: how long an owner is searched for.
    """

    def __init__(self, groups: Groups, placement: Placement, options: StoreOptions) -> None:
        super().__init__(groups)
        self._placement, self._options = placement, options
        self._owners = Owners(groups, placement, options)

    async def execute(self, *arguments: Argument) -> resp.Reply:
        """Run a command with keys of one slot, or one of the few without keys that all have.

        Raises:
            CrossSlotError: its keys have several slots.
            KeyValueError: it has no keys, and no partition; or what `KeyValue.execute` raises.
        """
        spec, words = command_of(arguments)
        keys, payload = keys_of(spec, words), resp.pack(words)
        if not keys:
            if not spec.takes(len(words)):
                raise KeyValueError(wrong_arity(spec).decode())  # its keys are left out
            return await self._at_each(spec, payload)
        place = OneSlot(self._placement, spec.name.replace("|", " ").upper())
        place.check(keys)
        return decoded(await self._owners.at_owner(keys[0], lambda kv: kv.send(spec, payload)))

    async def _at_each(self, spec: CommandSpec, payload: bytes) -> resp.Reply:
        join = _EVERYWHERE.get(spec.name)
        if join is None:
            name = spec.name.replace("|", " ").upper()
            raise KeyValueError(
                f"ERR {name} has no key, so nobody knows for which partition it is. There are "
                "scan() in place of SCAN, and position() in place of QUORATE.POSITION"
            )
        replies = await self._owners.at_each(lambda kv: kv.send(spec, payload))
        return join([decoded(reply) for reply in replies])

    def _set_alone(self, key: bytes, value: bytes) -> Awaitable[bytes]:
        payload = resp.encode_set(key, value)
        return self._owners.at_owner(key, lambda kv: kv.send(_SET, payload))

    # --- many keys

    async def delete(self, *keys: Text) -> int:
        """Delete keys; return how many of them existed. See `KeyValue.delete`."""
        slots = _by_slot(words_of(keys))
        if len(slots) <= 1:
            return await super().delete(*keys)
        try:
            replies = await self._owners.each(_SPECS["del"], slots)
        except UnknownOutcomeError:
            raise
        except (KeyValueError, NoLeaderError) as error:
            raise UnknownOutcomeError(
                f"keys of {len(slots)} slots are not deleted at once, and some may be deleted: "
                f"{error}"
            ) from error
        return sum(integer_in(_answer(reply)) for reply in replies.values())

    def _values(self, keys: Sequence[bytes]) -> Awaitable[resp.Reply]:
        return self._read(_SPECS["mget"], keys)

    def _records(self, keys: Sequence[bytes]) -> Awaitable[resp.Reply]:
        return self._read(_RECORDS, keys)

    async def _read(self, spec: CommandSpec, keys: Sequence[bytes]) -> resp.Reply:
        """Read keys by a command that returns a list; the keys of one slot by one command."""
        slots = _by_slot(keys)
        replies = await self._owners.each(spec, slots)
        found: dict[bytes, resp.Reply] = {}
        for slot, some in slots.items():
            found.update(zip(some, list_of(_answer(replies[slot])), strict=True))
        return [found[key] for key in keys]

    async def scan(self, match: Text = b"*", *, count: int = SCAN_COUNT) -> AsyncIterator[bytes]:
        """Iterate over the keys that match a glob pattern; see `KeyValue.scan`."""
        pattern = word_of(match, "match")
        walk = Walk(self._owners, self._placement, self._options, pattern=pattern, count=count)
        prefix = literal_prefix(pattern)
        keys = walk.of_all() if prefix_slot(prefix) is None else walk.of_slot(prefix)
        async for key in keys:
            yield key

    async def position(self, prefix: Text = b"") -> int:
        """Return the log position of the partition that has the keys with a prefix.

        Raises:
            CrossSlotError: the keys have several slots.
        """
        key = word_of(prefix, "prefix")
        self._placement.slot_of(key)  # it has one
        # A partition that has lost the slot refuses this, as the position has no key.
        payload = resp.encode_command([b"QUORATE.RECORDS", key]) + _POSITION
        reply = await self._owners.at_owner(key, lambda kv: kv.send_alone(_RECORDS, payload))
        return integer_in(_answer(resp.parse_replies_untrusted(reply)[-1]))

    # --- transactions

    def transaction(self) -> PartitionedTransaction:
        """Return a transaction, whose keys must have one slot; see `KeyValue.transaction`."""
        place = OneSlot(self._placement, "a transaction")

        def commit(payload: bytes, *, writes: bool) -> Awaitable[bytes]:
            return self._owners.at_owner(place.first, lambda kv: kv.commit(payload, writes=writes))

        return PartitionedTransaction(place, self.records, commit)


def _by_slot(keys: Sequence[bytes]) -> dict[int, list[bytes]]:
    slots: dict[int, list[bytes]] = {}
    for key in keys:
        slots.setdefault(key_slot(key), []).append(key)
    return slots


def _answer(reply: resp.Reply) -> resp.Reply:
    """Return a reply; raise it if it is an error."""
    if isinstance(reply, KeyValueError):
        raise reply
    return reply
