"""The load of `quorate torture` in sessions: commands that must be done once, sent until answered.

Each client has a session and keys of its own: a counter that it increments and a list to which it
appends. Such commands show for ever after whether they were done once. Without an answer in time,
and through the death of any leader, it sends the same sequence again, to whichever member; at times
to two at once, and at times although it was answered long ago. Nobody else writes to its keys, so
it knows each reply beforehand; and in the end its keys hold every answered sequence, once.

What it does is in the history, too. There a command is one operation, however often it was sent.
"""

import math
import random
import time
from typing import Final

import attrs
import trio

from ..client.resp import Reply, RespClient, RespError
from ..histories.history import Operation, Status, Value
from ..keyvalue.retry import Retry
from .clients import CLIENTS, KEY_OPERATIONS, Clients

__all__ = ["SESSION_CLIENTS", "SessionClients"]

SESSION_CLIENTS: Final = 3
SESSION_MS: Final = 86_400_000
"""Longer than any outage: a session that ends by itself would be a violation."""
ANSWER_SECONDS: Final = 1.0
"""Shorter than requests are parked: a command is sent again while the first may still be done."""
FINISH_SECONDS: Final = 60.0
TWICE: Final = 0.2
TWICE_SECONDS: Final = 0.05
AGAIN: Final = 0.1
ACKNOWLEDGE: Final = 0.05
WINDOW: Final = 20
"""So far back an answered sequence is sent again; members keep more replies than that."""
_PAUSE_SECONDS: Final = 0.01
"""Between attempts, always the same: what is repeated too often is what this load looks for."""
_NO_ANSWER: Final = frozenset({"UNKNOWN", "CLUSTERDOWN"})


class _ViolationError(Exception):
    """A reply that no member may give: the client ends, for nothing that it expects is true."""


@attrs.frozen
class _Command:
    """A command of a session: its sequence, its words, and the only right reply."""

    sequence: int
    words: tuple[bytes, ...]
    reply: int


@attrs.define(eq=False)
class SessionClients:
    """All clients with sessions.

    Args:
        clients: those without, whose history, keys and violations they share.
        seed: of their choices.

    Attributes:
        answered: how many commands were answered.
        sent: how often commands were sent.
        expected: what each key holds by what was answered.
    """

    clients: Clients
    seed: int
    answered: int = 0
    sent: int = 0
    expected: dict[bytes, bytes] = attrs.field(factory=dict[bytes, bytes])
    _all: list["_SessionClient"] = attrs.field(factory=list["_SessionClient"])

    def __attrs_post_init__(self) -> None:
        for number in range(SESSION_CLIENTS):
            rng = random.Random(f"{self.seed}/session/{number}")  # noqa: S311 - no secret
            self._all.append(_SessionClient(self, CLIENTS + 1 + number, rng))

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            for client in self._all:
                nursery.start_soon(client.run)

    async def finish(self) -> None:
        """Have what was under way answered, once all members are well."""
        with trio.move_on_after(FINISH_SECONDS) as waiting:
            async with trio.open_nursery() as nursery:
                for client in self._all:
                    nursery.start_soon(client.finish)
        if waiting.cancelled_caught:
            words = f"a command of a session is not answered after {FINISH_SECONDS:g} s"
            self.clients.violations.append(words)

    def check(self, found: dict[bytes, Reply]) -> list[str]:
        """Say which keys do not hold just what was answered, given what was read in the end."""
        return [
            f"session key {key!r} holds {found[key]!r:.60}, and not {right!r:.60}"
            for key, right in self.expected.items()
            if found[key] != right
        ]


