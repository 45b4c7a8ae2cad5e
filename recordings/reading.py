"""Reads recordings that anybody may have made, damaged or cut.

A file ends with half a line if its writer was killed. Such a line is left out. Any other line that
is not an event is an error, which names the file, the line, and what was expected there.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from io import BufferedReader
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, cast

import attrs
import zstandard

from ..errors import RecordingError
from .events import FORMAT_VERSION, NOBODY, Event, Source
from .head import MERGED, VIRTUAL, WALL, ClockOffset, Head, RecordedMember

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from io import RawIOBase
    from pathlib import Path

MAX_LINE_BYTES: Final = 1 << 20
"""Smaller: a picture of many members would not fit. Larger: a file that is no recording takes more
memory before that is seen."""

_ZSTANDARD: Final = b"\x28\xb5\x2f\xfd"
_MOST_MEMBERS: Final = 1000
_MOST_ID: Final = 2**31 - 1
_MOST_MS: Final = 2**53

_AGAIN: Final = (
    "it was written by an older version of quorate, in format 1, which has no messages and no "
    "names of fields: record it anew, with the same seed if it is a simulation"
)


@attrs.frozen
class Recording:
    """A recording that is being read.

    Args:
        name: of the file, for messages.
        head: its first line.
        events: the rest, in the order of the file. An event is decoded when it is asked for, and
            may raise RecordingError.
    """

    name: str
    head: Head
    events: Iterator[Event]


def read_recording_untrusted(file: IO[bytes], name: str, *, stored: int = 0) -> Recording:
    """Read a recording from any source of lines, one line at a time.

    Args:
        file: of lines, which are not compressed.
        name: of it, for messages.
        stored: bytes of the file, which may be compressed.

    Raises:
        RecordingError: the first line is not the head of a recording that this version reads.
    """
    line = _line_untrusted(file, name, 1)
    if not line and stored:
        raise RecordingError(
            f"{name}: it is cut off before the end of its first line, expected a recording: a "
            "copy that was not finished? Copy it again"
        )
    if not line:
        raise RecordingError(f"{name}: the file is empty, expected a recording")
    if not line.endswith(b"\n"):
        raise RecordingError(f"{name}: line 1: it is cut off, expected the head of a recording")
    with _naming(name, 1):
        head = decode_head_untrusted(line)
    return Recording(name, head, _events_untrusted(file, name))


@contextmanager
def open_recording_untrusted(path: Path) -> Generator[Recording]:
    """Open a recording, compressed or not, for the length of the block.

    Raises:
        RecordingError: it is none.
        OSError: the file can't be read.
    """
    with open_lines(path) as lines:
        yield read_recording_untrusted(lines, str(path), stored=path.stat().st_size)


@contextmanager
def open_lines(path: Path) -> Generator[IO[bytes]]:
    """Open a file of lines, compressed or not, for the length of the block.

    Raises:
        OSError: the file can't be read.
    """
    with path.open("rb") as raw:
        start = raw.read(len(_ZSTANDARD))
        raw.seek(0)
        if start != _ZSTANDARD:
            yield raw
            return
        plain = zstandard.ZstdDecompressor().stream_reader(
            raw, read_across_frames=True, closefd=False
        )
        with BufferedReader(cast("RawIOBase", plain)) as lines:
            yield lines


def _events_untrusted(file: IO[bytes], name: str) -> Iterator[Event]:
    number = 1
    while line := _line_untrusted(file, name, number + 1):
        number += 1
        if not line.endswith(b"\n") and len(line) <= MAX_LINE_BYTES:
            return  # its writer was killed in the middle of it
        with _naming(name, number):
            yield decode_event_untrusted(line)


def _line_untrusted(file: IO[bytes], name: str, number: int) -> bytes:
    try:
        return file.readline(MAX_LINE_BYTES + 1)
    except zstandard.ZstdError as error:
        raise RecordingError(f"{name}: line {number}: {error}: the file is damaged") from error


@contextmanager
def _naming(name: str, number: int) -> Generator[None]:
    try:
        yield
    except RecordingError as error:
        raise RecordingError(f"{name}: line {number}: {error}") from error.__cause__


def decode_event_untrusted(line: bytes) -> Event:
    """Decode one line.

    Raises:
        RecordingError: it is not an event.
    """
    fields = _object_untrusted(line)
    at, member, kind = (fields.pop(each, None) for each in ("at", "member", "kind"))
    if type(at) not in {int, float} or not math.isfinite(at):
        _unexpected("at", at, "seconds")
    if not isinstance(kind, str) or not kind.isidentifier():
        _unexpected("kind", kind, "a word such as enters")
    return Event(float(at), _member_untrusted("member", member), kind, fields)


def decode_head_untrusted(line: bytes) -> Head:
    """Decode the first line.

    Raises:
        RecordingError: it is not the head of a recording that this version reads.
    """
    return _head_untrusted(_object_untrusted(line))


def _object_untrusted(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise RecordingError(f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        found: object = json.loads(line.decode("utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError too
        raise RecordingError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RecordingError(f"{line[:40]!r}: expected an object of JSON")
    return cast("dict[str, Any]", found)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _head_untrusted(fields: dict[str, Any]) -> Head:
    version = fields.get("quorate_trace")
    if version == 1:
        raise RecordingError(_AGAIN)
    if type(version) is not int:
        raise RecordingError('not the head of a recording: expected {"quorate_trace": 2, ...}')
    if version != FORMAT_VERSION:
        raise RecordingError(
            f"format {version} of recordings: expected {FORMAT_VERSION}; a newer quorate "
            "wrote it, and reads it"
        )
    sources = {each.value: each for each in Source}
    source, clock = _text_untrusted(fields, "source"), _text_untrusted(fields, "clock")
    if source not in sources:
        _unexpected("source", source, f"one of {', '.join(sources)}")
    if clock not in {VIRTUAL, WALL, MERGED}:
        _unexpected("clock", clock, f"{VIRTUAL}, {WALL} or {MERGED}")
    seed = fields.get("seed")
    return Head(
        source=sources[source],
        version=_text_untrusted(fields, "version"),
        cluster=_text_untrusted(fields, "cluster"),
        clock=clock,
        started_ms=_number_untrusted("started_ms", fields.get("started_ms", 0), _MOST_MS),
        members=_list_untrusted(fields.get("members", [])),
        seed=None if seed is None else _number_untrusted("seed", seed, 2**63),
        command=_text_untrusted(fields, "command"),
        reporter=_member_untrusted("reporter", fields.get("reporter", NOBODY)),
        clocks=_clocks_untrusted(fields.get("clocks", {})),
    )


def _list_untrusted(found: object) -> tuple[RecordedMember, ...]:
    if not isinstance(found, list):
        _unexpected("members", found, "a list of members")
    members = cast("list[object]", found)
    if len(members) > _MOST_MEMBERS:
        raise RecordingError(f"{len(members)} members: expected {_MOST_MEMBERS} at most")
    return tuple(map(_recorded_untrusted, members))


def _recorded_untrusted(found: object) -> RecordedMember:
    if not isinstance(found, dict):
        _unexpected("members", found, '{"id": 0, "role": "voter"} and so on')
    fields = cast("dict[str, Any]", found)
    member = _number_untrusted("id of a member", fields.get("id"), _MOST_ID)
    return RecordedMember(member, _text_untrusted(fields, "role"))


def _clocks_untrusted(found: object) -> dict[int, ClockOffset]:
    if not isinstance(found, dict):
        _unexpected("clocks", found, "an object with a clock for each member")
    clocks = cast("dict[str, Any]", found)
    if len(clocks) > _MOST_MEMBERS:
        raise RecordingError(f"{len(clocks)} clocks: expected {_MOST_MEMBERS} at most")
    return {_id_untrusted(member): _clock_untrusted(clock) for member, clock in clocks.items()}


def _clock_untrusted(found: object) -> ClockOffset:
    if not isinstance(found, dict):
        _unexpected("clock of a member", found, '{"offset": 0.0, "uncertainty": null}')
    fields = cast("dict[str, Any]", found)
    offset, uncertainty = fields.get("offset"), fields.get("uncertainty")
    if not isinstance(offset, int | float):
        _unexpected("offset", offset, "seconds")
    if uncertainty is not None and not isinstance(uncertainty, int | float):
        _unexpected("uncertainty", uncertainty, "seconds, or null")
    return ClockOffset(offset, uncertainty)


def _id_untrusted(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(_MOST_ID)):
        _unexpected("member", text, "the id of a member")
    return int(text)


def _member_untrusted(name: str, found: object) -> int:
    if type(found) is not int or not NOBODY <= found <= _MOST_ID:
        _unexpected(name, found, f"the id of a member, or {NOBODY}")
    return found


def _number_untrusted(name: str, found: object, most: int) -> int:
    if type(found) is not int or not 0 <= found <= most:
        _unexpected(name, found, f"a whole number, 0 to {most}")
    return found


def _text_untrusted(fields: dict[str, Any], name: str) -> str:
    text = fields.get(name, "")
    if not isinstance(text, str) or not text.isprintable():
        _unexpected(name, text, "a text of one line")
    return text


def _unexpected(name: str, found: object, expected: str) -> NoReturn:
    raise RecordingError(f"{name} = {found!r:.60}: expected {expected}")
