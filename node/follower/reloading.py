"""How a member whose service has lost its state gets it back from another member.

That is so when the tables were damaged, or their folder is gone, and none of the own snapshots that
the log goes on from is whole. The log and the votes are not concerned. The member waits in INIT,
and takes part in nothing, until it has fetched a snapshot. One of its own log is loaded, and the
log behind it applied; if the log ends before it, the log begins anew there, as with any member that
is too far behind.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ...errors import StorageError
from ...storage.log.term_table import term_at
from ...transport import CONNECTION_ERRORS
from .snapshot_install import check_service_of, fetch

if TYPE_CHECKING:
    from ...storage import SnapshotHead
    from ..state import Core

log = logging.getLogger("quorate.node")

TELL_SECONDS: Final = 10.0
"""How often it is told that nobody has sent one."""


async def reload(core: Core) -> None:
    """Return once the service has something to begin with."""
    told_at = float("-inf")
    while core.applier.wanting:
        head = await _fetched(core)
        if head is None:
            if trio.current_time() - told_at >= TELL_SECONDS:
                told_at = trio.current_time()
                log.error(
                    "member %d: its tables are gone, and none of its snapshots is whole: it waits "
                    "for another member's. If they run and have none, type: quorate control "
                    "snapshot --connect HOST:PORT",
                    core.member_id,
                )
            alone = not any(core.links.connected(peer) for peer in core.peers)
            timeouts = core.timeouts
            await trio.sleep(
                timeouts.canvass_interval if alone else timeouts.leader_heartbeat_timeout
            )
        elif head.position > core.store.append_position:
            await core.adopt_term(max(head.term, core.leadership_term))
            await core.snapshots.install(head)
        else:
            await core.snapshots.reload(head)


async def _fetched(core: Core) -> SnapshotHead | None:
    """Fetch a snapshot from whoever has one, standbys first."""
    for peer in sorted(core.config.peers, key=lambda one: not one.standby):
        if not core.links.connected(peer.member_id):
            continue
        try:
            return await fetch(core, peer.member_id, partial(_judge, core))
        except (*CONNECTION_ERRORS, StorageError) as trouble:
            who = core.member_id, peer.member_id
            log.warning("member %d: no snapshot from member %d: %r", *who, trouble)
    return None


def _judge(core: Core, head: SnapshotHead) -> None:
    """Look at what is offered.

    Raises:
        StorageError: it is of no use: the log does not go on from it.
    """
    store = core.store
    if head.cluster != core.config.cluster:
        raise StorageError(f"it is one of cluster {head.cluster!r}")
    check_service_of(head, store)
    if head.position < store.start_position:
        raise StorageError(f"it is of {head.position}, our log begins at {store.start_position}")
    if head.position <= store.append_position:
        row = term_at(store.terms, head.position - 1)
        if row is None or row.term != head.term:
            raise StorageError(
                f"it is of position {head.position} in term {head.term}, not so here"
            )
