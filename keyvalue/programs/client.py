"""The key-value store for a Python program that embeds a member; no socket is involved.

:class:`KeyValue` works with any :class:`Endpoint`, an object with ``command`` and ``query``: a
node, or a bare service in a test. Keys and values are bytes. Text is accepted and encoded as UTF-8,
but replies are bytes.
"""

from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol, TypeAlias, cast

import trio

from ...errors import KeyValueError, UnsupportedError
from ...node.requests.request import UNSTAMPED, Stamp
from ..access.rules import RuleError, check
from ..access.secrets import has_secrets
from ..commands.table import CommandSpec, Kind, all_commands, fault, resolve
from ..protocol import resp
from ..protocol.payload import RESP3
from ..protocol.resp import word_of
from .gathering import Gathering
from .watch import Watch, WatchSource

Text: TypeAlias = bytes | str
Argument: TypeAlias = bytes | str | int | float

_UNHASHED: Final = (
    "ERR a password must be hashed here: give $scrypt$... from access.hashing.hash_secret, or "
    "#sha256, in place of >password"
)
_SCAN_COUNT: Final = 1000
_READ: Final = Kind.READ  # enumeration members are slow to look up
_SET: Final = next(spec for spec in all_commands() if spec.name == "set")


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
    """

    def __init__(
        self,
        endpoint: Endpoint,
        gathering: Gathering | None = None,
        watches: WatchSource | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._watches = watches
        self._set = self._set_alone if gathering is None else gathering.send

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
        words = resp.words_of(arguments)
        spec = resolve(words)
        if spec is None or spec.kind is Kind.CONNECTION:
            trouble = fault(words) or b"ERR this command is for client connections"
            raise KeyValueError(trouble.decode("utf-8", "replace"))
        # The port hashes secrets before there is an entry. Here nobody does, and the log would have
        # them for ever, although the state machine refuses them.
        if spec.name == "acl|setuser":
            if has_secrets(words[3:]):
                raise KeyValueError(_UNHASHED)
            try:
                check(words[3:])
            except RuleError as error:  # perhaps a secret without its sign
                raise KeyValueError(f"ERR {error.text.decode('utf-8', 'replace')}") from None
        return _decoded(await self._send(spec, resp.pack(words)))

    def _send(self, spec: CommandSpec, payload: bytes) -> Awaitable[bytes]:
        send = self.endpoint.query if spec.kind is _READ else self.endpoint.command
        return send(payload, RESP3)

    def _set_alone(self, key: bytes, value: bytes) -> Awaitable[bytes]:
        return self._send(_SET, resp.encode_set(key, value))

    async def get(self, key: Text) -> bytes | None:
        """Return the value of a key; None if the key does not exist."""
        return _optional(await self.execute("GET", word_of(key, "key")))

    # Ctrl-C must not come between the registration of a gathered SET and its wait.
    @trio.lowlevel.enable_ki_protection
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
            return reply == resp.OK or _decoded(reply) is not None
        options: list[Argument] = []
        if ex is not None:
            options += ["EX", _integer_of(ex, "ex")]
        if px is not None:
            options += ["PX", _integer_of(px, "px")]
        options += ["NX"] * bool(nx) + ["XX"] * bool(xx)
        words = word_of(key, "key"), word_of(value, "value")
        return await self.execute("SET", *words, *options) is not None

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
            words += ["PX", _integer_of(px, "px")]
        return _integer(await self.execute("QUORATE.CAS", *words))

    def watch(self, prefix: Text = b"", *, after: int | None = None) -> Watch:
        """Return the committed changes of the keys that begin with a prefix, in order.

        Args:
            prefix: of the keys.
            after: a log position: every later change is returned. None for the changes from now on.
        """
        if self._watches is None:
            raise UnsupportedError(f"{self.endpoint!r} has no watch")
        place = -1 if after is None else _integer_of(after, "after")
        return self._watches.watch(word_of(prefix, "prefix"), place)

    async def delete(self, *keys: Text) -> int:
        """Delete keys; return how many of them existed."""
        return _integer(await self.execute("DEL", *_words_of(keys)))

    async def increment(self, key: Text, by: int = 1) -> int:
        """Add to a number and return the sum; a key that does not exist counts as 0."""
        amount = _integer_of(by, "by")
        return _integer(await self.execute("INCRBY", word_of(key, "key"), amount))

    async def mget(self, *keys: Text) -> list[bytes | None]:
        """Return the values of several keys at one point of the log."""
        return [_optional(value) for value in _list(await self.execute("MGET", *_words_of(keys)))]

    async def mset(self, values: Mapping[bytes, Text] | Mapping[str, Text]) -> None:
        """Set several keys at once."""
        if not isinstance(cast("object", values), Mapping):
            found = f"{values!r:.60}: expected a mapping of keys, found {type(values).__name__}"
            raise TypeError(f"values = {found}")
        words: list[bytes] = []
        for key, value in values.items():
            words += word_of(key, "key"), word_of(value, f"values[{key!r:.60}]")
        await self.execute("MSET", *words)

    async def expire(self, key: Text, seconds: float) -> bool:
        """Set the expiry of a key, in seconds of log time; False if the key does not exist."""
        if isinstance(seconds, bool) or not isinstance(cast("object", seconds), int | float):
            found = f"{seconds!r:.60}: expected a number, found {type(seconds).__name__}"
            raise TypeError(f"seconds = {found}")
        words = word_of(key, "key"), round(seconds * 1000)
        return await self.execute("PEXPIRE", *words) == 1

    async def ttl_ms(self, key: Text) -> int:
        """Return the remaining lifetime in milliseconds; -1 without expiry, -2 without the key."""
        return _integer(await self.execute("PTTL", word_of(key, "key")))

    async def scan(self, match: Text = b"*") -> AsyncIterator[bytes]:
        """Iterate over the keys that match a glob pattern.

        A key that exists throughout is returned at least once; after a change of leader it may be
        returned again. A key that is created or deleted during the iteration may be left out.
        """
        cursor, pattern = b"0", word_of(match, "match")
        while True:
            reply = await self.execute("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
            place, keys = _list(reply)
            for key in _list(keys):
                yield _bytes(key)
            cursor = _bytes(place)
            if cursor == b"0":
                return


def _words_of(keys: Iterable[object]) -> list[bytes]:
    return [word_of(key, f"keys[{at}]") for at, key in enumerate(keys)]


def _integer_of(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        found = f"{value!r:.60}: expected an integer, found {type(value).__name__}"
        raise TypeError(f"{name} = {found}")
    return value


def _decoded(replies: bytes) -> resp.Reply:
    """Decode the single reply of an endpoint; raise it if it is an error."""
    (reply,) = resp.parse_replies_untrusted(replies)
    if isinstance(reply, KeyValueError):
        raise reply
    return reply


def _integer(reply: resp.Reply) -> int:
    assert isinstance(reply, int), f"expected an integer, got {reply!r}"
    return reply


def _bytes(reply: resp.Reply) -> bytes:
    assert isinstance(reply, bytes), f"expected a string, got {reply!r}"
    return reply


def _optional(reply: resp.Reply) -> bytes | None:
    return None if reply is None else _bytes(reply)


def _list(reply: resp.Reply) -> list[resp.Reply]:
    assert isinstance(reply, list), f"expected an array, got {reply!r}"
    return reply
