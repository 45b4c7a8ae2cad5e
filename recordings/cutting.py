"""Finds out whether a compressed recording was cut short, as by a copy that was not finished.

A library that reads Zstandard as a stream takes the end of a file for the end of what was packed.
So this walks over the blocks of the file, whose sizes stand in front of them, and unpacks nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Final

import zstandard

from ..errors import RecordingError
from .head import VIRTUAL
from .reading import MAX_LINE_BYTES, decode_event_untrusted, decode_head_untrusted, open_lines

if TYPE_CHECKING:
    from pathlib import Path

    from .head import Head

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = range(0x184D2A50, 0x184D2A60)
_MOST_HEADER: Final = 18
_CHECKSUM_BYTES: Final = 4
_RUN: Final = 1
"""The type of a block that holds one byte, to be repeated."""


def cut_short_untrusted(path: Path) -> str:
    """Return in words where a compressed recording was cut short, and up to when it is read.

    Returns:
        Nothing if it is whole, or is not compressed: half a line at the end of such a file says so
        itself, and is left out.

    Raises:
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC or _is_whole(file):
            return ""
        end = file.seek(0, 2)
    return f"{path}: it is cut short at byte {end:,}; {_read_up_to(path)}"


def _is_whole(file: IO[bytes]) -> bool:
    """Whether the last frame of a file ends where the file does, or something else is wrong."""
    end = file.seek(0, 2)
    at = 0
    while at < end:
        file.seek(at)
        start = file.read(_MOST_HEADER)
        number, size = int.from_bytes(start[:4], "little"), int.from_bytes(start[4:8], "little")
        if number in _SKIPPABLE:
            at += 8 + size
            continue
        try:
            header = zstandard.frame_header_size(start)
            checked = zstandard.get_frame_parameters(start).has_checksum
        except zstandard.ZstdError:
            # Half a header is a cut. Anything else is damage, which a reader finds.
            return len(start) == _MOST_HEADER
        at, last = at + header, False
        while not last:
            file.seek(at)
            block = int.from_bytes(block_header := file.read(3), "little")
            if len(block_header) < 3:  # noqa: PLR2004
                return False
            last = bool(block & 1)
            at += 3 + (1 if block >> 1 & 3 == _RUN else block >> 3)
        at += _CHECKSUM_BYTES * checked
    return at == end


def _read_up_to(path: Path) -> str:
    """Say of which time the last whole line is."""
    with open_lines(path) as lines:
        try:
            head = decode_head_untrusted(lines.readline(MAX_LINE_BYTES + 1))
            last = b""
            while (line := lines.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
                last = line
            return f"read up to {_time(head, decode_event_untrusted(last).at)}"
        except (RecordingError, zstandard.ZstdError):
            return "no event can be read"


def _time(head: Head, at: float) -> str:
    if head.clock == VIRTUAL:
        return f"{at:.3f} s"
    try:
        moment = datetime.fromtimestamp(head.started_ms / 1000 + at, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at:.3f} s"
    return f"{moment:%H:%M:%S} UTC"
