"""Notes on the board of the machine who leads, so that its other members know (:mod:`.folder`)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Never

import msgspec
import trio

from ...log_events import log_event
from ...node.protocol.signal import Signal
from .folder import Notice, replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Notices"]

RETRY_SECONDS: Final = 1.0
"""When a notice that could not be written is written again. Shorter, and a full disk makes many log
lines; longer, and clients are sent to an old leader for longer."""

_log = logging.getLogger("quorate.keyvalue")


class Notices:
    """The notice of one member, kept up to date.

    Args:
        file: the notice; see `folder.board_file`.
        look: returns what the member knows now.
    """

    def __init__(self, file: Path, look: Callable[[], Notice]) -> None:
        self._file, self._look = file, look
        self._news = Signal()

    def look_again(self, _cause: object = None) -> None:
        """Note that what the member knows may have changed."""
        self._news.notify()

    async def run(self) -> Never:
        """Write the notice whenever it has changed, until cancelled."""
        written: Notice | None = None
        while True:
            if (notice := self._look()) == written:
                await self._news.wait()
                continue
            try:
                # Not synced, so the disk is not waited for; and only at an election.
                replace_file(self._file, msgspec.json.encode(notice))
                written = notice
            except OSError as error:
                log_event(
                    _log,
                    logging.WARNING,
                    "notice_failed",
                    "the notice %(file)s can't be written: %(why)s",
                    file=str(self._file),
                    why=error.strerror,
                )
                await trio.sleep(RETRY_SECONDS)
