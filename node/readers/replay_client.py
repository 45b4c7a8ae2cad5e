"""Reads a cluster's committed log from outside: for backups and exports.

All members are asked at the same time what they have. A standby is preferred, then a follower, so
that the leader is not disturbed. The chosen member sends only what is committed. Each batch is
checked before it is returned: its checksum, that it begins where the one before ended, and that
neither terms nor log time decrease. When a member is lost, another one is used.

A program without an event loop (a job on an executor of Spark) runs one for each :func:`fetch`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Self

import attrs
import trio

from ...errors import PrunedError, TransportError, WireError
from ...storage import check_received_untrusted
from ...transport import (
    CONNECTION_ERRORS,
    NULL_VALUE,
    PROTOCOL_VERSION,
    Address,
    BackupQuery,
    BackupResponse,
    CommitPosition,
    FrameStream,
    Hello,
    LinkLimits,
    LogBatch,
    PeerSecurity,
    ReplayRequest,
    StreamPurpose,
    TcpNetwork,
    open_stream,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from ...storage import BatchHeader
    from ...transport import Network

log = logging.getLogger("quorate.node")

ANSWER_SECONDS: Final = 5.0
"""How long a member has for its answer. If smaller, a busy member is ignored. If larger, a stuck
one holds up each reader that long."""

PATIENCE_SECONDS: Final = 15.0
"""How long a member may be silent; an idle one sends its commit position each second. If smaller, a
slow network breaks streams. If larger, a lost member is noticed later."""

END_OF_TIME: Final = (1 << 63) - 1
"""A stop position that no log reaches."""


@attrs.frozen
class Batch:
    """A committed batch of the log, checked.

    Args:
        header: of the batch, decoded.
        data: its bytes, header included.
    """

    header: BatchHeader
    data: bytes


@attrs.frozen
class SourceAnswer:
    """A member's answer to the question what it has, and the stream on which it came.

    Args:
        address: where the member listens.
        said: what it has.
        stream: still open; the log or a snapshot can be requested on it.
    """

    address: Address
    said: BackupResponse
    stream: FrameStream

    @property
    def leads(self) -> bool:
        """Whether it is the leader."""
        return self.said.leader_member_id == self.said.member_id


class ReplayClient:
    """A reader of a cluster's committed log.

    Args:
        cluster: its name; members of another cluster refuse us.
        addresses: where members listen for members. Give all of them: fewer means fewer sources.
        network: TCP unless given.
        security: proves who we are, and judges who answers; open unless given.

    Attributes:
        snapshot_source: address of the member that was last asked for a snapshot.
        unanswered: by address, why a member did not answer the last question.
    """

    def __init__(
        self,
        cluster: str,
        addresses: Sequence[Address],
        *,
        network: Network | None = None,
        security: PeerSecurity | None = None,
    ) -> None:
        self.cluster = cluster
        self.addresses = tuple(addresses)
        self.unanswered: dict[Address, Exception] = {}
        self.snapshot_source: Address | None = None
        self._network: Network = network or TcpNetwork()
        self._security = security or PeerSecurity()
        self._troubled: list[Address] = []

    async def ask(self) -> list[BackupResponse]:
        """Ask all members what they have; return the answers, the best source first.

        Raises:
            TransportError: no member answers.
        """
        answers = await self._ask_all()
        for answer in answers:
            answer.stream.close()
        return [answer.said for answer in answers]

    async def replay(
        self, position: int, stop: int = END_OF_TIME, *, covering: bool = False
    ) -> ReplayStream:
        """Open a stream of the committed log from a position on; close it after use.

        Args:
            position: where a batch begins, or where the log ends.
            stop: the last batch that is sent is the one that contains the byte before.
            covering: the first batch is the one that contains `position`, wherever it begins.

        Raises:
            PrunedError: every member answers, and none has the log from there on.
            TransportError: no member that answers has it.
            OSError, trio's stream errors: the member was lost just now.
        """
        answers = await self._ask_all()
        able = [answer for answer in answers if answer.said.start_position <= position]
        for answer in answers:
            if answer not in able[:1]:
                answer.stream.close()
        if able:
            replay = ReplayStream(able[0], position, covering=covering)
            try:
                await replay.stream.send(ReplayRequest(position, stop))
            except CONNECTION_ERRORS:
                self.avoid(able[0].address)
                raise
            return replay
        words = (
            f"the log of cluster {self.cluster!r} begins at "
            f"{min(answer.said.start_position for answer in answers)}, after {position}"
        )
        raise (
            TransportError(f"{words}, on the members that answer")
            if self.unanswered
            else PrunedError(words)
        )

    async def open_snapshot(self, position: int) -> FrameStream:
        """Open a stream on which a member sends its newest snapshot, the one at `position`.

        Raises:
            TransportError: no member that answers has it.
            OSError, trio's stream errors: the member was lost just now.
        """
        answers = await self._ask_all()
        for answer in answers:
            answer.stream.close()
        for answer in answers:
            if answer.said.snapshot_position == position:
                self.snapshot_source = answer.address
                return await self._open(answer.address, StreamPurpose.SNAPSHOT)
        raise TransportError(f"no member that answers has the snapshot at {position}")

    def avoid(self, address: Address) -> None:
        """Prefer other members from now on, until all of them have failed."""
        if address not in self._troubled:
            self._troubled.append(address)
        if len(self._troubled) == len(self.addresses):
            self._troubled.clear()

    async def _open(self, address: Address, purpose: StreamPurpose) -> FrameStream:
        hello = Hello(self.cluster, NULL_VALUE, PROTOCOL_VERSION, 0, purpose)
        return await open_stream(self._network, address, hello, LinkLimits(), self._security)

    async def _ask_all(self) -> list[SourceAnswer]:
        """Ask all members at the same time; return the answers, the best source first.

        Raises:
            TransportError: no member answers.
        """
        answers: list[SourceAnswer] = []
        self.unanswered = {}
        async with trio.open_nursery() as nursery:
            for address in self.addresses:
                nursery.start_soon(self._ask, address, answers)
        if not answers:
            why = "; ".join(f"{at}: {error}" for at, error in sorted(_said(self.unanswered)))
            raise TransportError(f"no member answers: {why}")
        return sorted(answers, key=self._rank)

    async def _ask(self, address: Address, answers: list[SourceAnswer]) -> None:
        try:
            stream = await self._open(address, StreamPurpose.BACKUP)
            try:
                said = await _answer(stream)
            except BaseException:
                stream.close()
                raise
        except CONNECTION_ERRORS as trouble:
            self.unanswered[address] = trouble
        else:
            answers.append(SourceAnswer(address, said, stream))

    def _rank(self, answer: SourceAnswer) -> tuple[bool, bool, bool, bool, int, int]:
        """Order answers: not failed, knows a leader, is a standby, does not lead, has most log."""
        said, troubled = answer.said, answer.address in self._troubled
        lost = said.leader_member_id == NULL_VALUE
        most = -said.commit_position
        return troubled, lost, not said.standby, answer.leads, most, said.member_id


async def _answer(stream: FrameStream) -> BackupResponse:
    with trio.fail_after(ANSWER_SECONDS):
        await stream.send(BackupQuery())
        said = await stream.receive()
    if not isinstance(said, BackupResponse):
        raise WireError(f"expected a BackupResponse, found {type(said).__name__}")
    return said


def _said(troubles: dict[Address, Exception]) -> Iterator[tuple[str, str]]:
    for address, trouble in troubles.items():
        yield str(address), str(trouble) or type(trouble).__name__


class ReplayStream:
    """A stream of committed batches from one member; an async context manager.

    Attributes:
        address: where the member listens.
        member_id: which one it is.
        position: where the next batch begins.
        commit_position: the highest commit position that the member has reported.
        turned: the member has become the leader since it was chosen.
        stream: the connection.
    """

    def __init__(self, source: SourceAnswer, position: int, *, covering: bool = False) -> None:
        self.address = source.address
        self.member_id = source.said.member_id
        self.position = position
        self.commit_position = source.said.commit_position
        self.turned = False
        self.stream = source.stream
        self._covering = covering
        self._led = source.leads
        self._before: BatchHeader | None = None

    async def receive(self) -> Batch | None:
        """Wait for the next batch; None if the member only reported that it is alive.

        Raises:
            WireError: the message is no batch of this log, or the member sends no more of it.
            trio.BrokenResourceError: the connection is broken.
            trio.TooSlowError: nothing came for `PATIENCE_SECONDS`.
        """
        with trio.fail_after(PATIENCE_SECONDS):
            message = await self.stream.receive()
        match message:
            case LogBatch():
                return self._checked_untrusted(message)
            case CommitPosition():
                self.commit_position = max(self.commit_position, message.log_position)
                self.turned = message.leader_member_id == self.member_id and not self._led
                return None
            case None:
                raise WireError(f"member {self.member_id} sends no more of its log")
            case _:
                raise WireError(f"expected a LogBatch, found {type(message).__name__}")

    def _checked_untrusted(self, message: LogBatch) -> Batch:
        """Check a batch, and that it continues the one before.

        Raises:
            WireError: it is invalid or does not.
        """
        header, before = check_received_untrusted(message.batch), self._before
        if self._covering and header.position <= self.position < header.end:
            self.position = header.position
        self._covering = False
        if header.position != self.position:
            raise WireError(f"expected the batch at {self.position}, found {header}")
        if header.term > message.leadership_term_id or header.commit_position > header.position:
            raise WireError(f"{header} came in term {message.leadership_term_id}")
        if before and (header.term < before.term or header.timestamp_ms < before.timestamp_ms):
            raise WireError(f"{header} does not continue {before}")
        self._before, self.position = header, header.end
        self.commit_position = max(self.commit_position, header.end)
        return Batch(header, message.batch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stream.close()


# --- without an event loop ------------------------------------------------------------------------


async def fetch(
    client: ReplayClient, position: int, stop: int, limit_bytes: int, *, covering: bool = False
) -> list[Batch]:
    """Fetch committed batches from a position on; none if there are none yet.

    Args:
        client: of the cluster.
        position: where a batch begins, or where the log ends.
        stop: no batch that begins at or after it is fetched.
        limit_bytes: stop after this many bytes; the last batch may exceed it.
        covering: the first batch is the one that contains `position`, wherever it begins.

    Raises:
        TransportError, OSError, trio's stream errors: the member was lost, or none answers.
        PrunedError: the log is not kept from there on.
    """
    batches: list[Batch] = []
    async with await client.replay(position, stop, covering=covering) as replay:
        stop = min(stop, replay.commit_position)
        try:
            while replay.position < stop and replay.position - position < limit_bytes:
                if batch := await replay.receive():
                    batches.append(batch)
        except CONNECTION_ERRORS:
            client.avoid(replay.address)
            raise
    return batches
