"""How a member that is too far behind for the leader's log fetches a snapshot.

It asks standbys first and then followers, for those have less to do, and the leader last; whoever
has one from which the leader's log goes on will do. What has come of it is kept if the link breaks,
or the leader changes (see :mod:`.fetching`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from ...errors import StorageError, TransportError
from ...transport import CONNECTION_ERRORS, AppendFlags, StreamPurpose
from .fetching import fetch_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...storage import SnapshotHead, Store
    from ..election.context import Election
    from ..protocol.rules import Install
    from ..state import Core
    from .following import Following

log = logging.getLogger("quorate.node")


async def install(e: Election, role: Following, wanted: Install) -> SnapshotHead:
    """Fetch a snapshot from which the leader's log goes on, and begin anew with it.

    Raises:
        TransportError: no member has sent one; what has come is kept.
    """
    role.flags = AppendFlags.INSTALL
    role.report()
    core = e.core
    peers = [peer.member_id for peer in sorted(core.config.peers, key=lambda one: not one.standby)]
    others = [peer for peer in peers if peer != role.leader_id and core.links.connected(peer)]
    for member in [*others, role.leader_id]:
        try:
            async with core.applier.halted():  # what it replaces need not be applied first
                head = await fetch(core, member, partial(_judge, e, wanted.oldest))
        except (*CONNECTION_ERRORS, StorageError) as trouble:
            who = core.member_id, member
            log.warning("member %d: no snapshot from member %d: %r", *who, trouble)
        else:
            await core.snapshots.install(head)
            return head
    raise TransportError("no member has sent a snapshot that the leader's log goes on from")


async def fetch(core: Core, member: int, judge: Callable[[SnapshotHead], None]) -> SnapshotHead:
    """Fetch a member's newest snapshot, or the rest of it; `judge` raises if it is of no use.

    Raises:
        TransportError, OSError, trio's errors of streams: the link broke, or stands still.
        StorageError: what came is damaged or of no use, or there is no room for it.
    """
    snapshots = core.snapshots

    def arrived(offset: int, file_bytes: int) -> None:
        snapshots.check_room()
        snapshots.arrived = offset, file_bytes

    stream = await core.links.open_stream(member, purpose=StreamPurpose.SNAPSHOT)
    async with stream:
        try:
            return await fetch_snapshot(
                stream,
                snapshots.folder,
                judge=judge,
                read=snapshots.read,
                arrived=arrived,
                patience=4 * core.timeouts.leader_heartbeat_timeout,
            )
        finally:
            snapshots.arrived = None


def check_service_of(head: SnapshotHead, store: Store) -> None:
    """Refuse a snapshot of another kind of service.

    Raises:
        StorageError: it is one.
    """
    known = store.recorded.service
    if head.service and known and head.service != known:
        raise StorageError(f"it is one of a {head.service}, expected one of a {known}")


def _judge(e: Election, oldest: int, head: SnapshotHead) -> None:
    """Look at what is offered.

    Raises:
        StorageError: it is of no use.
    """
    if head.cluster != e.core.config.cluster:
        raise StorageError(f"it is one of cluster {head.cluster!r}")
    check_service_of(head, e.core.store)
    if head.position < max(oldest, e.core.applier.commit_position):
        raise StorageError(
            f"it is of position {head.position}; the leader's log begins at {oldest}"
        )
    if head.term > e.core.promised.candidate_term:
        raise StorageError(f"it is of term {head.term}, newer than the leader")
