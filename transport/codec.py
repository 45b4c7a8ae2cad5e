"""One codec per message class, compiled from the class.

::

    body    fixed part    every field in the order of the class, without padding:
                            an integer, as wide as its annotation says
                            bool, enumeration, flags: one byte
                            text: its length in bytes, u16
                            bytes: their length, u32
                            terms, stores: how many, u16
            tails         the contents of text, bytes, terms and stores, in the same order

Integers are little endian. A body's start says how long the body is. A decoder compares that with
the bytes that it has, once.

Decoding accepts any bytes. It checks length, checksum, bounds of integers, enumerations, booleans
and text, and raises `WireError` for anything that no encoder of a valid message would have written.
"""

import struct
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Final, cast, get_args, get_origin

import attrs
import google_crc32c

from ..errors import WireError
from . import fields as f
from . import messages as m

# CRC-32C, from a library without annotations. storage/lmdb/checksum.py wraps the same two
# functions; this room may not import storage.
extend_checksum = cast(
    "Callable[[int, bytes], int]",
    google_crc32c.extend,  # pyright: ignore[reportUnknownMemberType]
)
checksum = cast(
    "Callable[[bytes], int]",
    google_crc32c.value,  # pyright: ignore[reportUnknownMemberType]
)

WIRE_VERSION: Final = 1
HEADER: Final = struct.Struct("<IBBHI")  # body bytes, type, version, reserved (0), checksum
COVERED_HEADER: Final = struct.Struct("<IBBH")  # its part that the checksum covers
CHECKSUM: Final = struct.Struct("<I")
SPAN: Final = struct.Struct("<qqq")
STORE: Final = struct.Struct("<iQ")

MAX_BATCH_BYTES: Final = 64 << 20
"""Longest record batch, and longest payload of a forwarded request. `storage.log.batch` has the
same."""

_TAIL_FORMATS: Final[Mapping[object, str]] = {
    str: "H",
    bytes: "I",
    tuple[m.TermSpan, ...]: "H",
    tuple[m.FoundingStore, ...]: "H",
}
_RECORDS: Final[Mapping[object, tuple[struct.Struct, Callable[..., object]]]] = {
    tuple[m.TermSpan, ...]: (SPAN, m.TermSpan),
    tuple[m.FoundingStore, ...]: (STORE, m.FoundingStore),
}
# Bounds for the header's check only: "H" also stands for text, which is shorter.
_LARGEST_TAILS: Final[Mapping[str, int]] = {"H": f.MAX_TERM_SPANS * SPAN.size, "I": MAX_BATCH_BYTES}


@attrs.frozen
class Tail:
    """A field of variable size.

    Args:
        name: of the field.
        index: its place in the fixed part, where its length is.
        kind: ``str``, ``bytes`` or a tuple of small records.
    """

    name: str
    index: int
    kind: object

    def encode(self, value: object) -> tuple[int, bytes]:
        """Return the length for the fixed part, and the content.

        Raises:
            ValueError: the field is longer than a frame allows.
        """
        if isinstance(value, bytes):  # nearly always
            content = value
            length, limit = len(content), MAX_BATCH_BYTES
        elif isinstance(value, str):
            content = value.encode()
            length, limit = len(content), f.MAX_STRING_BYTES
        else:
            records = cast("tuple[attrs.AttrsInstance, ...]", value)
            layout, _ = _RECORDS[self.kind]
            content = b"".join([layout.pack(*attrs.astuple(record)) for record in records])
            length, limit = len(records), f.MAX_TERM_SPANS
        if length > limit:
            raise ValueError(f"{self.name}: {length} is more than the {limit} that a frame takes")
        return length, content

    def size_untrusted(self, length: int) -> int:
        """Return the bytes of the content if its length field says `length`.

        Raises:
            WireError: that is longer than a frame allows.
        """
        if self.kind is bytes:
            return length
        limit = f.MAX_STRING_BYTES if self.kind is str else f.MAX_TERM_SPANS
        if length > limit:
            raise WireError(f"{self.name}: {length} is more than {limit}")
        return length if self.kind is str else length * _RECORDS[self.kind][0].size

    def decode_untrusted(self, content: bytes) -> object:
        """Decode the content of any kind but ``bytes``, which need no decoding.

        Raises:
            WireError: it is not valid UTF-8, or a number is out of bounds.
        """
        if self.kind is str:
            try:
                return str(content, "utf-8")
            except UnicodeDecodeError as error:
                raise WireError(f"{self.name}: not UTF-8: {error.reason}") from None
        layout, record = _RECORDS[self.kind]
        rows = [*layout.iter_unpack(content)]
        if record is m.TermSpan:
            for row in rows:
                for index, name, least, most in _SPAN_BOUNDS:
                    if not least <= row[index] <= most:
                        raise _out_of_bounds(f"{self.name}: {name}", row[index], least, most)
        return tuple(record(*values) for values in rows)


