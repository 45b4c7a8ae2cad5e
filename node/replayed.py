"""The batches of a replay that have come and are not recorded yet.

Each commit to LMDB has its price. So who is far behind records several batches at once; who has
nearly caught up records each as it comes, for nobody knows when the next one will. What is held
back is known to nobody else: if it is lost it is asked for again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ..errors import WireError
from ..storage import check_batch_untrusted
from ..transport import LogBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..storage import BatchHeader, Store
    from ..transport import FrameStream

GATHERED_BYTES: Final = 4 << 20


class Replayed:
    """What comes of one replay, checked.

    Args:
        stream: on which it comes.
        term: in which its sender must live: of another one, it may have truncated what we asked
            for.
        store: to whose log it is to be appended.
        stop: no more than up to there is wanted; None if all.
    """

    def __init__(self, stream: FrameStream, term: int, store: Store, stop: int | None) -> None:
        self._ended = False
        self._stop = math.inf if stop is None else stop
        self._stream = stream
        self._term = term
        self._store = store
        self._batches: list[tuple[BatchHeader, bytes]] = []

    @property
    def over(self) -> bool:
        """Whether the sender has closed the stream in order, or all that is wanted was recorded."""
        return self._ended or self._store.appended_position >= self._stop

    async def receive(self, committed: Callable[[], int]) -> None:
        """Receive what is to be recorded next, which is at least one batch unless the replay ends.

        Args:
            committed: returns what is known to be committed, all of which the sender has, and will
                send as far as it is wanted.

        Raises:
            WireError: it is not what goes on from our log.
            trio's errors of streams: the link broke.
        """
        while (message := await self._stream.receive()) is not None:
            header, batch = self._checked_untrusted(message)
            due = self._batches[-1][0].end if self._batches else self._store.appended_position
            if header.end <= due:
                continue  # the live log was faster
            if header.position != due:
                raise WireError(f"replay at {header.position}, our log ends elsewhere: {header}")
            self._batches.append((header, batch))
            gathered = header.end - self._batches[0][0].position
            comes = min(committed(), self._stop) - header.end
            if gathered >= GATHERED_BYTES or comes < GATHERED_BYTES:
                return
        self._ended = True

    def _checked_untrusted(self, message: object) -> tuple[BatchHeader, bytes]:
        if not isinstance(message, LogBatch):
            raise WireError(f"a {type(message).__name__} in a replay of the log")
        if message.leadership_term_id != self._term:
            raise WireError(f"a replay in term {message.leadership_term_id}, not {self._term}")
        return check_batch_untrusted(message.batch), message.batch

    def take(self) -> Iterator[tuple[BatchHeader, bytes]]:
        """Hand over what has come, each batch if it begins where the log ends by then."""
        batches, self._batches = self._batches, []
        for header, batch in batches:
            if header.position == self._store.appended_position:
                yield header, batch
