"""Arguments of methods as words of commands, and replies as values; for the files of this room."""

from collections.abc import Iterable, Sequence
from typing import cast

from ...errors import KeyValueError
from ..commands.table import CommandSpec, Kind, fault, resolve
from ..protocol import resp
from ..protocol.resp import word_of

__all__ = [
    "Argument",
    "Text",
    "bytes_of",
    "command_of",
    "decoded",
    "expiry_words",
    "integer_in",
    "integer_of",
    "list_of",
    "optional_bytes",
    "set_words",
    "words_of",
]

Text = bytes | str
Argument = bytes | str | int | float


# --- arguments


def command_of(arguments: Iterable[Argument]) -> tuple[CommandSpec, tuple[bytes, ...]]:
    """Return a command of the state machine, and its words.

    Raises:
        KeyValueError: it is unknown or malformed, or only client connections can run it.
        TypeError: an argument is no word, or there is none.
    """
    words = resp.words_of(arguments)
    if not words:
        raise TypeError('execute(): expected a command, such as execute("GET", "key")')
    spec = resolve(words)
    if spec is None or spec.kind is Kind.CONNECTION:
        trouble = fault(words) or b"ERR this command is for client connections"
        raise KeyValueError(trouble.decode("utf-8", "replace"))
    return spec, words


def words_of(keys: Iterable[object]) -> list[bytes]:
    """Encode keys.

    Raises:
        TypeError: one of them is no word, or they are a single one.
    """
    if isinstance(keys, bytes | str):
        raise TypeError(f"keys = {keys!r:.60}: expected several keys, found one; give [key]")
    return [word_of(key, f"keys[{at}]") for at, key in enumerate(keys)]


def set_words(key: Text, value: Text, *, ex: int | None, px: int | None) -> list[Argument]:
    """Return SET, a key, its value and its expiry."""
    words: list[Argument] = ["SET", word_of(key, "key"), word_of(value, "value")]
    if ex is not None:
        words += ["EX", integer_of(ex, "ex")]
    if px is not None:
        words += ["PX", integer_of(px, "px")]
    return words


def expiry_words(key: Text, seconds: float) -> list[Argument]:
    """Return PEXPIRE, a key and its lifetime.

    Raises:
        TypeError: the lifetime is no number.
    """
    if isinstance(seconds, bool) or not isinstance(cast("object", seconds), int | float):
        found = f"{seconds!r:.60}: expected a number, found {type(seconds).__name__}"
        raise TypeError(f"seconds = {found}")
    return ["PEXPIRE", word_of(key, "key"), round(seconds * 1000)]


def integer_of(value: object, name: str) -> int:
    """Return an argument that is an integer.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        found = f"{value!r:.60}: expected an integer, found {type(value).__name__}"
        raise TypeError(f"{name} = {found}")
    return value


# --- replies


def decoded(replies: bytes) -> resp.Reply:
    """Decode the single reply of an endpoint; raise it if it is an error."""
    (reply,) = resp.parse_replies_untrusted(replies)
    if isinstance(reply, KeyValueError):
        raise reply
    return reply


def integer_in(reply: resp.Reply) -> int:
    """Return a reply that is an integer."""
    assert isinstance(reply, int), f"expected an integer, got {reply!r}"
    return reply


def bytes_of(reply: resp.Reply) -> bytes:
    """Return a reply that is a string."""
    assert isinstance(reply, bytes), f"expected a string, got {reply!r}"
    return reply


def optional_bytes(reply: resp.Reply) -> bytes | None:
    """Return a reply that is a string or null."""
    return None if reply is None else bytes_of(reply)


def list_of(reply: resp.Reply) -> Sequence[resp.Reply]:
    """Return a reply that is an array."""
    assert isinstance(reply, list), f"expected an array, got {reply!r}"
    return reply
