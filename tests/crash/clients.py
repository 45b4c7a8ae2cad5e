"""The load: clients that write keys of their own, once each, and remember what they were told.

Every write has one of three outcomes. *Acknowledged*: it must be there for ever. *Refused* (the
member said that it was not sent): it must never be there. *Unknown* (anything else): both will
do. A key is never written twice, so what is found says which it was. Besides, each client
counts with INCR, which shows a write that is applied twice, and reads keys that were acknowledged
before it asked: a linearizable read must see them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import attrs
import trio

from quorate.respclient import Reply, RespClient, RespError

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from quorate.node.gateway import MemberAddress

ANSWER_SECONDS: Final = 5.0
MAX_PADDING_BYTES: Final = 2048
REFUSED: Final = "CLUSTERDOWN"
UNKNOWN: Final = "UNKNOWN"


class UnknownOutcomeError(Exception):
    """Nobody knows what became of a command."""


class RefusedError(Exception):
    """The member said that the command has no effect."""


@attrs.define(eq=False)
class Ledger:
    """What all clients were told."""

    acknowledged: dict[bytes, bytes] = attrs.field(factory=dict[bytes, bytes])
    unknown: dict[bytes, bytes] = attrs.field(factory=dict[bytes, bytes])
    refused: dict[bytes, bytes] = attrs.field(factory=dict[bytes, bytes])
    reads: int = 0
    counters: dict[bytes, tuple[int, int]] = attrs.field(factory=dict[bytes, tuple[int, int]])
    """For each counter: how many increments are certain, and how many are possible."""
    violations: list[str] = attrs.field(factory=list[str])


class Client:
    """One client: one command at a time, at some member.

    Args:
        number: which one.
        addresses: the members.
        ledger: where it writes what it was told.
        rng: its own.
    """

    def __init__(
        self, number: int, addresses: Sequence[MemberAddress], ledger: Ledger, rng: random.Random
    ) -> None:
        self._name = b"client-%d" % number
        self._addresses = addresses
        self._ledger = ledger
        self._rng = rng
        self._resp: RespClient | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            for serial in itertools.count():
                await self._set(serial)
                if serial % 4 == 1:
                    await self._increment()
                if serial % 4 == 3:
                    await self._read()
        finally:
            if self._resp:
                self._resp.close()

    async def _command(self, *command: bytes) -> Reply:
        """Send one command.

        Raises:
            RefusedError, UnknownOutcomeError: as they say.
        """
        try:
            with trio.fail_after(ANSWER_SECONDS):
                if self._resp is None:
                    address = self._rng.choice(self._addresses)
                    try:
                        self._resp = await RespClient.connect(address.host, address.client_port)
                    except OSError as error:
                        await trio.sleep(0.01)
                        raise RefusedError from error
                return await self._resp.call(*command)
        except RespError as error:
            code = str(error).partition(" ")[0]
            if code not in {REFUSED, UNKNOWN}:
                self._ledger.violations.append(f"unexpected reply to {command!r:.60}: {error}")
            raise (RefusedError if code == REFUSED else UnknownOutcomeError) from error
        except (OSError, trio.TooSlowError) as error:
            if self._resp:
                self._resp.close()
                self._resp = None
            raise UnknownOutcomeError from error

    async def _set(self, serial: int) -> None:
        key = b"%s:%d" % (self._name, serial)
        value = b"%d:%s" % (serial, b"x" * self._rng.randrange(MAX_PADDING_BYTES))
        outcome = self._ledger.unknown
        outcome[key] = value  # until we know better; a cancelled client never will
        try:
            reply = await self._command(b"SET", key, value)
        except UnknownOutcomeError:
            return
        except RefusedError:
            outcome = self._ledger.refused
        else:
            if reply != b"OK":
                self._ledger.violations.append(f"SET {key!r} was answered with {reply!r:.60}")
                return
            outcome = self._ledger.acknowledged
        del self._ledger.unknown[key]
        outcome[key] = value

    async def _increment(self) -> None:
        key = b"count:%s" % self._name
        certain, possible = self._ledger.counters.get(key, (0, 0))
        self._ledger.counters[key] = (certain, possible + 1)
        try:
            reply = await self._command(b"INCR", key)
        except UnknownOutcomeError:
            return
        except RefusedError:
            self._ledger.counters[key] = (certain, possible)
            return
        if not isinstance(reply, int) or not certain < reply <= possible + 1:
            between = f"{certain + 1} and {possible + 1}"
            self._ledger.violations.append(f"{key!r} became {reply!r}, not between {between}")
            return
        # those of unknown outcome may still come
        self._ledger.counters[key] = (reply, possible + 1)

    async def _read(self) -> None:
        known = self._ledger.acknowledged
        if not known:
            return
        key = self._rng.choice(list(known)[-1000:])
        try:
            reply = await self._command(b"GET", key)
        except (UnknownOutcomeError, RefusedError):
            return
        self._ledger.reads += 1
        if reply != known[key]:
            self._ledger.violations.append(f"acknowledged {key!r} reads as {reply!r:.60}")
