"""RESP, the Redis protocol: encoders of replies, and the way back.

**Encoders** are small pure functions that return bytes. Most replies are the same in RESP2 and
RESP3; what differs takes ``resp3``: null (``$-1`` and ``_``), null array (``*-1`` and ``_``), map
(a flat array and ``%``), set (an array and ``~``), double (a bulk string and ``,``), boolean
(``:1`` and ``#t``), verbatim text (a bulk string and ``=``).

**Decoders** use hiredis, and :mod:`~..native.resp_reader` for plain commands.
:class:`CommandParser` takes a *recorded payload*, arrays of bulk strings one after the other, as a
client sent them.
:func:`parse_replies_untrusted` takes the replies to one and is for a program that embeds the store.
An error reply inside is a value there (:class:`quorate.errors.KeyValueError`), for one reply of
many may be one.

Caveats: hiredis lets a command argument be of another type than a bulk string (``:5``, ``+a``);
numbers, nulls and nested arrays are refused here, simple strings pass as bytes. The client port
bounds sizes before anything reaches these functions.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, Literal, TypeAlias, cast

import hiredis

from ...errors import KeyValueError, WireError
from ..native.resp_reader import split_untrusted
from ..state.limits import MAX_ARGUMENTS

Reply: TypeAlias = (
    "bool | int | float | bytes | KeyValueError | list[Reply] | dict[Reply, Reply] | None"
)
"""One decoded reply. Simple strings and bulk strings are both ``bytes``."""

OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"
QUEUED: Final = b"+QUEUED\r\n"
ZERO: Final = b":0\r\n"
ONE: Final = b":1\r\n"
MINUS_ONE: Final = b":-1\r\n"
MINUS_TWO: Final = b":-2\r\n"
EMPTY_BULK: Final = b"$0\r\n\r\n"
EMPTY_ARRAY: Final = b"*0\r\n"
NULL: Final = (b"$-1\r\n", b"_\r\n")
"""The null reply, by ``resp3``: ``NULL[resp3]``."""
NULL_ARRAY: Final = (b"*-1\r\n", b"_\r\n")
"""The null array, by ``resp3``: what EXEC answers when a watched key has changed."""


def simple(text: bytes) -> bytes:
    """A simple string; `text` has no line break."""
    return b"+%b\r\n" % text


def error(text: str | bytes) -> bytes:
    """An error; `text` begins with its code (``ERR syntax error``). Line breaks become blanks."""
    raw = text if isinstance(text, bytes) else text.encode()
    return b"-%b\r\n" % raw.replace(b"\r", b" ").replace(b"\n", b" ")


def integer(number: int) -> bytes:
    """A 64-bit integer."""
    return b":%d\r\n" % number


def bulk(data: bytes) -> bytes:
    """A bulk string."""
    return b"$%d\r\n%b\r\n" % (len(data), data)


def array(replies: Sequence[bytes]) -> bytes:
    """An array of replies that are encoded already."""
    return b"".join([b"*%d\r\n" % len(replies), *replies])


def encode_set(key: bytes, value: bytes) -> bytes:
    """``SET key value`` as :func:`pack` encodes it, for a quarter of its cost."""
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key, len(value), value)


SET_FRAME_BYTES: Final = len(encode_set(b"", b"")) + 2 * len("000000000")
"""What :func:`encode_set` adds, at most: lengths of ten digits are more than anything takes.

It is up to 18 bytes too many, so what gathers small SETs is full that much sooner."""


def bulk_array(items: Sequence[bytes]) -> bytes:
    """An array of bulk strings; it is also the form of a command."""
    return b"*%d\r\n%b" % (len(items), b"".join(map(bulk, items)))


def null(*, resp3: bool) -> bytes:
    """The null reply."""
    return NULL[resp3]


def null_array(*, resp3: bool) -> bytes:
    """The null array."""
    return NULL_ARRAY[resp3]


def mapping(pairs: Sequence[tuple[bytes, bytes]], *, resp3: bool) -> bytes:
    """A map of encoded keys to encoded values; in RESP2 a flat array."""
    head = b"%%%d\r\n" % len(pairs) if resp3 else b"*%d\r\n" % (2 * len(pairs))
    return head + b"".join(chain.from_iterable(pairs))


def set_of(replies: Sequence[bytes], *, resp3: bool) -> bytes:
    """A set of replies that are encoded already; in RESP2 an array."""
    return b"%b%d\r\n%b" % (b"~" if resp3 else b"*", len(replies), b"".join(replies))


def double(value: float, *, resp3: bool) -> bytes:
    """A floating-point number, shortest form; in RESP2 a bulk string."""
    text = repr(value).removesuffix(".0").encode()
    return b",%b\r\n" % text if resp3 else bulk(text)


def verbatim(text: bytes, *, resp3: bool) -> bytes:
    """Text for people (INFO, CLIENT LIST); in RESP2 a bulk string."""
    return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text) if resp3 else bulk(text)


# the types that come with hiredis 3.5 say a tuple of exactly one
pack: Final = cast(
    "Callable[[tuple[bytes, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]
)
"""Encode a command; ten times faster than :func:`bulk_array`.

