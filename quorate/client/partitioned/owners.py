"""Sends commands to the partitions that own their slots, wherever these are by now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import anyio

from ...errors import KeyValueError, RequestError, UnknownOutcomeError
from ...keyvalue.commands.table import Kind
from ...keyvalue.protocol import resp
from ..batches import BATCH_COMMANDS
from .search import ELSEWHERE, Search, is_elsewhere

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

    async def at_owner(self, slot: int, send: Send) -> bytes:
        """Send something to the owner of a slot; return the reply.

        Args:
            slot: that of all keys.
            send: called once for each partition that is asked.

        Raises:
            NoLeaderError: no partition has owned the slot in time; nothing was done.
            RequestError: what the inner store raises.
        """
        search = None
        while True:
            partition, text = self._placement.owner_of(slot), ""
            if partition is not None:
                reply = await self._ask(partition, send)
                if not reply.startswith(ELSEWHERE):
                    return reply
                text = _text_of(reply)
            search = search or Search(self._placement, self._options)
            await search.go_on(slot, partition, text)

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

    async def each(self, spec: CommandSpec, payloads: Mapping[int, bytes]) -> dict[int, resp.Reply]:
        """Run one command for each slot; those of one partition travel together.

        Args:
            spec: of all of them.
            payloads: for each slot, the encoded command.

        Returns:
            For each slot, the reply; error replies are returned, too.

        Raises:
            RequestError: not all of them were answered.
        """
        search = Search(self._placement, self._options)
        left, found = dict(payloads), dict[int, resp.Reply]()
        while True:
            by_owner: dict[int | None, dict[int, bytes]] = {}
            for slot, payload in left.items():
                by_owner.setdefault(self._placement.owner_of(slot), {})[slot] = payload
            astray: dict[int, tuple[int | None, str]] = {}
            astray.update(dict.fromkeys(by_owner.pop(None, ()), (None, "")))

            async def run(owner: int | None) -> dict[int, resp.Reply]:
                assert owner is not None
                return await self._run(owner, spec, by_owner[owner])  # noqa: B023 - awaited here

            owners = [*by_owner]
            for owner, replies in zip(owners, await _together(run, owners), strict=True):
                for slot, reply in replies.items():
                    if isinstance(reply, KeyValueError) and is_elsewhere(reply.code):
                        astray[slot] = owner, str(reply)
                    else:
                        found[slot] = reply
            if not astray:
                return found
            left = {slot: left[slot] for slot in astray}
            await search.go_on_with(astray)

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
