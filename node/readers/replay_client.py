"""Reads a cluster's committed log from outside: for backups and exports.

The members are asked what they have, all at the same time; a standby is preferred, and then a
follower, so that the leader is not disturbed. What it sends is only what is committed, and each
batch is checked before it is handed on: its checksum, that it begins where the one before ended,
and that neither terms nor the log's time go back. When a member is lost another one is taken.

Whoever has no event loop (a job on an executor of Spark) runs one for each :func:`fetch`.
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
"""How long a member has for its answer."""

PATIENCE_SECONDS: Final = 15.0
"""How long a member may send nothing, though it gives a sign of life each second."""

END_OF_TIME: Final = (1 << 63) - 1
"""A stop position that no log reaches."""


@attrs.frozen
class Batch:
    """A committed batch of the log, checked.

    Args:
        header: what it says.
        data: its bytes.
    """

    header: BatchHeader
    data: bytes


@attrs.frozen
class Answer:
    """What a member says that it has, and the stream on which it said so."""

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
        cluster: its name; members of another one refuse us.
        addresses: where members listen for members; they should be all of them.
        network: TCP unless given.

    Attributes:
        snapshot_source: where the member listens that was asked for a snapshot last.
        unanswered: the addresses where nobody answered, when the members were asked last, and why.
    """

    def __init__(
        self, cluster: str, addresses: Sequence[Address], *, network: Network | None = None
    ) -> None:
        self.cluster = cluster
        self.addresses = tuple(addresses)
        self.unanswered: dict[Address, Exception] = {}
        self.snapshot_source: Address | None = None
        self._network: Network = network or TcpNetwork()
        self._troubled: list[Address] = []

    async def ask(self) -> list[BackupResponse]:
        """Ask all members what they have; best source first.

        Raises:
            TransportError: none answers.
        """
        answers = await self._ask_all()
        for answer in answers:
            answer.stream.close()
        return [answer.said for answer in answers]

    async def replay(
        self, position: int, stop: int = END_OF_TIME, *, covering: bool = False
    ) -> Replay:
        """Open a stream of the committed log from a position on; close it after use.

        Args:
            position: where a batch begins, or the log ends.
            stop: the last batch that is sent is the one that covers the byte before.
            covering: the first batch is the one that covers `position`, wherever it begins.

        Raises:
            PrunedError: every member answers, and none has the log from there on.
            TransportError: no member answers that has it.
            OSError, trio's errors of streams: the member was lost just now.
        """
        answers = await self._ask_all()
        able = [answer for answer in answers if answer.said.start_position <= position]
        for answer in answers:
            if answer not in able[:1]:
                answer.stream.close()
        if able:
            replay = Replay(able[0], position, covering=covering)
            try:
                await replay.stream.send(ReplayRequest(position, stop))
            except CONNECTION_ERRORS:
                self.avoid(able[0].address)
                raise
            return replay
        words = (
            f"the log of cluster {self.cluster!r} begins at "
            f"{min(answer.said.start_position for answer in answers)}, behind {position}"
        )
        raise (
            TransportError(f"{words}, where members answer")
            if self.unanswered
            else PrunedError(words)
        )

    async def open_snapshot(self, position: int) -> FrameStream:
        """Open a stream on which a member sends its newest snapshot, which is of `position`.

        Raises:
            TransportError: none answers that has it.
            OSError, trio's errors of streams: the member was lost just now.
        """
        answers = await self._ask_all()
        for answer in answers:
            answer.stream.close()
        for answer in answers:
            if answer.said.snapshot_position == position:
                self.snapshot_source = answer.address
                return await self._open(answer.address, StreamPurpose.SNAPSHOT)
        raise TransportError(f"no member answers that has the snapshot at {position}")

    def avoid(self, address: Address) -> None:
        """Take another member from now on, until they all have made trouble: this one has."""
        if address not in self._troubled:
            self._troubled.append(address)
        if len(self._troubled) == len(self.addresses):
            self._troubled.clear()

    async def _open(self, address: Address, purpose: StreamPurpose) -> FrameStream:
        hello = Hello(self.cluster, NULL_VALUE, PROTOCOL_VERSION, 0, purpose)
        return await open_stream(self._network, address, hello, LinkLimits())

    async def _ask_all(self) -> list[Answer]:
        """Ask all members at the same time; best source first.

        Raises:
            TransportError: none answers.
        """
        answers: list[Answer] = []
        self.unanswered = {}
        async with trio.open_nursery() as nursery:
            for address in self.addresses:
                nursery.start_soon(self._ask, address, answers)
        if not answers:
            why = "; ".join(f"{at}: {error}" for at, error in sorted(_said(self.unanswered)))
            raise TransportError(f"no member answers: {why}")
        return sorted(answers, key=self._rank)

    async def _ask(self, address: Address, answers: list[Answer]) -> None:
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
            answers.append(Answer(address, said, stream))

    def _rank(self, answer: Answer) -> tuple[bool, bool, bool, bool, int, int]:
        """Order answers: no trouble, knows a leader, a standby, not the leader, most of the log."""
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


class Replay:
    """A stream of committed batches from one member; an async context manager.

    Attributes:
        address: where the member listens.
        member_id: which one it is.
        position: up to where batches have come.
        commit_position: up to where the member has said that the log is committed.
        turned: the member has become the leader since it was chosen.
        stream: what it comes over.
    """

    def __init__(self, source: Answer, position: int, *, covering: bool = False) -> None:
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
        """Wait for the next batch; None for a sign of life when there is none.

        Raises:
            WireError: what came is no batch of this log; or the member will send no more of it.
            trio.BrokenResourceError: the connection is broken.
            trio.TooSlowError: nothing came for too long.
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
        """Check a batch, and that it goes on from the one before.

        Raises:
            WireError: it is not what it should be.
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
            raise WireError(f"{header} does not go on from {before}")
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
        position: where a batch begins, or the log ends.
        stop: no batch that begins there or behind.
        limit_bytes: not many more bytes than that.
        covering: the first batch is the one that covers `position`, wherever it begins.

    Raises:
        TransportError, OSError, trio's errors of streams: the member was lost, or none answers.
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
