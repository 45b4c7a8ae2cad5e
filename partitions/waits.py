"""Why there is nothing to be done, in the log: once, as long as it is the same."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..log_events import log_event

if TYPE_CHECKING:
    from ..errors import QuorateError

__all__ = ["Waits"]

_log = logging.getLogger("quorate.partitions")


class Waits:
    """Logs why something waits, unless that was the last thing it has logged."""

    def __init__(self) -> None:
        self._said = ""

    def say(self, error: QuorateError) -> None:
        """Log an error if it is another one than before."""
        if str(error) != self._said:
            self._said = str(error)
            log_event(_log, logging.WARNING, "director_waits", "%(why)s", why=str(error))