class Codec:
    """Encodes and decodes one class of messages.

    Args:
        type_id: its number in a frame.
        cls: the class; its fields have the annotations of `fields`.
        uncovered: its last field has its own checksum, so the frame's leaves it out.
        without: this field and all behind it are left out, and have their defaults.
    """

    def __init__(
        self,
        type_id: int,
        cls: Callable[..., m.Message],
        *,
        uncovered: bool = False,
        without: str = "",
    ) -> None:
        self.type_id = type_id
        self.name: str = cast("type", cls).__name__
        self._cls = cls
        names: list[str] = []
        formats: list[str] = []
        tails: list[Tail] = []
        # For each bool, enumeration and set of flags: which bytes stand for what.
        tables: list[tuple[int, str, Mapping[int, object]]] = []
        for index, field in enumerate(attrs.fields(cast("type[attrs.AttrsInstance]", cls))):
            if field.name == without:
                break
            names.append(field.name)
            kind: object = field.type
            if kind in _TAIL_FORMATS:
                tails.append(Tail(field.name, index, kind))
                formats.append(_TAIL_FORMATS[kind])
            elif get_origin(kind) is Annotated:
                formats.append(cast("f.Integer", get_args(kind)[1]).format)
            else:
                formats.append("B")
                tables.append((index, field.name, _values(kind)))
        self._fixed = struct.Struct("<" + "".join(formats))
        get = cast("Callable[[m.Message], tuple[object, ...]]", attrgetter(*names))

        def get_one(message: m.Message) -> tuple[object, ...]:
            return (get(message),)  # attrgetter of one name returns no tuple

        self._get = get if len(names) > 1 else get_one
        self._tails = tuple(tails)
        self._tables = tuple(tables)
        self._bounds = _bounds(cls)
        self._uncovered = uncovered
        self._header = COVERED_HEADER.pack(self._fixed.size, type_id, WIRE_VERSION, 0)
        self._seed = checksum(self._header)  # of the header, for a body without tails
        self.smallest = self._fixed.size
        self.largest = self.smallest + sum(_LARGEST_TAILS[_TAIL_FORMATS[t.kind]] for t in tails)

    def encode(self, message: m.Message) -> bytes:
        """Return the frame of a message of this codec's class.

        Raises:
            ValueError: a field of variable size is too long.
            struct.error: an integer does not fit its field.
        """
        values = self._get(message)
        if self._tails:
            return self._encode_with_tails(list(values))
        body = self._fixed.pack(*values)
        return self._header + CHECKSUM.pack(extend_checksum(self._seed, body)) + body

    def _encode_with_tails(self, values: list[object]) -> bytes:
        contents: list[bytes] = []
        size = self._fixed.size
        for tail in self._tails:
            values[tail.index], content = tail.encode(values[tail.index])
            contents.append(content)
            size += len(content)
        fixed = self._fixed.pack(*values)
        header = COVERED_HEADER.pack(size, self.type_id, WIRE_VERSION, 0)
        check = self._cover(checksum(header + fixed), contents)
        return b"".join([header, CHECKSUM.pack(check), fixed, *contents])

    def _cover(self, check: int, contents: list[bytes]) -> int:
        """Extend the checksum of header and fixed part by the tails, without joining them."""
        for content in contents[:-1] if self._uncovered else contents:
            check = extend_checksum(check, content)
        return check

    def decode_untrusted(self, frame: memoryview, check: int) -> m.Message:
        """Decode one whole frame, whose header was checked already.

        Args:
            frame: header and body; the header's length is the body's, and within bounds.
            check: the header's checksum.

        Raises:
            WireError: no encoder would have written this.
        """
        if self._tails:
            values = self._with_tails_untrusted(frame, check)
        else:
            body = bytes(frame[HEADER.size :])
            actual = extend_checksum(self._seed, body)
            if actual != check:
                raise self._damaged(actual, check)
            values = [*self._fixed.unpack(body)]
        for index, name, least, most in self._bounds:
            if not least <= values[index] <= most:
                raise _out_of_bounds(f"{self.name}: {name}", values[index], least, most)
        for index, name, table in self._tables:
            try:
                values[index] = table[values[index]]
            except KeyError:
                raise WireError(f"{self.name}: {name} can't be {values[index]}") from None
        return self._cls(*values)

    def _with_tails_untrusted(self, frame: memoryview, check: int) -> list[Any]:
        begin = end = HEADER.size + self._fixed.size
        values: list[Any] = [*self._fixed.unpack_from(frame, HEADER.size)]
        contents: list[bytes] = []
        # The checksum comes behind: it needs the tails. So each length is bounded before it is
        # used.
        for tail in self._tails:
            size = tail.size_untrusted(values[tail.index])
            contents.append(bytes(frame[end : end + size]))  # a slice: never more than there is
            end += size
        if end != len(frame):
            raise WireError(
                f"{self.name}: its fields take {end - begin} bytes of a body"
                f" that has {len(frame) - begin} for them"
            )
        start = bytes(frame[: COVERED_HEADER.size]) + bytes(frame[HEADER.size : begin])
        actual = self._cover(checksum(start), contents)
        if actual != check:
            raise self._damaged(actual, check)
        for tail, content in zip(self._tails, contents, strict=True):
            values[tail.index] = content if tail.kind is bytes else tail.decode_untrusted(content)
        return values

    def _damaged(self, actual: int, expected: int) -> WireError:
        return WireError(f"{self.name}: checksum {actual:08x}, expected {expected:08x}")


