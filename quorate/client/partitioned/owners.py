"""Sends commands to the partitions that own their slots, wherever these are by now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from ...errors import KeyValueError, RequestError, UnknownOutcomeError
from ...keyvalue.commands.table import Kind, all_commands
from ...keyvalue.protocol import resp
from ...keyvalue.slots.hashing import key_slot
from ..batches import BATCH_COMMANDS
from .search import ELSEWHERE, NOT_HERE, Astray, Search, is_elsewhere

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ...keyvalue.commands.spec import CommandSpec
    from ..group import StoreOptions
    from ..joined import JoinedKeyValue
    from .groups import Groups
    from .placement import Placement

    Send = Callable[[JoinedKeyValue], Awaitable[bytes]]
    """Sends encoded commands to an inner store; returns the replies."""

__all__ = ["Owners"]

T = TypeVar("T")
R = TypeVar("R")

_EXISTS: Final = next(spec for spec in all_commands() if spec.name == "exists")
_NOT_HERE: Final = NOT_HERE[1:].decode()

_COMMANDS: Final = 1000
"""Reads that travel as one request: as many as there are keys in a piece of many."""


class Owners:
    """The partitions, by what they own.

    Args:
        groups: the inner stores.
        placement: knows who owns which slot.
        options: how long an owner is searched for.
    """

    def __init__(self, groups: Groups, placement: Placement, options: StoreOptions) -> None:
        self._groups, self._placement, self._options = groups, placement, options

    async def at_owner(self, key: bytes, send: Send) -> bytes:
        """Send something to the owner of a key; return the reply.

        Args:
            key: one of its keys, which have one slot.
            send: called once for each partition that is asked.

        Raises:
            NoLeaderError: no partition has owned the slot in time; nothing was done.
            RequestError: what the inner store raises.
        """
        slot, search = key_slot(key), None
        while True:
            partition, reply = self._placement.owner_of(slot), b""
            if partition is not None:
                reply = await self._ask(partition, send)
                if not reply.startswith(ELSEWHERE):
                    return reply
                if reply.startswith(NOT_HERE):
                    reply = await self._where(partition, key)
            search = search or Search(self._placement, self._options)
            await search.go_on({slot: Astray(partition, _text_of(reply))})

    async def at(self, partition: int, send: Send) -> bytes:
        """Send something without keys to a partition; return the reply.

        Raises:
            NoLeaderError: slots are on their way to it for all the time; nothing was done.
            RequestError: what the inner store raises.
        """
        search = Search(self._placement, self._options)
        while (reply := await self._ask(partition, send)).startswith(ELSEWHERE):
            await search.pause(_text_of(reply), f"partition {partition}")
        return reply

    async def at_each(self, send: Send) -> list[bytes]:
        """Send something without keys to all partitions; return their replies, in order."""
        return await _together(
            lambda partition: self.at(partition, send), range(len(self._placement.map.partitions))
        )

    async def each(
        self, spec: CommandSpec, keys: Mapping[int, Sequence[bytes]]
    ) -> dict[int, resp.Reply]:
        """Run one command for each slot; those of one partition travel together.

        Args:
            spec: of all of them.
            keys: for each slot, the arguments.

        Returns:
            For each slot, the reply; error replies are returned, too.

        Raises:
            RequestError: not all of them were answered.
        """
        search, found = Search(self._placement, self._options), dict[int, resp.Reply]()
        name = spec.name.upper().encode()
        left = {slot: resp.pack((name, *some)) for slot, some in keys.items()}
        while left:
            astray: dict[int, Astray] = {}
            for owner, replies in await self._run_all(spec, left):
                for slot, reply in replies.items():
                    if isinstance(reply, KeyValueError) and is_elsewhere(reply.code):
                        astray[slot] = Astray(owner, str(reply))
                    else:
                        found[slot] = reply
            for slot, (asked, text) in astray.items():
                if asked is not None and text.startswith(_NOT_HERE):
                    where = await self._where(asked, keys[slot][0])
                    astray[slot] = Astray(asked, _text_of(where))
            left = {slot: left[slot] for slot in left if slot not in found}
            if left:
                astray = {slot: astray.get(slot, Astray(None, "")) for slot in left}
                await search.go_on(astray)
        return found

    async def _run_all(
        self, spec: CommandSpec, payloads: Mapping[int, bytes]
    ) -> list[tuple[int, dict[int, resp.Reply]]]:
        """Run the commands of slots with an owner; return each owner and its replies."""
        by_owner: dict[int, dict[int, bytes]] = {}
        for slot, payload in payloads.items():
            owner = self._placement.owner_of(slot)
            if owner is not None:
                by_owner.setdefault(owner, {})[slot] = payload
        owners = [*by_owner]
        replies = await _together(lambda owner: self._run(owner, spec, by_owner[owner]), owners)
        return [*zip(owners, replies, strict=True)]

    async def _run(
        self, partition: int, spec: CommandSpec, payloads: Mapping[int, bytes]
    ) -> dict[int, resp.Reply]:
        """Run the commands of one partition, some at a time."""
        found: dict[int, resp.Reply] = {}
        slots = [*payloads]
        most = BATCH_COMMANDS if spec.kind is Kind.WRITE else _COMMANDS
        for at in range(0, len(slots), most):
            some = slots[at : at + most]
            joined = b"".join(payloads[slot] for slot in some)
            found.update(
                zip(some, await self._replies(partition, spec, joined, len(some)), strict=True)
            )
        return found

    async def _replies(
        self, partition: int, spec: CommandSpec, joined: bytes, count: int
    ) -> list[resp.Reply]:
        reply = await self._ask(partition, lambda kv: kv.send_alone(spec, joined))
        replies = resp.parse_replies_untrusted(reply)
        if len(replies) == 1 and reply.startswith(ELSEWHERE):  # to the request as a whole
            return replies * count
        if len(replies) != count:
            raise UnknownOutcomeError(f"{count} commands were sent, {len(replies)} answered")
        return replies

    async def _where(self, partition: int, key: bytes) -> bytes:
        """Ask a partition where a key is; return its error reply, empty if the key is there."""
        payload = resp.encode_command(["EXISTS", key])
        try:
            reply = await self._ask(partition, lambda kv: kv.send(_EXISTS, payload))
        except KeyValueError as error:  # this user may not ask
            return resp.error(str(error))
        return reply if reply.startswith(b"-") else b""

    async def _ask(self, partition: int, send: Send) -> bytes:
        """Send something to a partition; return the reply, also if it is -MOVED."""
        try:
            return await send(self._groups.of(partition).kv)
        except KeyValueError as error:  # of a request as a whole
            if not is_elsewhere(error.code):
                raise
            return resp.error(str(error))


async def _together(call: Callable[[T], Awaitable[R]], arguments: Sequence[T]) -> list[R]:
    """Make some calls at the same time; return their results in order.

    Raises:
        RequestError: a call has failed. The other ones have ended, too.
    """
    if len(arguments) == 1:
        return [await call(arguments[0])]
    results: dict[int, R] = {}
    failures: list[RequestError] = []

    async def run(at: int) -> None:
        try:
            results[at] = await call(arguments[at])
        except RequestError as error:
            failures.append(error)

    async with anyio.create_task_group() as tasks:
        for at in range(len(arguments)):
            tasks.start_soon(run, at)
    for failure in failures:
        raise failure
    return [results[at] for at in range(len(arguments))]


def _text_of(reply: bytes) -> str:
    return reply[1:].decode("utf-8", "replace").partition("\r\n")[0]
