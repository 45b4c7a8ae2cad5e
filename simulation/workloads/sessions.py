"""Clients with sessions: they repeat commands until answered, and each must be applied once.

Each client has its own session and its own list, to which it appends the numbers of its commands.
So the client knows each reply, the length of the list, in advance. At the end, the list must hold
every number once, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import attrs
import trio

from ...errors import RequestError
from ..invariants import ViolationError
from .base import Workload, decode, encode

if TYPE_CHECKING:
    from ..door import Door

LIVES_MS: Final = (1000, 5000, 60_000)
"""Timeouts of sessions; sessions with a short one end during a storm."""

_NUMBER: Final = b"%06d,"
_NUMBER_BYTES: Final = len(_NUMBER % 0)
_PAUSE_SECONDS: Final = 0.2


@attrs.define(eq=False)
class _Owner:
    """A client's session and its list.

    Args:
        session: id of the session.
        answered: the last sequence that was answered; the next one may have been sent.
        acknowledged: the last sequence whose reply the client has released.
        sent: whether the next sequence was sent.
    """

    session: int
    answered: int = 0
    acknowledged: int = 0
    sent: bool = False

    @property
    def key(self) -> bytes:
        """Return the key of the list."""
        return b"once-%d" % self.session


class Sessions(Workload):
    """A client appends to its lists, and checks that each command was applied once.

    It waits for its answers without a limit, so it has no other workload.
    """

    clients: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[int, _Owner] = {}
        self._ended: list[_Owner] = []

    async def act(self, door: Door) -> None:
        """Open a session, or execute one operation in it."""
        owner = self._owners.get(door.client)
        chance = door.rng.random()
        if owner is None:
            await self._open(door)
        elif owner.answered and chance < 0.15:
            await self._acknowledge(door, owner)
        elif owner.answered and chance < 0.3:
            await self._repeat(door, owner)
        elif chance < 0.33:
            await self._close(door, owner)
        else:
            await self._append(door, owner, twice=chance < 0.5)

    async def finish(self, door: Door) -> None:
        """Wait for all answers, and check all lists."""
        for owner in list(self._owners.values()):
            if owner.sent:
                await self._append(door, owner)
        for owner in [*self._owners.values(), *self._ended]:
            await self._look(door, owner)
        self._ended.clear()

    async def _open(self, door: Door) -> None:
        words = encode(b"QUORATE.SESSION", b"OPEN", door.rng.choice(LIVES_MS))
        try:
            (session,) = decode(await door.command(words))
        except RequestError:
            return  # a session that was opened without an answer will time out
        assert isinstance(session, int)
        self._owners[door.client] = _Owner(session)

    async def _acknowledge(self, door: Door, owner: _Owner) -> None:
        words = encode(b"QUORATE.SESSION", b"KEEPALIVE", owner.session, owner.answered)
        try:
            reply = await door.command(words)
        except RequestError:
            return
        if not self._lost(owner, reply):
            owner.acknowledged = owner.answered

    async def _close(self, door: Door, owner: _Owner) -> None:
        words = encode(b"QUORATE.SESSION", b"CLOSE", owner.session)
        try:
            await door.command(words)
        except RequestError:
            return
        self._end(owner)

    async def _repeat(self, door: Door, owner: _Owner) -> None:
        """Repeat an answered command."""
        reply = await self._ask(door, owner, owner.answered)
        if self._lost(owner, reply) or reply == b":%d\r\n" % (_NUMBER_BYTES * owner.answered):
            return
        if not reply.startswith(b"-FORGOTTEN "):
            raise ViolationError(f"Sessions: {owner} repeated a command and received {reply!r}")

    async def _append(self, door: Door, owner: _Owner, *, twice: bool = False) -> None:
        """Send the next command, perhaps twice at once, until it is answered."""
        owner.sent = True
        sequence = owner.answered + 1
        replies: list[bytes] = []

        async def ask() -> None:
            replies.append(await self._ask(door, owner, sequence))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            if twice:
                nursery.start_soon(ask)
        if any([self._lost(owner, reply) for reply in replies]):  # noqa: C419 - checks every reply
            return
        if set(replies) != {b":%d\r\n" % (_NUMBER_BYTES * sequence)}:
            raise ViolationError(f"Sessions: {sequence} of {owner} was answered with {replies}")
        owner.answered, owner.sent = sequence, False

    async def _ask(self, door: Door, owner: _Owner, sequence: int) -> bytes:
        words = encode(b"APPEND", owner.key, _NUMBER % sequence)
        while True:
            try:
                return await door.command(words, stamp=(owner.session, sequence))
            except RequestError:
                await trio.sleep(_PAUSE_SECONDS)

    def _lost(self, owner: _Owner, reply: bytes) -> bool:
        """Return whether the session has ended."""
        if not reply.startswith(b"-NOSESSION "):
            return False
        self._end(owner)
        return True

    def _end(self, owner: _Owner) -> None:
        for client, each in list(self._owners.items()):
            if each is owner:
                self._ended.append(self._owners.pop(client))

    async def _look(self, door: Door, owner: _Owner) -> None:
        try:
            (found,) = decode(await door.query(encode(b"GET", owner.key)))
        except RequestError:
            return
        held = found or b""
        allowed = [owner.answered, owner.answered + 1] if owner.sent else [owner.answered]
        if held not in [b"".join(_NUMBER % n for n in range(1, last + 1)) for last in allowed]:
            raise ViolationError(f"Sessions: {owner} has {held!r:.500}")