def _bounds(cls: object) -> tuple[tuple[int, str, int, int], ...]:
    """Return place, name and bounds of each bounded integer of a class."""
    bounds: list[tuple[int, str, int, int]] = []
    for index, field in enumerate(attrs.fields(cast("type[attrs.AttrsInstance]", cls))):
        if get_origin(field.type) is Annotated:
            integer = cast("f.Integer", get_args(field.type)[1])
            if integer.bounds is not None:
                bounds.append((index, field.name, *integer.bounds))
    return tuple(bounds)


_SPAN_BOUNDS: Final = _bounds(m.TermSpan)


def _out_of_bounds(name: str, value: int, least: int, most: int) -> WireError:
    return WireError(f"{name} can't be {value}; expected {least} to {most}")


def _values(kind: object) -> Mapping[int, object]:
    """Return the values of a bool, an enumeration or a set of flags, by their byte."""
    if kind is bool:
        return {0: False, 1: True}
    assert isinstance(kind, type)
    assert issubclass(kind, Enum)
    members = {cast("int", member.value): member for member in kind}
    if issubclass(kind, Flag):
        every = sum(members)
        return {bits: kind(bits) for bits in range(every + 1) if bits & ~every == 0}
    return dict(sorted(members.items(), key=itemgetter(0)))
