"""Receives a replay of the log, and groups its batches.

Each commit to LMDB has a fixed price, so a member that is far behind records several batches at
once. A batch waits for others only where more is certain to come. A member that has nearly caught
up records what has arrived, since nobody knows when the next batch will come.

A batch that waits is known to nobody else; if it is lost, it is asked for again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

from ...errors import WireError
from ...storage import check_received_untrusted
from ...storage.writing.executor import MAX_GROUP_JOBS
from ...transport import LogBatch

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from ...storage import BatchHeader
    from ...transport import Message

    class Source(Protocol):
        """A stream; see `transport.FrameStream`."""

        async def receive(self) -> Message | None:
            """Wait for the next message, None at the end."""
            ...

        def receive_nowait(self) -> Message | None:
            """Return it if it has come already."""
            ...


TOGETHER_BYTES: Final = 4 << 20
"""How much is recorded at once while as much again is to come. Smaller: more commits. Larger: more
is fetched again after a broken link, and more memory is held."""

HELD_SECONDS: Final = 0.05
"""How long a batch waits for further ones. Shorter: a slow network costs more commits. Longer: more
is lost if its link breaks."""


class ReplayReceiver:
    """The batches of one replay, checked.

    Args:
        source: the stream on which they come.
        term: in which the sender must live. In another term it may have truncated what we asked
            for.
        appended: returns where our log ends.
        stop: the sender sends everything up to there, and no more is wanted; None if all is.
        before: the sender must live in a term below `term`, which is our own. For an elected leader
            that fetches a voter's longer log (`election.adopt_voter_log`).
    """

    def __init__(
        self,
        source: Source,
        term: int,
        appended: Callable[[], int],
        stop: int | None,
        *,
        before: bool = False,
    ) -> None:
        self._source = source
        self._term = term
        self._before = before
        self._appended = appended
        self._stop = stop
        self._ended = False
        self._goes_on = False  # a first part was handed over
        self._batches: list[tuple[BatchHeader, bytes]] = []

    @property
    def over(self) -> bool:
        """Whether the sender has closed the stream, or all that is wanted was recorded."""
        return self._ended or (self._stop is not None and self._appended() >= self._stop)

    async def receive(self, committed: int) -> None:
        """Receive what is to be recorded next: at least one batch, unless the replay ends.

        Args:
            committed: how far the log is committed; the sender has all of that.

        Raises:
            WireError: it is not what goes on from our log.
            trio's errors of streams: the link broke.
        """
        # Beyond this, nobody knows whether the sender has more: to wait for it could take for ever.
        certain = committed if self._stop is None else self._stop
        # The first batch of a stream is recorded at once. Otherwise a member whose link breaks
        # again and again, before a group is full, would get nowhere.
        held_until = trio.current_time() + HELD_SECONDS if self._goes_on else -math.inf
        message = await self._source.receive()
        while message is not None:
            end = self._add(message)
            if self._batches and self._enough(held_until):
                return
            # What has come already costs no wait, so it joins the group in any case.
            message = self._source.receive_nowait()
            if message is None:
                if self._batches and certain - end < TOGETHER_BYTES:
                    return
                message = await self._source.receive()
        self._ended = True

    def _add(self, message: Message) -> int:
        """Add a message's batch, unless we have that already; return where the batch ends."""
        header, batch = self._checked_untrusted(message)
        due = self._batches[-1][0].end if self._batches else self._appended()
        # The live log may have brought this batch already.
        if header.end > due:
            # I-41: recorded here, it would leave a hole, or overwrite what is durable.
            if header.position != due:
                raise WireError(
                    f"replay at {header.position}, our log ends elsewhere, at {due}: {header}"
                )
            self._batches.append((header, batch))
        return header.end

    def _enough(self, held_until: float) -> bool:
        """Whether the batches so far are to be recorded, whatever is to come."""
        first, last = self._batches[0][0], self._batches[-1][0]
        return (
            last.end - first.position >= TOGETHER_BYTES
            or len(self._batches) >= MAX_GROUP_JOBS  # as many as are written in one commit
            or (self._stop is not None and last.end >= self._stop)
            or trio.current_time() >= held_until
        )

    def _checked_untrusted(self, message: Message) -> tuple[BatchHeader, bytes]:
        if not isinstance(message, LogBatch):
            raise WireError(f"a {type(message).__name__} in a replay of the log")
        term = message.leadership_term_id
        # A sender in another term may have truncated since, and its log need not agree with ours
        # (I-10).
        if term >= self._term if self._before else term != self._term:
            expected = f"one before {self._term}" if self._before else str(self._term)
            raise WireError(f"a replay in term {term}, not {expected}")
        return check_received_untrusted(message.batch), message.batch

    def take(self) -> list[tuple[BatchHeader, bytes]]:
        """Hand over the batches, in order; the live log may have brought some of them as well."""
        self._goes_on = True
        batches, self._batches = self._batches, []
        return batches
