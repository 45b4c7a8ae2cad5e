"""Clients that send everything again until they have an answer, and must see it done once.

Each client has a session and a list of its own, to which it appends the numbers of its commands. So
the reply to each command, the length of the list, is known beforehand. In the end the list holds
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
"""Timeouts of sessions; the short ones end in a storm."""

_NUMBER: Final = b"%06d,"
_NUMBER_BYTES: Final = len(_NUMBER % 0)
_PAUSE_SECONDS: Final = 0.2


@attrs.define(eq=False)
class _Owner:
    """A client's session and its list.

    Args:
        session: the id.
        answered: the last sequence that was answered; the next one may have been sent.
        acknowledged: the last one whose reply was given up.
        sent: the next one was sent.
    """

    session: int
    answered: int = 0
    acknowledged: int = 0
    sent: bool = False

    @property
    def key(self) -> bytes:
        """Of the list."""
        return b"once-%d" % self.session


class Sessions(Workload):
    """A client appends to its lists, exactly once, and looks whether that is so.

    It waits for its answers, however long that takes, so it does nothing else.
    """

    clients: ClassVar[int] = 1

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[int, _Owner] = {}
        self._ended: list[_Owner] = []

    async def act(self, door: Door) -> None:
        """Open a session, or do one thing in it."""
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
        """Have everything answered, and look at all lists."""
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
            return  # if there is one it will time out
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
        """Send again what was answered."""
        reply = await self._ask(door, owner, owner.answered)
        if self._lost(owner, reply) or reply == b":%d\r\n" % (_NUMBER_BYTES * owner.answered):
            return
        if not reply.startswith(b"-FORGOTTEN "):
            raise ViolationError(f"Sessions: {owner} was then told {reply!r}")

    async def _append(self, door: Door, owner: _Owner, *, twice: bool = False) -> None:
        """Send the next one, perhaps twice at once, until it is answered."""
        owner.sent = True
        sequence = owner.answered + 1
        replies: list[bytes] = []

        async def ask() -> None:
            replies.append(await self._ask(door, owner, sequence))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            if twice:
                nursery.start_soon(ask)
        if any([self._lost(owner, reply) for reply in replies]):  # noqa: C419 - all are looked at
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
        """Whether the session is no more."""
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
