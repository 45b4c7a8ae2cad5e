"""Writes a recording: the head, events, and now and then a picture of everything.

A reader that begins in the middle, or moves about, needs to know how things stood. So a `keyframe`
is written before the first event, and again after `KEYFRAME_EVENTS` events or `KEYFRAME_SECONDS`.
"""

from __future__ import annotations

from contextlib import contextmanager
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, Final

import zstandard

from .events import NOBODY, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from .events import Fields
    from .head import Head

KEYFRAME_EVENTS: Final = 1000
"""Fewer: files are larger. More: moving about in a file takes longer."""

KEYFRAME_SECONDS: Final = 1.0
"""Less: files of a quiet cluster are larger. More: a viewer knows less of members that do nothing.
"""

COMPRESSED: Final = ".zst"
"""The end of the name of a compressed file."""


class RecordingWriter:
    """Writes events, in the order in which they happen.

    Args:
        file: of text; it gets JSON, one object a line.
        head: the first line.
        picture: returns the fields of a keyframe as of now; without it none are written, and those
            among the events are all.
    """

    def __init__(
        self, file: IO[str], head: Head, picture: Callable[[], Fields] | None = None
    ) -> None:
        self._file = file
        self._picture = picture
        self._since = KEYFRAME_EVENTS  # the first event is due for a picture
        self._last = 0.0
        file.write(head.as_json() + "\n")

    def write(self, event: Event) -> None:
        """Write an event, with a picture before it if one is due.

        Raises:
            OSError: the file can't take it.
        """
        if self._picture is not None and (
            self._since >= KEYFRAME_EVENTS or event.at - self._last >= KEYFRAME_SECONDS
        ):
            self._since, self._last = 0, event.at
            picture = Event(event.at, NOBODY, "keyframe", self._picture())
            self._file.write(picture.as_json() + "\n")
        self._since += 1
        self._file.write(event.as_json() + "\n")


@contextmanager
def open_to_write(path: Path) -> Generator[IO[str]]:
    """Open a new file for a recording; it is compressed if its name ends in ``.zst``.

    Raises:
        OSError: the file can't be made or written.
    """
    with path.open("wb") as raw:
        if path.suffix != COMPRESSED:
            with TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
                yield text
            return
        with (
            zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as packed,
            TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
        ):
            yield text