Raises:
    TypeError: an argument is neither a string nor a number.
"""

_SHORT_BYTES: Final = 4096
_LISTS: Final = frozenset((list,))
_STRINGS: Final = frozenset((bytes,))


def _at_end(reader: hiredis.Reader) -> bool:
    """Whether a reader that has no more to give is between values.

    It does not say so itself when all bytes are used up, amidst an array perhaps. But a value that
    is fed behind them comes out, by itself and as the last one, only if it is.
    """
    reader.feed(b"+end\r\n")
    return bool(reader.gets(False) == b"end") and not reader.has_data()


class CommandParser:
    """Parses payloads. It keeps a hiredis reader, whose making costs more than a command."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()

    def parse_untrusted(self, payload: bytes) -> list[list[bytes]]:
        """Split a payload into its commands, each a list of at least one argument.

        Empty arrays are left out: like Redis, nothing answers them.

        Raises:
            WireError: it is not a whole number of arrays of strings.
        """
        plain, end = split_untrusted(payload, MAX_ARGUMENTS)
        if plain and end == len(payload):
            return plain
        reader = self._reader
        try:
            reader.feed(payload)
            first = cast("list[bytes] | Literal[False]", reader.gets(False))
            # one short command, usually: nothing else is in what is equal to its encoding
            if first and len(payload) <= _SHORT_BYTES and pack(tuple(first)) == payload:
                return [first]
            rest = cast("list[list[bytes]]", iter(reader.gets, False))
            commands = [] if first is False else [first, *rest]
            whole = _at_end(reader)
        except (hiredis.ProtocolError, TypeError) as broken:
            self._reader = hiredis.Reader()
            raise WireError(f"a payload is not RESP: {broken}") from broken
        if not (
            whole
            and _LISTS.issuperset(map(type, commands))
            and _STRINGS.issuperset(map(type, chain.from_iterable(commands)))
        ):
            self._reader = hiredis.Reader()
            raise WireError("a payload holds something else than whole arrays of strings")
        return commands if all(commands) else [args for args in commands if args]


def parse_replies_untrusted(data: bytes) -> list[Reply]:
    """Split bytes into the replies in them; error replies become :class:`KeyValueError` values.

    Raises:
        WireError: it is not a whole number of replies.
    """
    if data == OK:  # what a SET is answered, for a tenth of the cost
        return [b"OK"]
    missing = object()
    reader = hiredis.Reader(replyError=KeyValueError, notEnoughData=missing)
    replies: list[Reply] = []
    try:
        reader.feed(data)
        while (reply := cast("Reply", reader.gets(False))) is not missing:
            replies.append(reply)
        whole = _at_end(reader)
    except (hiredis.ProtocolError, TypeError) as broken:
        raise WireError(f"a reply is not RESP: {broken}") from broken
    if not whole:
        raise WireError(f"a reply of {len(data)} bytes ends in the middle")
    return replies


def words_of(arguments: Iterable[bytes | str | int | float]) -> tuple[bytes, ...]:
    """A command's arguments as they are recorded; see :func:`word_of`."""
    return tuple(
        [one if isinstance(one, bytes) else word_of(one, at) for at, one in enumerate(arguments, 1)]
    )


def word_of(value: object, name: str | int) -> bytes:
    """One argument as it is recorded: text in UTF-8, a number in decimal.

    Args:
        value: the argument.
        name: what an error calls it; a number is a place.

    Raises:
        TypeError: it is something else, also None and booleans: which bytes were meant, nobody
            can say.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    if isinstance(value, float):
        return float.__repr__(value).encode()  # a subclass may show itself in another way
    called = f"argument {name}" if isinstance(name, int) else name
    raise TypeError(
        f"{called} = {value!r:.60}: expected bytes, str, int or float, found {type(value).__name__}"
    )


def encode_command(arguments: Iterable[bytes | str | int | float]) -> bytes:
    """One command as a client sends it; see :func:`words_of`."""
    return pack(words_of(arguments))
