"""A lease: a key that belongs to one owner for as long as the owner renews it.

Every recipe rests on this file. A lease is a key with an expiry. It is taken by QUORATE.CAS, which
sets the key only if it is absent. It is renewed and deleted by QUORATE.CAS too, only while the key
still has the owner's value. An owner that dies renews nothing, and the key expires.

Two clocks
==========
The key expires in log time. The owner's program cannot see that moment, so it counts on its own
clock: `ttl_s` from *before* it sent the request, less a margin. From then on it must not believe
that it owns the key, and its block is cancelled. Log time may run slower than the owner's clock;
then the key lives longer, which is harmless. It may jump ahead by 5 s at most, when the leader's
clock is set, or another member with another clock leads. Or somebody may delete the key. Then
another owner may come while our block still runs, until our next renewal fails. No lease can rule
that out, as a program can be suspended between two of its lines. Hence the *fencing token*: the log
position at which the lease was taken. It rises from owner to owner, so a store that remembers the
highest token can refuse late writes. `Lease.fence` does this for transactions of the store itself.

Unknown outcomes
================
A request may be done although its reply is lost, or although its task was cancelled. So each
attempt to take the key writes a value of its own, with a random number, and is remembered until it
is known what came of it. If the key turns out to have such a value, the key is ours: the lease is
taken after all, or, at the end, released. One value for all attempts would not do. An attempt that
is late, and is done after our lease has ended and another owner came and went, would look like the
lease that we still believe in.

The value
=========
``<token> <number> <name>``. The token is 0 in the value that takes the key, since nobody knows the
position yet; it is the revision of the key then. The first renewal writes it into the value,
because renewals change the revision. So everybody can read who owns the key, by which token.
"""

from __future__ import annotations

import os
import re
from contextlib import asynccontextmanager
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Final, NamedTuple, Self, cast

import anyio

from ..errors import (
    ConfigurationError,
    KeyValueError,
    LeaseLostError,
    RequestError,
    UnknownOutcomeError,
)
from ..keyvalue.retry import Retry, check_seconds
from .arguments import check_store
from .background import alongside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..keyvalue.programs.client import KeyValue
    from ..keyvalue.programs.transaction import Transaction

__all__ = [
    "Holder",
    "Lease",
    "holder_of_untrusted",
    "own_name",
]

MIN_TTL_S: Final = 0.1
MAX_TTL_S: Final = 86_400.0

_RENEWALS: Final = 3
"""Renewals within the time of a lease. Fewer, and one lost request ends it. More, and idle locks
load the log."""

_MARGIN: Final = 0.1
"""Part of the time of a lease by which its owner stops early. Smaller, and a block that takes a
moment to end runs into the next owner's. Larger, and short outages end blocks."""

_RELEASE_S: Final = 5.0
"""The end of a block waits for the release at most this long, or for a renewal's interval. Shorter,
and others wait for the expiry after an election. Longer, and a cancelled program ends late."""

_DOUBTFUL: Final = 8
"""Attempts of unknown outcome that are remembered. Fewer, and a key may stay taken by us until it
expires. More, and a release after a long outage takes more requests."""

_TAKEN: Final = "it was deleted or has another owner"
_NAME_BYTES: Final = 1024
_VALUE: Final = re.compile(rb"([0-9]{1,19}) ([0-9a-f]{16}) (.{0,1024})", re.DOTALL)


class Holder(NamedTuple):
    """The owner of a leased key, as everybody can read it.

    Args:
        name: that the owner has given itself.
        token: log position at which it took the key.
        number: random; no two attempts to take a key have the same.
    """

    name: str
    token: int
    number: bytes


