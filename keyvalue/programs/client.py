"""The key-value store for Python programs: the usual commands as methods.

:class:`KeyValue` works with any :class:`Endpoint`, an object with ``command`` and ``query``: a
node of this process, connections to members, or a bare service in a test. Keys and values are
bytes. Text is accepted and encoded as UTF-8, but replies are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import anyio

from ...errors import (
    ConfigurationError,
    ConflictError,
    KeyValueError,
    OversizedRequestError,
    UnsupportedError,
)
from ...node.requests.request import UNSTAMPED
from ..access.rules import RuleError, check
from ..access.secrets import has_secrets
from ..commands.table import Kind, all_commands
from ..limits import MAX_ARGUMENTS
from ..protocol import resp
from ..protocol.payload import RESP3, TRANSACTION
from ..protocol.resp import word_of
from ..retry import Retry
from .encoding import (
    Argument,
    Text,
    bytes_of,
    command_of,
    decoded,
    expiry_words,
    integer_in,
    integer_of,
    list_of,
    optional_bytes,
    set_words,
    words_of,
)
from .records import in_pieces, record_of
from .transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence

    from ...node.requests.request import Stamp
    from ..commands.table import CommandSpec
    from .gathering import Gathering
    from .records import Record
    from .watch import Watch, WatchSource

__all__ = ["SCAN_COUNT", "Argument", "Endpoint", "KeyValue", "Text"]

T = TypeVar("T")

_UNHASHED: Final = (
    "ERR a password must be hashed here: give $scrypt$... from access.hashing.hash_secret, or "
    "#sha256, in place of >password"
)
SCAN_COUNT: Final = 1000
"""Keys that one request of a walk looks at. Fewer, and a walk takes more round trips; more, and
each holds up other clients for longer."""

_READ: Final = Kind.READ  # enumeration members are slow to look up
_SET: Final = next(spec for spec in all_commands() if spec.name == "set")
_MOST_PAIRS: Final = (MAX_ARGUMENTS - 1) // 2
_SEVERAL: Final = "set fewer keys in each of several calls, which are not one change together"

_FIRST_PAUSE_S: Final = 0.005
"""Of a transaction after its first conflict. Shorter, and those that met meet again; longer, and
one that met another waits for longer than both take."""

_LONGEST_PAUSE_S: Final = 0.5
"""The pause doubles up to this. Shorter, and many transactions on one key keep failing; longer, and
some of them wait although the key is free."""


class Endpoint(Protocol):
    """What a :class:`KeyValue` sends its requests to."""

    def command(
        self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED
    ) -> Coroutine[Any, Any, bytes]:
        """Record, replicate and apply a command; return the reply."""
        ...

    def query(self, payload: bytes, flags: int = 0) -> Coroutine[Any, Any, bytes]:
        """Answer a linearizable read."""
        ...


class KeyValue:
    """The usual commands as methods; all other commands through :meth:`execute`.

    Every method raises :class:`~quorate.errors.KeyValueError` when the store replies with an error.
    It also raises what the endpoint raises: :class:`~quorate.errors.NoLeaderError` (nothing
    happened) or :class:`~quorate.errors.UnknownOutcomeError`. An argument of a wrong type, such as
    None for a key, raises :class:`TypeError`, and nothing is sent. A method that is cancelled while
    its command is under way leaves the outcome unknown.

    Attributes:
        endpoint: executes the requests.
        watches: makes watches; None if there are none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        gathering: Gathering | None = None,
        watches: WatchSource | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.watches = watches
        self._set: Callable[[bytes, bytes], Awaitable[bytes]] = self._set_alone
        if gathering is not None:
            gathering.protect(KeyValue.set)
            self._set = gathering.send

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.endpoint!r}>"

    async def execute(self, *arguments: Argument) -> resp.Reply:
        """Run any command of the state machine (``execute("SET", "k", "v", "EX", 10)``).

        Returns:
            bytes, int, None, or a list of these.

        Raises:
            KeyValueError: the store replied with an error, or only client connections can run this
                command.
        """
        spec, words = command_of(arguments)
        if spec.name == "acl|setuser":
            self._check_rules(words[3:])
        return decoded(await self._send(spec, resp.pack(words)))

    def _check_rules(self, rules: Sequence[bytes]) -> None:
        """Refuse rules of a user that must not be sent."""
        # The port hashes secrets before there is an entry. Here nobody does, and the log would have
        # them for ever, although the state machine refuses them.
        if has_secrets(rules):
            raise KeyValueError(_UNHASHED)
        try:
            check(rules)
        except RuleError as error:  # perhaps a secret without its sign
            raise KeyValueError(f"ERR {error.text.decode('utf-8', 'replace')}") from None

    def _send(self, spec: CommandSpec, payload: bytes) -> Awaitable[bytes]:
        send = self.endpoint.query if spec.kind is _READ else self.endpoint.command
        return send(payload, RESP3)

    def _commit(self, payload: bytes, *, writes: bool) -> Awaitable[bytes]:
        send = self.endpoint.command if writes else self.endpoint.query
        return send(payload, RESP3 | TRANSACTION)

    def _set_alone(self, key: bytes, value: bytes) -> Awaitable[bytes]:
        return self._send(_SET, resp.encode_set(key, value))

    async def get(self, key: Text) -> bytes | None:
        """Return the value of a key; None if the key does not exist."""
        return optional_bytes(await self.execute("GET", word_of(key, "key")))

    async def set(
        self,
        key: Text,
        value: Text,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
    ) -> bool:
        """Set a key.

        Args:
            key: the key.
            value: its value.
            ex: seconds after which it expires.
            px: milliseconds after which it expires.
            nx: only if the key does not exist.
            xx: only if the key exists.

        Returns:
            Whether the key was set.
        """
        if ex is px is None and not (nx or xx):  # the usual form, at a third of the cost
            if not (isinstance(key, bytes) and isinstance(value, bytes)):
                key, value = word_of(key, "key"), word_of(value, "value")
            reply = await self._set(key, value)
            return reply == resp.OK or decoded(reply) is not None
        words = set_words(key, value, ex=ex, px=px)
        words += ["NX"] * bool(nx) + ["XX"] * bool(xx)
        return await self.execute(*words) is not None

    async def compare_and_set(
        self, key: Text, expected: Text | None, new: Text | None, *, px: int | None = None
    ) -> int:
        """Set or delete a key if it has an expected value.

        Args:
            key: the key.
            expected: its value now; None if it must not exist.
            new: its new value; None to delete it.
            px: milliseconds after which it expires; without, it does not expire.

        Returns:
            The log position of the change, which rises from change to change; 0 if the key had
            another value, and nothing was done.
        """
        words: list[Argument] = [word_of(key, "key")]
        words += ["ABSENT"] if expected is None else ["EQUALS", word_of(expected, "expected")]
        words += ["DELETE"] if new is None else ["SET", word_of(new, "new")]
        if px is not None and new is not None:
            words += ["PX", integer_of(px, "px")]
        return integer_in(await self.execute("QUORATE.CAS", *words))

    def watch(self, prefix: Text = b"", *, after: int | None = None) -> Watch:
        """Return the committed changes of the keys that begin with a prefix, in order.

        Args:
            prefix: of the keys.
            after: a log position: every later change is returned. None for the changes from now on.

        Raises:
            ConfigurationError: the position is negative.
            CrossSlotError: with partitions, the keys with the prefix have several slots: it needs
                text in braces, such as ``{order 7}:``.
        """
        if self.watches is None:
            raise UnsupportedError(f"{self.endpoint!r} has no watch")
        if after is not None and integer_of(after, "after") < 0:
            raise ConfigurationError(
                f"after = {after}: expected a log position, 0 or more, or None for the changes "
                "from now on"
            )
        return self.watches.watch(word_of(prefix, "prefix"), -1 if after is None else after)

    async def delete(self, *keys: Text) -> int:
        """Delete keys; return how many of them existed.

        All at once; with partitions, only keys of one slot are. If keys of several slots fail with
        :class:`~quorate.errors.UnknownOutcomeError`, some may be deleted.
        """
        return integer_in(await self.execute("DEL", *words_of(keys)))

    async def increment(self, key: Text, by: int = 1) -> int:
        """Add to a number and return the sum; a key that does not exist counts as 0."""
        amount = integer_of(by, "by")
        return integer_in(await self.execute("INCRBY", word_of(key, "key"), amount))

    async def mget(self, *keys: Text) -> list[bytes | None]:
        """Return the values of several keys at one point of the log.

        Raises:
            CrossSlotError: with partitions, the keys have several slots; see :meth:`get_many`.
        """
        return [
            optional_bytes(value) for value in list_of(await self.execute("MGET", *words_of(keys)))
        ]

    async def get_many(self, keys: Iterable[Text]) -> dict[bytes, bytes]:
        """Return the values of those keys that exist.

        1000 keys at a time are read at one point of the log, fewer if their values are long. With
        partitions each reads its keys at a point of its own log.
        """
        words = words_of(keys)
        found = zip(words, await in_pieces(self._values, words), strict=True)
        return {key: bytes_of(value) for key, value in found if value is not None}

    async def records(self, keys: Iterable[Text]) -> list[Record | None]:
        """Return value, revision and expiry of each key; None for one that does not exist.

        1000 keys at a time are read at one point of the log, fewer if their values are long. With
        partitions each reads its keys at a point of its own log.
        """
        return [record_of(reply) for reply in await in_pieces(self._records, words_of(keys))]

    def _values(self, keys: Sequence[bytes]) -> Awaitable[resp.Reply]:
        return self.execute("MGET", *keys)

    def _records(self, keys: Sequence[bytes]) -> Awaitable[resp.Reply]:
        return self.execute("QUORATE.RECORDS", *keys)

    async def mset(self, values: Mapping[bytes, Text] | Mapping[str, Text]) -> None:
        """Set several keys at once."""
        await self.set_many(values)

    async def set_many(self, values: Mapping[bytes, Text] | Mapping[str, Text]) -> None:
        """Set several keys at once: all of them, or none.

        Raises:
            OversizedRequestError: they are too many, or too long, for one request.
            CrossSlotError: with partitions, the keys have several slots.
        """
        if not isinstance(cast("object", values), Mapping):
            found = f"{values!r:.60}: expected a mapping of keys, found {type(values).__name__}"
            raise TypeError(f"values = {found}")
        words: list[bytes] = []
        for key, value in values.items():
            words += word_of(key, "key"), word_of(value, f"values[{key!r:.60}]")
        if not words:
            return
        if len(values) > _MOST_PAIRS:
            raise OversizedRequestError(
                f"{len(values)} keys to set at once: expected {_MOST_PAIRS} at most; {_SEVERAL}"
            )
        try:
            await self.execute("MSET", *words)
        except OversizedRequestError as error:
            raise OversizedRequestError(f"{error}; or {_SEVERAL}") from error

    async def expire(self, key: Text, seconds: float) -> bool:
        """Set the expiry of a key, in seconds of log time; False if the key does not exist."""
        return await self.execute(*expiry_words(key, seconds)) == 1

    async def ttl_ms(self, key: Text) -> int:
        """Return the remaining lifetime in milliseconds; -1 without expiry, -2 without the key."""
        return integer_in(await self.execute("PTTL", word_of(key, "key")))

    async def position(self, prefix: Text = b"") -> int:
        """Return the log position up to which everything is applied.

        With partitions there is one for each: it is that of the keys with the prefix, which needs
        text in braces, such as ``{order 7}:``. A watch from there on misses nothing.

        Args:
            prefix: of the keys; without partitions it does not matter.
        """
        word_of(prefix, "prefix")
        return integer_in(await self.execute("QUORATE.POSITION"))

    async def scan(self, match: Text = b"*", *, count: int = SCAN_COUNT) -> AsyncIterator[bytes]:
        """Iterate over the keys that match a glob pattern.

        A key that exists throughout is returned at least once; after a change of leader it may be
        returned again. A key that is created or deleted during the iteration may be left out.

        With partitions it walks through all of them, one after the other. If the pattern begins
        with text in braces, as in ``{order 7}:*``, it asks only the one that has such keys.

        Args:
            match: the pattern.
            count: keys that one request looks at.
        """
        cursor, pattern = b"0", word_of(match, "match")
        while True:
            reply = await self.execute("SCAN", cursor, "MATCH", pattern, "COUNT", count)
            place, keys = list_of(reply)
            for key in list_of(keys):
                yield bytes_of(key)
            cursor = bytes_of(place)
            if cursor == b"0":
                return

    async def scan_items(self, match: Text = b"*") -> AsyncIterator[tuple[bytes, bytes]]:
        """Iterate over the keys that match a glob pattern, with their values; see :meth:`scan`.

        Each value is read after its key was found. Keys that are gone by then are left out.
        """
        page: list[bytes] = []
        async for key in self.scan(match):
            page.append(key)
            if len(page) == SCAN_COUNT:
                for item in (await self.get_many(page)).items():
                    yield item
                page.clear()
        for item in (await self.get_many(page)).items():
            yield item

    def transaction(self) -> Transaction:
        """Return a transaction, to be used as an async context manager; see :class:`Transaction`.

        ::

            async with kv.transaction() as t:
                old = await t.get("a")
                t.set("b", old or b"none")

        Raises:
            ConflictError: at the end of the block: a key that it has read was changed before the
                commit, and nothing was done.
            CrossSlotError: in the block, with partitions: the key has another slot than the first
                key of the transaction.
        """
        return Transaction(self.records, self._commit)

    async def transact(
        self,
        body: Callable[[Transaction], Awaitable[T]],
        attempts: int = 10,
        *,
        rng: Random | None = None,
    ) -> T:
        """Run the body of a transaction, again after each conflict; return its result.

        Args:
            body: reads and writes through the transaction that it gets. It runs once for each
                attempt, so it must have no other effects.
            attempts: how often it runs at most.
            rng: draws the pauses between attempts; None for the system's randomness.

        Raises:
            ConflictError: every attempt met a conflict; nothing was done.
        """
        if integer_of(attempts, "attempts") < 1:
            raise ConfigurationError(f"attempts = {attempts}: expected 1 or more")
        rng = rng or SystemRandom()
        retry = Retry(
            anyio.current_time,
            math.inf,
            first_pause_s=_FIRST_PAUSE_S,
            longest_pause_s=_LONGEST_PAUSE_S,
        )
        while True:
            try:
                async with self.transaction() as t:
                    result = await body(t)
            except ConflictError:
                attempts -= 1
                if not attempts:
                    raise
            else:
                return result
            await anyio.sleep(rng.uniform(0, retry.pause_s() or 0))
