"""The load of `quorate torture` with sessions: commands that are sent until answered, applied once.

Each client has its own session and two keys of its own: a counter that it increments, and a list to
which it appends. The values of such keys show whether each command was applied once. Without an
answer in time, the client sends the same sequence again, to any member, even after the leader died.
Sometimes it sends to two members at once, and sometimes it repeats a command that was answered long
ago. No other client writes to its keys, so it knows each reply in advance. At the end its keys must
hold every answered sequence once.

Its commands are in the history, too, each as one operation, however often it was sent.
"""

import math
import random
import time
from typing import Final

import attrs
import trio

from ..client.resp import Reply, RespClient, RespError
from ..histories.history import Operation, Status, Value
from ..keyvalue.retry import Retry, has_no_answer
from .clients import CLIENTS, KEY_OPERATIONS, Clients

__all__ = ["SESSION_CLIENTS", "SessionClients"]

SESSION_CLIENTS: Final = 3
SESSION_MS: Final = 86_400_000
"""Timeout of a session. Smaller: the session may end in an outage, which counts as a violation."""
ANSWER_SECONDS: Final = 1.0
"""Timeout of an answer. Larger than the time that requests are parked: a command would never be
repeated while the first attempt may still be applied."""
FINISH_SECONDS: Final = 60.0
TWICE: Final = 0.2
TWICE_SECONDS: Final = 0.05
AGAIN: Final = 0.1
ACKNOWLEDGE: Final = 0.05
WINDOW: Final = 20
"""Answered sequences up to this far back are repeated. Larger than the number of
replies that members keep: such a repetition would fail."""
_PAUSE_SECONDS: Final = 0.01
"""Pause between attempts. It never grows, since this load wants many repetitions."""


class _ViolationError(Exception):
    """A reply that no member may give. The client ends, since it can predict nothing more."""


@attrs.frozen
class _Command:
    """A command of a session: its sequence, its words, and the expected reply."""

    sequence: int
    words: tuple[bytes, ...]
    reply: int


@attrs.define(eq=False)
class SessionClients:
    """All clients with sessions.

    Args:
        clients: the clients without sessions; their history, keys and violations are used here.
        seed: seed of the clients' choices.

    Attributes:
        answered: number of answered commands.
        sent: number of commands sent, with repetitions.
        expected: the value of each key after all answered commands.
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
        """Finish unanswered commands, after all faults have ended."""
        with trio.move_on_after(FINISH_SECONDS) as waiting:
            async with trio.open_nursery() as nursery:
                for client in self._all:
                    nursery.start_soon(client.finish)
        if waiting.cancelled_caught:
            words = f"a command of a session was not answered within {FINISH_SECONDS:g} s"
            self.clients.violations.append(words)

    def check(self, found: dict[bytes, Reply]) -> list[str]:
        """Return the violations: keys whose final value is not the expected one."""
        return [
            f"session key {key!r} holds {found[key]!r:.60}, expected {right!r:.60}"
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
        """Work until cancelled, or until a member gives a forbidden reply."""
        try:
            while not self._broken:
                await self._step()
        except _ViolationError as violation:
            self._broken = True
            self._owner.clients.violations.append(f"client {self._number}: {violation}")
        finally:
            self._disconnect()

    async def finish(self) -> None:
        """Send the unanswered command until it is answered."""
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
        """Open a session. A session without an answer is abandoned."""
        reply = await self._surely((b"QUORATE.SESSION", b"OPEN", b"%d" % SESSION_MS))
        if not isinstance(reply, int):
            raise _ViolationError(f"a session was opened with {reply!r:.60}")
        return reply

    async def _next(self) -> None:
        """Execute the next command, and record it."""
        command, op, key = self._made()
        clients = self._owner.clients
        result: Value = None
        status: Status = "unknown"  # stays so if the client is cancelled
        start_ns = time.monotonic_ns()
        try:
            await self._answered(command)
            result, status = command.reply, "ok"
        finally:
            args = command.words[2:]
            end_ns = time.monotonic_ns()
            clients.ended(Operation(self._number, op, key, args, result, start_ns, end_ns, status))

    def _made(self) -> tuple[_Command, str, bytes]:
        """Make the next command; from now on it counts as possibly applied."""
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
        """Send a command until it is answered, and record the new value of its key.

        Raises:
            _ViolationError: the answer is wrong.
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
        """Repeat an answered command, and check that the reply is the same."""
        reply = await self._surely(self._stamped(command))
        if reply != command.reply:
            words = b" ".join(self._stamped(command))
            raise _ViolationError(f"{words!r:.80}, repeated, was answered with {reply!r:.60}")

    def _stamped(self, command: _Command) -> tuple[bytes, ...]:
        return (
            b"QUORATE.ONCE",
            b"%d" % (self._session or 0),
            b"%d" % command.sequence,
            *command.words,
        )

    async def _surely(self, words: tuple[bytes, ...]) -> object:
        """Send a command to one member after the other until it is answered; return the reply."""
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
        if isinstance(reply, RespError) and has_no_answer(reply.code):
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