class _SessionClient:
    """One client: one command at a time, sent until it is answered."""

    def __init__(self, owner: SessionClients, number: int, rng: random.Random) -> None:
        self._owner = owner
        self._number = number
        self._rng = rng
        self._resp: RespClient | None = None
        self._session: int | None = None
        self._pending: _Command | None = None
        self._done: list[_Command] = []
        self._sequence = 0
        self._broken = False

    async def run(self) -> None:
        """Work until cancelled, or until a member has said what it may not."""
        try:
            while not self._broken:
                await self._step()
        except _ViolationError as violation:
            self._broken = True
            self._owner.clients.violations.append(f"client {self._number}: {violation}")
        finally:
            self._disconnect()

    async def finish(self) -> None:
        """Send what was under way until it is answered."""
        try:
            if self._pending is not None and not self._broken:
                await self._answered(self._pending)
        except _ViolationError as violation:
            self._owner.clients.violations.append(f"client {self._number}: {violation}")
        finally:
            self._disconnect()

    async def _step(self) -> None:
        if self._session is None:
            self._session = await self._open()
            return
        chance = self._rng.random()
        if self._done and chance < AGAIN:
            await self._again(self._rng.choice(self._done))
        elif self._done and chance < AGAIN + ACKNOWLEDGE:
            words = (b"QUORATE.SESSION", b"KEEPALIVE", b"%d" % self._session)
            reply = await self._surely((*words, b"%d" % self._done[-1].sequence))
            if reply != b"OK":
                raise _ViolationError(f"a session was kept alive with {reply!r:.60}")
            self._done.clear()
        else:
            await self._next()

    async def _open(self) -> int:
        """Open a session; one that nobody answered for is left to itself."""
        reply = await self._surely((b"QUORATE.SESSION", b"OPEN", b"%d" % SESSION_MS))
        if not isinstance(reply, int):
            raise _ViolationError(f"a session was opened with {reply!r:.60}")
        return reply

    async def _next(self) -> None:
        """Do the next command, and write it down."""
        command, op, key = self._made()
        clients = self._owner.clients
        result: Value = None
        status: Status = "unknown"  # a client that is cancelled does not know yet
        start_ns = time.monotonic_ns()
        try:
            await self._answered(command)
            result, status = command.reply, "ok"
        finally:
            args = command.words[2:]
            end_ns = time.monotonic_ns()
            clients.ended(Operation(self._number, op, key, args, result, start_ns, end_ns, status))

    def _made(self) -> tuple[_Command, str, bytes]:
        """Make the next command; from then on it may have been done."""
        number, kind = self._sequence + 1, self._rng.choice(("counter", "list"))
        key = b"once-%d-%b-%d" % (self._number, kind.encode(), number // KEY_OPERATIONS)
        held = self._owner.expected.get(key, b"")
        self._owner.clients.keys[key] = None
        if kind == "counter":
            made = _Command(number, (b"INCR", key), int(held or 0) + 1)
        else:
            item = b"%d," % number
            made = _Command(number, (b"APPEND", key, item), len(held) + len(item))
        self._sequence, self._pending = number, made
        return made, made.words[0].decode().lower(), key

    async def _answered(self, command: _Command) -> None:
        """Send a command until it is answered, and note what its key holds then.

        Raises:
            _ViolationError: the answer is not the right one.
        """
        replies: list[object] = []

        async def second() -> None:
            await trio.sleep(self._rng.uniform(0.0, TWICE_SECONDS))
            other = await self._connected()
            if other is not None:
                try:
                    replies.append(await self._attempt(other, self._stamped(command)))
                finally:
                    other.close()

        async with trio.open_nursery() as nursery:
            if self._rng.random() < TWICE:
                nursery.start_soon(second)
            replies.append(await self._surely(self._stamped(command)))
        for reply in replies:
            if reply not in {command.reply, None}:
                words = b" ".join(self._stamped(command))
                raise _ViolationError(f"{words!r:.80} was answered with {reply!r:.60}")
        _, key, *item = command.words
        held = self._owner.expected.get(key, b"")
        self._owner.expected[key] = held + item[0] if item else b"%d" % command.reply
        self._owner.answered += 1
        self._pending = None
        self._done = [*self._done[1 - WINDOW :], command]

    async def _again(self, command: _Command) -> None:
        """Send again what was answered; that is answered in the same way."""
        reply = await self._surely(self._stamped(command))
        if reply != command.reply:
            words = b" ".join(self._stamped(command))
            raise _ViolationError(f"{words!r:.80}, once more, was answered with {reply!r:.60}")

    def _stamped(self, command: _Command) -> tuple[bytes, ...]:
        return (
            b"QUORATE.ONCE",
            b"%d" % (self._session or 0),
            b"%d" % command.sequence,
            *command.words,
        )

    async def _surely(self, words: tuple[bytes, ...]) -> object:
        """Send a command to one member after the other until it is answered; return that."""
        retry = Retry(
            trio.current_time,
            math.inf,
            first_pause_s=_PAUSE_SECONDS,
            longest_pause_s=_PAUSE_SECONDS,
        )
        while True:
            if self._resp is None:
                self._resp = await self._connected()
            if self._resp is not None:
                reply = await self._attempt(self._resp, words)
                if reply is not None:
                    return reply
                self._disconnect()
            await trio.sleep(retry.pause_s() or 0)

    async def _attempt(self, resp: RespClient, words: tuple[bytes, ...]) -> object:
        """Send a command once; None if there is no answer yet."""
        self._owner.sent += 1
        reply: Reply | RespError = None
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                (reply,) = await resp.pipeline([words])
            except OSError:
                return None
        if isinstance(reply, RespError) and reply.code in _NO_ANSWER:
            return None
        return reply

    async def _connected(self) -> RespClient | None:
        address = self._rng.choice(self._owner.clients.addresses)
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                return await RespClient.connect(address.host, address.client_port)
            except OSError:
                pass
        return None

    def _disconnect(self) -> None:
        if self._resp is not None:
            self._resp.close()
            self._resp = None
