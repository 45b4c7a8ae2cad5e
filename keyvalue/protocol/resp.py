"""RESP, the Redis protocol: encoders of replies and commands, and a decoder of replies.

**Encoders** are small pure functions that return bytes. Most replies are the same in RESP2 and
RESP3. An encoder whose reply differs takes ``resp3``:

- null: ``$-1``, or ``_`` in RESP3; null array: ``*-1``, or ``_``
- map: a flat array, or ``%``; set: an array, or ``~``
- double: a bulk string, or ``,``; verbatim text: a bulk string, or ``=``

**The decoder**, :func:`parse_replies_untrusted`, uses hiredis. It serves programs that embed the
store. An error reply becomes a value (:class:`quorate.errors.KeyValueError`) and is not raised,
because one reply of many may be an error.

Commands are parsed elsewhere: :mod:`.parser` reads what a socket delivers, :mod:`.payload` reads
what a request carries.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final, TypeAlias, cast

import hiredis

from ...errors import KeyValueError, WireError

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


class CommandError(Exception):
    """A command cannot run; it has changed nothing. `reply` is the encoded error to answer with."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(reply)
        self.reply = reply


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
    """Encode ``SET key value`` exactly like :func:`pack`, at a quarter of its cost."""
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(key), key, len(value), value)


SET_FRAME_BYTES: Final = len(encode_set(b"", b"")) + 2 * len("000000000")
"""The most that :func:`encode_set` adds to key and value; two lengths have ten digits at most.

It is up to 18 bytes too many, so a payload of small SETs is full that much sooner."""


def bulk_array(items: Sequence[bytes]) -> bytes:
    """An array of bulk strings, which is also the form of a command."""
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


# hiredis 3.5 declares its argument as a tuple of exactly one
pack: Final = cast(
    "Callable[[tuple[bytes, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]
)
"""Encode a command; ten times faster than :func:`bulk_array`.

Raises:
    TypeError: an argument is neither a string nor a number.
"""


def at_end(reader: hiredis.Reader) -> bool:
    """Whether a reader that returns nothing more stands between two values.

    The reader must not be used again if this is false.
    """
    # hiredis has no such query: with all bytes used up it may still be in the middle of an array.
    # A sentinel fed behind the data comes out alone, and as the last value, only between values.
    reader.feed(b"+end\r\n")
    return bool(reader.gets(False) == b"end") and not reader.has_data()


def parse_replies_untrusted(data: bytes) -> list[Reply]:
    """Split bytes into the replies in them; error replies become :class:`KeyValueError` values.

    Raises:
        WireError: it is not a whole number of replies.
    """
    if data == OK:  # the reply to a SET; hiredis would cost ten times as much
        return [b"OK"]
    missing = object()
    reader = hiredis.Reader(replyError=KeyValueError, notEnoughData=missing)
    replies: list[Reply] = []
    try:
        reader.feed(data)
        while (reply := cast("Reply", reader.gets(False))) is not missing:
            replies.append(reply)
        whole = at_end(reader)
    except (hiredis.ProtocolError, TypeError) as broken:
        raise WireError(f"a reply is not RESP: {broken}") from broken
    if not whole:
        raise WireError(f"a reply of {len(data)} bytes ends in the middle")
    return replies


def words_of(arguments: Iterable[bytes | str | int | float]) -> tuple[bytes, ...]:
    """Encode the arguments of a command; see :func:`word_of`."""
    return tuple(
        [one if isinstance(one, bytes) else word_of(one, at) for at, one in enumerate(arguments, 1)]
    )


def word_of(value: object, name: str | int) -> bytes:
    """Encode one argument: text in UTF-8, a number in decimal.

    Args:
        value: the argument.
        name: its name in an error; a number is its position.

    Raises:
        TypeError: it has another type. None and booleans too: their bytes would be a guess.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value
    if isinstance(value, float):
        return float.__repr__(value).encode()  # a subclass may have a repr of its own
    called = f"argument {name}" if isinstance(name, int) else name
    raise TypeError(
        f"{called} = {value!r:.60}: expected bytes, str, int or float, found {type(value).__name__}"
    )


def encode_command(arguments: Iterable[bytes | str | int | float]) -> bytes:
    """Encode a command as clients send it; see :func:`words_of`."""
    return pack(words_of(arguments))
