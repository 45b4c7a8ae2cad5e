"""Serves the streams on which others ask for ranges of our log, or for our newest snapshot.

Outside readers (a backup, an export) get only what is committed, because the rest may yet be
truncated. They must not starve the live log or the disk. So all of them together have a few streams
(`LinkLimits.streams`) and one rate (`limits.reader_bytes_per_second`), and each send waits for its
network.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import attrs
import trio

from ...errors import DamagedRecordError, StorageError, WireError
from ...log_events import log_event
from ...storage import HEADER_BYTES, SnapshotReader, decode_header_untrusted
from ...transport import (
    NULL_VALUE,
    BackupQuery,
    BackupResponse,
    CommitPosition,
    EventsQuery,
    HeartbeatRequest,
    HeartbeatResponse,
    LogBatch,
    ReplayRequest,
    SnapshotOffer,
    SnapshotPart,
    SnapshotRequest,
    StreamPurpose,
)
from ..follower.following import Following
from ..leader.leadership import Leadership

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...storage import Store
    from ...transport import Authoriser, FrameStream, Hello, Message
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from ..state_machine.snapshots import Snapshots
    from ..upkeep.repair import Repair
    from .pace import SharedRate

log = logging.getLogger("quorate.node")


REQUEST_SECONDS = 5.0
"""How long the other side has for its request, and for closing at the end. If smaller, slow
networks break streams. If larger, a dead connection occupies one of the few streams for longer."""

STALL_SECONDS = 60.0
"""How long a reader may take to accept one message of up to 64 MiB. If smaller, slow readers are
cut off. If larger, a stuck reader occupies a stream for longer."""


SIGN_SECONDS = 1.0
"""How often an idle reader of the committed log gets the commit position. If smaller, idle readers
cost more. If larger, a reader takes us for dead (`replay_client.PATIENCE_SECONDS`)."""


@attrs.frozen(eq=False)
class Server:
    """Serves the streams on which others ask for what this member has.

    Args:
        state: of the member.
        store: its log.
        applier: says what is committed.
        snapshots: of the service.
        repair: reads the log.
        pace: of all readers from outside together.
        authoriser: decides who may ask for a backup, for a sign of life, or for events.
        events: sends this member's events on a stream until that ends.
    """

    state: MemberState
    store: Store
    applier: Applier
    snapshots: Snapshots
    repair: Repair
    pace: SharedRate
    authoriser: Authoriser
    events: Callable[[FrameStream], Awaitable[None]]

    async def serve(self, hello: Hello, stream: FrameStream) -> bool:
        """Serve a stream that asks for our data, and close it; False if it is another kind."""
        outside = hello.member_id == NULL_VALUE
        asked = hello.purpose in {StreamPurpose.REPLAY, StreamPurpose.SNAPSHOT}
        if (
            self.state.standby
            and asked
            and not (isinstance(self.state.role, Following) and self.state.role.compared)
        ):
            # A standby takes no part in elections. Until a leader has compared its log, that may
            # belong to a history from before the cluster was restored, or its quorum forced.
            return True
        match hello.purpose:
            case StreamPurpose.REPLAY:
                await self._serve_replay(stream, committed=outside)
            case StreamPurpose.SNAPSHOT:
                await serve_snapshot(self.snapshots, stream, self.pace if outside else None)
            case StreamPurpose.BACKUP if self._allows(stream, BackupQuery):
                await self._serve_backup(stream)
            case StreamPurpose.HEARTBEAT if self._allows(stream, HeartbeatRequest):
                await self._serve_heartbeats(stream)
            case StreamPurpose.EVENTS if self._allows(stream, EventsQuery):
                if isinstance(await _received(stream), EventsQuery):
                    await self.events(stream)
            case StreamPurpose.BACKUP | StreamPurpose.HEARTBEAT | StreamPurpose.EVENTS:
                pass  # not allowed
            case _:
                return False
        return True

    def _allows(self, stream: FrameStream, message: type[Message]) -> bool:
        """Whether the other end of a stream may send a message of a class."""
        allowed = self.authoriser.allows(stream.principal, message)
        if not allowed:
            words = "%(principal)s may not send a %(type)s"
            log_event(
                log,
                logging.WARNING,
                "not_allowed",
                words,
                principal=str(stream.principal),
                type=message.__name__,
            )
        return allowed

    async def _serve_heartbeats(self, stream: FrameStream) -> None:
        """Answer a monitor as long as we lead; another member closes the stream."""
        # Aeron: ConsensusModuleAgent.onHeartbeatRequest.
        while isinstance(self.state.role, Leadership):
            with trio.fail_after(STALL_SECONDS):
                request = await stream.receive()
            if not isinstance(request, HeartbeatRequest):
                return
            await _send(stream, HeartbeatResponse(request.correlation_id))

    async def _serve_backup(self, stream: FrameStream) -> None:
        """Send what we have; then, if asked, the log as it is committed, from a position on.

        Aeron: ConsensusModuleAgent.onBackupQuery, and a replay bounded by the commit position.
        """
        query = await _received(stream)
        if not isinstance(query, BackupQuery):
            raise WireError(f"expected a BackupQuery, found {type(query).__name__}")
        await _send(stream, await self._offer())
        request = await _received(stream)
        if request is None:
            return
        if not isinstance(request, ReplayRequest):
            raise WireError(f"expected a ReplayRequest, found {type(request).__name__}")
        try:
            await self._send_committed(stream, request)
            await _received(stream)  # the reader closes first
        except DamagedRecordError:
            raise  # no member has it; it is never skipped or sent: the member stops
        except StorageError as error:
            self._log_refusal("backup", error)

    async def _offer(self) -> BackupResponse:
        """Return what a reader must know to choose a member: log, newest snapshot, leader."""
        snapshots, newest, file_bytes = self.snapshots, self.snapshots.newest, 0
        if newest is not None:
            try:
                path = snapshots.folder.path_of(newest)
                file_bytes = await snapshots.read(lambda: path.stat().st_size)
            except OSError:
                newest = None  # removed since we looked
        return BackupResponse(
            member_id=self.state.member_id,
            leader_member_id=NULL_VALUE if self.state.leader_id is None else self.state.leader_id,
            leadership_term_id=self.state.leadership_term,
            start_position=self.store.start_position,
            commit_position=self.applier.commit_position,
            snapshot_position=newest.position if newest else NULL_VALUE,
            snapshot_term=newest.term if newest else NULL_VALUE,
            snapshot_bytes=file_bytes,
            standby=self.state.standby,
            service=self.store.recorded.service,
        )

    async def _send_committed(self, stream: FrameStream, request: ReplayRequest) -> None:
        """Send whole batches below the commit position and the reader's stop; wait for more.

        The first batch is the one that covers the requested position: a reader of a part of the log
        does not know where batches begin.
        """
        position, announced_at = request.position, float("-inf")
        if self.store.start_position < position < self.applier.commit_position:
            position = await self.store.boundary(position)
        while position < request.stop_position:
            begin, end = position, min(request.stop_position, self.applier.commit_position)
            for batch in await self.repair.read(position, end=end) if position < end else ():
                header = decode_header_untrusted(batch[:HEADER_BYTES])
                # The read stops near `end`, but only at the end of a batch, which may lie beyond
                # it.
                if header.end > self.applier.commit_position:
                    break
                await self.pace.take(len(batch))
                await _send(stream, LogBatch(self.state.leadership_term, 0, batch))
                position = header.end
            if position > begin:
                continue
            if trio.current_time() - announced_at >= SIGN_SECONDS:
                leader = NULL_VALUE if self.state.leader_id is None else self.state.leader_id
                sign = CommitPosition(
                    self.state.leadership_term, self.applier.commit_position, leader, 0
                )
                await _send(stream, sign)
                announced_at = trio.current_time()
            else:
                await trio.sleep(self.state.timeouts.leader_heartbeat_interval)

    async def _serve_replay(self, stream: FrameStream, *, committed: bool) -> None:
        """Send a range of our log; members use it to replicate an earlier term, and to repair.

        An outside reader gets only what is committed: the rest may yet be truncated.
        """
        request = await _received(stream)
        if not isinstance(request, ReplayRequest):
            raise WireError(f"expected a ReplayRequest, found {type(request).__name__}")
        position, stop = request.position, request.stop_position
        if committed:
            stop = min(stop, self.applier.commit_position)
        try:
            while position < stop:
                batches = await self.repair.read(position, end=stop)
                if not batches:
                    return
                for batch in batches:
                    if committed:
                        await self.pace.take(len(batch))
                    # Our term is read after the batch: it is raised before any truncation. So a
                    # batch sent with the reader's term belongs to the log that the reader knows.
                    await _send(stream, LogBatch(self.state.leadership_term, 0, batch))
                    position = decode_header_untrusted(batch[:HEADER_BYTES]).end
            await _received(stream)  # the reader closes first
        except DamagedRecordError:
            raise  # no member has it; it is never skipped or sent: the member stops
        except StorageError as error:
            self._log_refusal("replay", error)

    def _log_refusal(self, what: str, error: StorageError) -> None:
        words, own = "member %(member)d: %(what)s refused: %(why)s", self.state.member_id
        log_event(
            log, logging.WARNING, "reader_refused", words, member=own, what=what, why=str(error)
        )


async def serve_snapshot(
    snapshots: Snapshots, stream: FrameStream, pace: SharedRate | None = None
) -> None:
    """Send our newest snapshot, or the rest of it from an offset.

    A damaged part is logged and never sent.
    """
    request = await _received(stream)
    if not isinstance(request, SnapshotRequest):
        raise WireError(f"expected a SnapshotRequest, found {type(request).__name__}")
    row = snapshots.newest
    if row is None:
        await _send(stream, SnapshotOffer(0, 0, b""))
        return
    path = snapshots.folder.path_of(row)
    # A reader continues only the very snapshot that it has begun; any other starts at 0.
    offset = request.offset if (request.position, request.term) == (row.position, row.term) else 0
    try:
        with await snapshots.read(partial(SnapshotReader, path)) as reader:
            if offset and not await snapshots.read(partial(_skip, reader, offset)):
                offset = 0
            if not offset:
                reader.rewind()
                offset = reader.end
            await _send(stream, SnapshotOffer(offset, reader.file_bytes, reader.head_part))
            while (part := await snapshots.read(reader.next_part)) is not None:
                if pace is not None:
                    await pace.take(len(part))
                await _send(stream, SnapshotPart(offset, part))
                offset += len(part)
            await _received(stream)  # the reader closes first
    except StorageError as error:
        words = "snapshot not sent: %(why)s"
        log_event(log, logging.ERROR, "snapshot_not_sent", words, why=str(error))


async def _received(stream: FrameStream) -> Message | None:
    """Wait for the reader's next message; None if it closed the stream."""
    with trio.fail_after(REQUEST_SECONDS):
        return await stream.receive()


async def _send(stream: FrameStream, message: Message) -> None:
    with trio.fail_after(STALL_SECONDS):
        await stream.send(message)


def _skip(reader: SnapshotReader, offset: int) -> bool:
    """Read up to an offset; return whether a part begins there."""
    while reader.end < offset and reader.next_part() is not None:
        pass
    return reader.end == offset
