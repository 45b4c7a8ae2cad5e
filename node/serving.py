"""What a member sends on streams that others open: ranges of its recording, and its snapshots."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from ..errors import DamagedRecordError, StorageError, WireError
from ..storage import HEADER_BYTES, SnapshotReader, decode_header_untrusted
from ..transport import (
    LogBatch,
    ReplayRequest,
    SnapshotOffer,
    SnapshotPart,
    SnapshotRequest,
)

if TYPE_CHECKING:
    from ..transport import FrameStream, Message
    from .core import Core
    from .snapshots import Snapshots

log = logging.getLogger("quorate.node")


REQUEST_SECONDS = 5.0
"""How long who opened a stream has to say what it wants, and at the end to close it."""

STALL_SECONDS = 60.0
"""How long a reader may take for one message, which is up to 64 MiB long."""


async def serve_replay(core: Core, stream: FrameStream, *, committed: bool) -> None:
    """Send a range of our recording; a member asks for it to replicate an earlier term.

    A reader that is no member gets only what is committed: the rest may yet be truncated.
    """
    request = await _received(stream)
    if not isinstance(request, ReplayRequest):
        raise WireError(f"expected a ReplayRequest, found {type(request).__name__}")
    position, stop = request.position, request.stop_position
    if committed:
        stop = min(stop, core.applier.commit_position)
    try:
        while position < stop:
            batches = await core.repair.read(position, end=stop)
            if not batches:
                return
            for batch in batches:
                # The term is looked at after the read: it is raised before a truncation, so a
                # batch that names the asker's term is of the log that the asker knows.
                await _send(stream, LogBatch(core.leadership_term, 0, batch))
                position = decode_header_untrusted(batch[:HEADER_BYTES]).end
        await _received(stream)  # the asking side closes first
    except DamagedRecordError:
        raise  # nobody has it: never skipped, and never sent, the member stops
    except StorageError as error:
        log.warning("member %d: a replay was refused: %s", core.member_id, error)


async def serve_snapshot(snapshots: Snapshots, stream: FrameStream) -> None:
    """Send our newest snapshot, or the rest of it; a damaged part is told, and never sent."""
    request = await _received(stream)
    if not isinstance(request, SnapshotRequest):
        raise WireError(f"expected a SnapshotRequest, found {type(request).__name__}")
    row = snapshots.newest
    if row is None:
        await _send(stream, SnapshotOffer(0, 0, b""))
        return
    path = snapshots.folder.path_of(row)
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
                await _send(stream, SnapshotPart(offset, part))
                offset += len(part)
            await _received(stream)  # the asking side closes first
    except StorageError as error:
        log.error("a snapshot was not sent: %s", error)  # noqa: TRY400 - the words say it all


async def _received(stream: FrameStream) -> Message | None:
    with trio.fail_after(REQUEST_SECONDS):
        return await stream.receive()


async def _send(stream: FrameStream, message: Message) -> None:
    with trio.fail_after(STALL_SECONDS):
        await stream.send(message)


def _skip(reader: SnapshotReader, offset: int) -> bool:
    """Read up to an offset; say whether a part begins there."""
    while reader.end < offset and reader.next_part() is not None:
        pass
    return reader.end == offset
