"""How a member that is too far behind for the leader's log fetches a snapshot.

It asks a follower first, for those have less to do, and then the leader; whoever has one from which
the leader's log goes on will do. What has come of it is kept: if the link breaks, or the leader
changes, the transfer goes on where it stopped, with whichever member has the same snapshot, for
members write equal files. Nothing of it is believed before the whole file was checked.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from ..errors import StorageError, TransportError, WireError
from ..storage.snapshot_file import decode_head_untrusted
from ..transport import (
    WEATHER,
    AppendFlags,
    SnapshotOffer,
    SnapshotPart,
    SnapshotRequest,
    StreamPurpose,
)

if TYPE_CHECKING:
    from ..storage import SnapshotHead, Transfer
    from ..transport import FrameStream
    from .contest import Election
    from .following import Following
    from .rules import Install

log = logging.getLogger("quorate.node")


async def install(e: Election, role: Following, wanted: Install) -> SnapshotHead:
    """Fetch a snapshot from which the leader's log goes on, and begin anew with it.

    Raises:
        TransportError: no member has sent one; what has come is kept.
    """
    role.flags = AppendFlags.INSTALL
    role.report()
    core = e.core
    followers = [peer for peer in core.peers if peer != role.leader_id]
    for member in [peer for peer in followers if core.links.connected(peer)] + [role.leader_id]:
        try:
            head = await _fetch(e, member, wanted.oldest)
        except (*WEATHER, StorageError) as trouble:
            who = core.member_id, member
            log.warning("member %d: no snapshot from member %d: %r", *who, trouble)
        else:
            await core.snapshots.install(head)
            return head
    raise TransportError("no member has sent a snapshot that the leader's log goes on from")


async def _fetch(e: Election, member: int, oldest: int) -> SnapshotHead:
    """Fetch a member's newest snapshot, or the rest of it.

    Raises:
        TransportError, OSError, trio's errors of streams: the link broke, or stands still.
        StorageError: what came is damaged, too old, or there is no room for it.
    """
    core, snapshots = e.core, e.core.snapshots
    patience = 4 * core.timeouts.leader_heartbeat_timeout
    known = await snapshots.read(snapshots.folder.arriving)
    stream = await core.links.open_stream(member, purpose=StreamPurpose.SNAPSHOT)
    async with stream:
        await stream.send(SnapshotRequest(*known))
        with trio.fail_after(patience):
            offer = await stream.receive()
        if not isinstance(offer, SnapshotOffer):
            raise WireError(f"expected a SnapshotOffer, found {type(offer).__name__}")
        head = _judge_untrusted(e, offer, oldest)
        start = partial(snapshots.folder.transfer, head, offer.head, offer.offset)
        transfer = await snapshots.read(start)
        try:
            await _receive(e, stream, transfer, offer.file_bytes, patience)
            await snapshots.read(transfer.finish)
        except StorageError:  # also for want of room, which it would keep for itself
            transfer.abandon()
            raise
        finally:
            snapshots.arrived = None
            transfer.close()
    return head


def _judge_untrusted(e: Election, offer: SnapshotOffer, oldest: int) -> SnapshotHead:
    """Look at what is offered.

    Raises:
        StorageError: it is nothing, or of no use.
    """
    if not offer.head:
        raise StorageError("it has none")
    head = decode_head_untrusted(offer.head)
    if head.cluster != e.core.config.cluster:
        raise StorageError(f"it is one of cluster {head.cluster!r}")
    if head.position < max(oldest, e.core.applier.commit_position):
        raise StorageError(
            f"it is of position {head.position}; the leader's log begins at {oldest}"
        )
    if head.term > e.core.promised.candidate_term:
        raise StorageError(f"it is of term {head.term}, newer than the leader")
    return head


async def _receive(
    e: Election, stream: FrameStream, transfer: Transfer, file_bytes: int, patience: float
) -> None:
    snapshots = e.core.snapshots
    while transfer.offset < file_bytes:
        with trio.fail_after(patience):
            message = await stream.receive()
        if not isinstance(message, SnapshotPart):
            raise WireError(f"expected a SnapshotPart, found {type(message).__name__}")
        end = message.offset + len(message.part)
        if message.offset != transfer.offset or not transfer.offset < end <= file_bytes:
            raise WireError(f"bytes {message.offset} to {end} came at {transfer.offset}")
        snapshots.check_room()
        await snapshots.read(partial(transfer.write, message.part))
        snapshots.arrived = transfer.offset, file_bytes