class Lease:
    """One owner's lease of one key. Use it once: acquire it, hold it for a block.

    ::

        lease = Lease(kv, b"my:key", ttl_s=10.0)
        async with lease.releasing():
            if await lease.acquire():
                async with lease.held():
                    ...

    Args:
        kv: the store.
        key: to be owned.
        ttl_s: seconds without a renewal after which the key expires.
        name: of the owner, for those who look at the key; None for the host and process.
        rng: makes the random numbers; None for the system's.
        title: of what is leased, for error messages; None for the key.

    Raises:
        ConfigurationError: an argument is out of range, or `kv` is no store.

    Attributes:
        token: log position at which the key was taken: the fencing token. 0 before that.
    """

    def __init__(
        self,
        kv: KeyValue,
        key: bytes,
        *,
        ttl_s: float,
        name: str | None = None,
        rng: Random | None = None,
        title: str | None = None,
    ) -> None:
        check_store(kv)
        check_seconds("ttl_s", ttl_s, MIN_TTL_S, MAX_TTL_S)
        self.key = key
        self.ttl_s = ttl_s
        self.name = own_name() if name is None else name
        self.title = f"the lease of {key!r:.300}" if title is None else title
        self.token = 0
        self.kv = kv
        self.rng = rng or SystemRandom()
        self._encoded_name = _encoded(self.name)
        self._values: list[bytes] = []  # of the key, one of which it has while it is ours
        self._doubtful: list[bytes] = []  # of attempts whose outcome is unknown
        self._ends_at = 0.0
        self._renew_at = 0.0
        self._block: anyio.CancelScope | None = None
        self._gone = ""  # how it was lost, if it was not by its time
        self._trouble: RequestError | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.title}, token {self.token}>"

    @property
    def lost(self) -> bool:
        """Whether the key may belong to somebody else by now."""
        return bool(self._gone) or anyio.current_time() >= self._ends_at

    # --- taking it

    async def acquire(self) -> bool:
        """Try once to take the key; return whether it is ours.

        Raises:
            UnknownOutcomeError: it may be ours. The next call finds out; `release` gives it up.
            RequestError: it was not taken.
        """
        if (self._doubtful or self._values) and await self._recognise():
            return not self.lost
        value = b"0 %016x %b" % (self.rng.getrandbits(64), self._encoded_name)
        # Noted before it is sent: if this task is cancelled, it may be done all the same.
        self._doubtful = [*self._doubtful, value][-_DOUBTFUL:]
        sent_at = anyio.current_time()
        try:
            token = await self.kv.compare_and_set(self.key, None, value, px=self._ttl_ms)
        except UnknownOutcomeError:
            raise
        except RequestError:  # it says that nothing was done
            self._doubtful.remove(value)
            raise
        self._doubtful.remove(value)
        if not token:
            return False
        self.token, self._values = token, [value]
        self._extended(sent_at)
        # The reply may come so late that little of the lease is left, or nothing. So may the one to
        # the renewal; then the next call finds the key to be ours, and renews it once more.
        in_time = anyio.current_time() < self._renew_at or await self._renew()
        return in_time and not self.lost

    def tried(self, holder: Holder) -> bool:
        """Whether an owner is this one, by an attempt whose outcome is unknown, or by its lease."""
        return any(
            value.split(b" ", 2)[1] == holder.number for value in self._doubtful + self._values
        )

    async def _recognise(self) -> bool:
        """Look whether an earlier attempt has taken the key; then renew it."""
        (record,) = await self.kv.records([self.key])
        if record is not None and record.value in self._doubtful:
            self._doubtful.remove(record.value)
            self._values, self.token = [record.value], record.revision
        elif record is None or record.value not in self._values:
            self._values = []
            return False
        return await self._renew()

    async def _renew(self) -> bool:
        """Extend the lease by its time; return False if the key is not ours any more.

        Raises:
            RequestError: it is unknown. Calling it again is safe.
        """
        _, number, name = self._values[0].split(b" ", 2)
        renewed = b"%d %b %b" % (self.token, number, name)
        # The first renewal changes the value. If its reply is lost, the key has either one.
        if renewed not in self._values:
            self._values.append(renewed)
        for value in list(self._values):
            sent_at = anyio.current_time()
            if await self.kv.compare_and_set(self.key, value, renewed, px=self._ttl_ms):
                self._values = [renewed]
                self._extended(sent_at)
                return True
        self._values = []
        return False

    def _extended(self, sent_at: float) -> None:
        # A block that is being cancelled never counts as one that came to its end. Its last renewal
        # may be answered in that very moment, or while it cleans up: the lease stays lost.
        if self._block is not None and self._block.cancel_called:
            return
        self._ends_at = sent_at + self.ttl_s * (1 - _MARGIN)
        self._renew_at = sent_at + self.ttl_s / _RENEWALS
        self._trouble = None
        if self._block is not None:
            self._block.deadline = self._ends_at

    @property
    def _ttl_ms(self) -> int:
        return round(self.ttl_s * 1000)

    # --- holding it

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[Self]:
        """Renew the lease as long as the block runs, and release it then; see `kept`."""
        async with self.releasing(), self.kept():
            yield self

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[Self]:
        """Renew the lease as long as the block runs, and leave it to the caller then.

        The block is cancelled when the lease is lost. It must not outlive that: what it does in a
        shielded scope, or without waiting, is not stopped.

        Raises:
            LeaseLostError: the lease was lost before the block ended. If the block has raised an
                error of its own, that one is raised, with a note.
        """
        assert self._values, f"{self!r} is not ours"
        if self.lost:  # what came between took too long; the block would run to its first wait
            raise LeaseLostError(self._loss())
        self._block = block = anyio.CancelScope(deadline=self._ends_at)
        try:
            async with alongside(self._keep):
                with block:
                    yield self
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:
            if self.lost and not isinstance(error, LeaseLostError):
                error.add_note(self._loss())
            raise
        if self.lost:
            raise LeaseLostError(self._loss()) from self._trouble

    async def _keep(self) -> None:
        """Renew the lease in time; end the block when that is not possible any more."""
        while not self.lost:
            await anyio.sleep_until(self._renew_at)
            # A request that hangs must not keep the next one from being sent.
            self._renew_at = anyio.current_time() + self.ttl_s / _RENEWALS
            with anyio.CancelScope(deadline=self._renew_at):
                try:
                    self._gone = "" if await self._renew() else _TAKEN
                except RequestError as error:
                    self._trouble = error
                    self._renew_at = anyio.current_time() + self.ttl_s * _MARGIN
        assert self._block is not None
        self._block.cancel()

    def _loss(self, how: str = "") -> str:
        how = how or self._gone or "it was not renewed in time"
        return f"{self.title}, token {self.token}, was lost: {how}"

    async def fence(self, transaction: Transaction) -> None:
        """Have a transaction fail unless the lease is still held when it commits.

        ::

            async def body(t: Transaction) -> None:
                await held.fence(t)
                t.set("balance", new)

            await kv.transact(body)

        A renewal between this and the commit is a conflict, too. `KeyValue.transact` runs the body
        again then.

        Raises:
            LeaseLostError: the lease is lost already.
        """
        if self.lost:
            raise LeaseLostError(self._loss())
        before = list(self._values)  # a renewal may replace the value while it is read
        value = await transaction.get(self.key)
        if self.lost:
            raise LeaseLostError(self._loss())
        if value not in before + self._values:
            raise LeaseLostError(self._loss(_TAKEN))

    # --- giving it up

    @asynccontextmanager
    async def releasing(self) -> AsyncGenerator[None]:
        """Release the lease after the block, whether it was acquired in there or not."""
        try:
            yield
        finally:
            await self.release()

    async def release(self) -> None:
        """Delete the key if it is ours, or if an attempt of unknown outcome has made it ours.

        It is shielded from cancellation, and takes 5 s or a third of `ttl_s` at most. After that
        the key is left to its expiry.
        """
        values, self._values, self._doubtful = [*self._values, *self._doubtful], [], []
        self._gone = self._gone or "it was released"
        with anyio.move_on_after(min(_RELEASE_S, self.ttl_s / _RENEWALS), shield=True) as scope:
            for value in values:
                if await self._deleted(value, Retry(anyio.current_time, scope.deadline)):
                    return

    async def _deleted(self, value: bytes, retry: Retry) -> bool:
        while True:
            try:
                return await self.kv.compare_and_set(self.key, value, None) > 0
            except KeyValueError:
                return False  # it would be the same again
            except RequestError:
                pause = retry.pause_s()
            if pause is None:
                return False
            await anyio.sleep(pause)


def own_name() -> str:
    """Return the host and the process: the name of an owner that has given itself none."""
    return f"{os.uname().nodename}:{os.getpid()}"


def _encoded(name: str) -> bytes:
    """Return the bytes of an owner's name."""
    text = isinstance(cast("object", name), str)
    encoded = name.encode(errors="replace") if text else b""
    if not text or len(encoded) > _NAME_BYTES:
        raise ConfigurationError(
            f"name = {name!r:.60}: expected a str of at most {_NAME_BYTES} bytes in UTF-8"
        )
    return encoded


def holder_of_untrusted(value: bytes, revision: int) -> Holder:
    """Decode the value of a leased key.

    A value that no lease has written is an owner, too: other clients may take the key in their own
    way. The value is its name then, and the revision its token.

    Args:
        value: of the key.
        revision: of the key.
    """
    found = _VALUE.fullmatch(value)
    if found is None:
        return Holder(value[:_NAME_BYTES].decode("utf-8", "replace"), revision, value)
    token = int(found[1]) or revision
    return Holder(found[3].decode("utf-8", "replace"), token, found[2])
