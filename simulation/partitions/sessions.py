"""Clients that append to lists exactly once, while the lists' slots move from group to group.

A client has a session in each group. It is sure of a command's outcome only by the word of the
group that it has asked: a reply, or ``NOTHERE``, which that group keeps like a reply. Then it asks
the next group, under a new stamp. At the end each list must hold every number once, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import KeyValueError, RequestError
from ...keyvalue.protocol.payload import PART
from ..invariants import ViolationError
from ..workloads.base import decode, encode
from .book import NOT_HERE

if TYPE_CHECKING:
    from ...node.requests.request import Stamp
    from .routing import RoutingDoor

LIFE_MS: Final = 86_400_000
"""Timeout of sessions. Clocks are hours off, so with less most of them end early."""
LISTS: Final = 2
ACKNOWLEDGED_EVERY: Final = 20
_NUMBER: Final = b"%06d,"
_NUMBER_BYTES: Final = len(_NUMBER % 0)


@attrs.define(eq=False)
class _Session:
    """A client's session in one group.

    Args:
        session: its id.
        sequence: of the last command.
    """

    session: int
    sequence: int = 0


@attrs.frozen
class Stamped:
    """A command of a session, which a network may deliver once more.

    Args:
        client: number of the client.
        partition: where it was sent.
        payload: its words.
        stamp: its session and sequence.
    """

    client: int
    partition: int
    payload: bytes
    stamp: Stamp


class MovingLists:
    """One client with its lists.

    Args:
        door: its access to all groups.
        sent: receives what it sends.

    Attributes:
        moves: how often a command was sent to another group.
    """

    def __init__(self, door: RoutingDoor, sent: list[Stamped]) -> None:
        self._door = door
        self._sent = sent
        self._sessions: dict[int, _Session] = {}
        self._lists = {self._name(n): 0 for n in range(LISTS)}
        self._count = LISTS
        self._open: tuple[bytes, int, Stamp] | None = None
        self.moves = 0

    async def act(self) -> None:
        """Append the next number to a list; first of all the one whose outcome is open."""
        if self._open is None:
            key = self._door.rng.choice(list(self._lists))
            at = self._door.owner_of(key)
            if (stamp := await self._stamp(at)) is None:
                return
            self._open = (key, at, stamp)
        key, at, stamp = self._open
        payload = encode(b"APPEND", key, _NUMBER % (self._lists[key] + 1))
        self._sent.append(Stamped(self._door.client, at, payload, stamp))
        try:
            reply = await self._door.doors[at].command(payload, stamp=stamp)
        except RequestError:
            return  # the outcome is open
        if reply.startswith(PART):
            return  # nothing was done, and the same stamp may do it yet
        if reply.startswith(NOT_HERE):
            self._door.not_there(key, at)
            self._open = None
            self.moves += 1
            return
        if reply.startswith(b"-NOSESSION "):
            self._begin_anew(key, at)
            return
        self._door.counts["ok"] += 1
        self._lists[key] += 1
        self._open = None
        if reply != b":%d\r\n" % (_NUMBER_BYTES * self._lists[key]):
            raise ViolationError(
                f"MovingLists: {self._lists[key]} of {key!r} at partition {at}, {stamp}: {reply!r}"
            )

    def leave(self) -> None:
        """Leave all lists: they will be deleted."""
        self._open = None
        for key in list(self._lists):
            self._leave(key)

    def _begin_anew(self, key: bytes, partition: int) -> None:
        """Leave a list: a session has timed out, so nobody knows of its last command."""
        del self._sessions[partition]
        self._open = None
        self._leave(key)

    def _leave(self, key: bytes) -> None:
        del self._lists[key]
        self._count += 1
        self._lists[self._name(self._count)] = 0

    def _name(self, n: int) -> bytes:
        return b"once-%d-%d" % (self._door.client, n)

    async def finish(self) -> None:
        """Wait for the open command, and check all lists.

        Raises:
            ViolationError: a list is not what was acknowledged.
        """
        while self._open is not None:
            await self.act()
            await trio.sleep(0.1)
        for key, last in self._lists.items():
            try:
                (found,) = decode(await self._door.query(encode(b"GET", key)))
            except RequestError:
                continue
            if (found or b"") != b"".join(_NUMBER % n for n in range(1, last + 1)):
                raise ViolationError(f"MovingLists: {key!r} of {last} has {found!r:.500}")

    async def _stamp(self, partition: int) -> Stamp | None:
        """Return the stamp of a new command; None if there is no session yet."""
        door = self._door.doors[partition]
        try:
            if partition not in self._sessions:
                reply = await door.command(encode(b"QUORATE.SESSION", b"OPEN", LIFE_MS))
                (session,) = decode(reply)
                assert isinstance(session, int)
                self._sessions[partition] = _Session(session)
            own = self._sessions[partition]
            if own.sequence % ACKNOWLEDGED_EVERY == ACKNOWLEDGED_EVERY - 1:
                words = encode(b"QUORATE.SESSION", b"KEEPALIVE", own.session, own.sequence)
                await door.command(words)
        except (RequestError, KeyValueError):
            return None
        own.sequence += 1
        return (own.session, own.sequence)
