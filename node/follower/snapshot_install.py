"""How a member gets a snapshot from another member, and begins anew with it.

There are two reasons. A follower may be so far behind that its leader has dropped the log that it
needs (:meth:`SnapshotInstall.install`). Or the service of a member has lost its state: its tables
are damaged or missing, and no intact snapshot of its own reaches its log
(:meth:`SnapshotInstall.reload`). It keeps its log and its vote, and waits in INIT.

A witness has no tables (:mod:`..state_machine.witness`). Of a snapshot it fetches the head alone.

Any member will do that has a suitable snapshot: members write equal files. Standbys are asked first
and then followers, because they have less to do, and the leader last. What has arrived is kept: if
the link breaks or the leader changes, the transfer goes on where it stopped, with whichever member
has the same snapshot. Nothing of a file is used before the whole file was checked.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from ...errors import StorageError, TransportError, WireError
from ...log_events import log_event
from ...storage.rows.term_table import term_at
from ...storage.snapshots.file import decode_head_untrusted
from ...transport import (
    CONNECTION_ERRORS,
    SnapshotOffer,
    SnapshotPart,
    SnapshotRequest,
    StreamPurpose,
)
from ..protocol.membership import MemberRole

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...storage import SnapshotFolder, SnapshotHead, Store, Transfer
    from ...transport import FrameStream, Links
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from ..state_machine.snapshots import Snapshots
    from ..voter import Voter

log = logging.getLogger("quorate.node")

T = TypeVar("T")

REMIND_SECONDS: Final = 10.0
"""How often the log says that no member has a snapshot for us. Shorter: the log fills with it.
Longer: an operator who looks at the log waits for the hint what to type."""


NOTHING_ARRIVED: Final = (-1, -1, 0)
"""Position, term and bytes of the transfer that a request goes on with, if there is none."""


class SnapshotInstall:
    """Fetches snapshots from other members, and begins anew with them.

    Args:
        state: of the member.
        store: its log, which goes on from the snapshot.
        links: to the other members.
        applier: halted while a snapshot arrives.
        snapshots: of the service.
        voter: promises the term of a snapshot that our log does not reach.
    """

    def __init__(
        self,
        *,
        state: MemberState,
        store: Store,
        links: Links,
        applier: Applier,
        snapshots: Snapshots,
        voter: Voter,
    ) -> None:
        self._state = state
        self._store = store
        self._links = links
        self._applier = applier
        self._snapshots = snapshots
        self._voter = voter
        self._reminded_at = float("-inf")

    async def install(self, leader_id: int, oldest: int) -> SnapshotHead:
        """Fetch a snapshot from which the leader's log goes on, and begin anew with it.

        Args:
            leader_id: is asked last.
            oldest: where the leader's log begins.

        Raises:
            TransportError: no member has sent one; what has arrived is kept.
        """
        linked = [peer for peer in self._standbys_first() if self._links.connected(peer)]
        others = [peer for peer in linked if peer != leader_id]
        for member in [*others, leader_id]:
            try:
                # What the snapshot replaces need not be applied first.
                async with self._applier.halted():
                    head = await self.fetch(member, partial(self._check_install, oldest))
            # One member that fails is no reason to give up: all members have equal files (I-24).
            except (*CONNECTION_ERRORS, StorageError) as trouble:
                self._log_refusal(member, trouble)
            else:
                # Outside of the `halted` block: the installation halts the applier itself, and
                # outlives this role.
                await self._snapshots.install(head)
                return head
        seat = self._state.membership.seat(leader_id)
        if seat is not None and seat.role is MemberRole.WITNESS:
            self._remind(
                f"its log is too old for that of member {leader_id}, a witness, which has no "
                "snapshot; until another member with tables runs, the cluster takes no writes. "
                f"Not reached: members {sorted({*self._state.peers} - {*linked})}"
            )
        raise TransportError("no member has sent a snapshot that the leader's log goes on from")

    async def reload(self) -> None:
        """Return once the service has a state to begin with."""
        while self._applier.wanting:
            head = await self._fetch_from_any()
            if head is None:
                self._remind(
                    "its tables are gone, and none of its snapshots is intact: it waits for "
                    "another member's. If the other members run and have none, type: quorate "
                    "control snapshot --connect HOST:PORT"
                )
                timeouts = self._state.timeouts
                alone = not any(map(self._links.connected, self._state.peers))
                # Alone we wait for a link, which is soon there; else for another member to take a
                # snapshot, which takes longer.
                await trio.sleep(
                    timeouts.canvass_interval if alone else timeouts.leader_heartbeat_timeout
                )
            elif head.position > self._store.append_position:
                # The snapshot has entries of a term that our log does not reach.
                await self._voter.adopt_term(max(head.term, self._state.leadership_term))
                # The log begins anew behind its own end, so it must be replaced together with the
                # state.
                await self._snapshots.install(head)
            else:
                await self._snapshots.reload(head)

    def _remind(self, words: str) -> None:
        """Log what we wait for, unless that was just done."""
        if trio.current_time() - self._reminded_at >= REMIND_SECONDS:
            self._reminded_at = trio.current_time()
            own = self._state.member_id
            log_event(
                log,
                logging.ERROR,
                "snapshot_needed",
                "member %(member)d: %(why)s",
                member=own,
                why=words,
            )

    async def _fetch_from_any(self) -> SnapshotHead | None:
        """Fetch a snapshot from any member that has a suitable one."""
        for member in self._standbys_first():
            if self._links.connected(member):
                try:
                    return await self.fetch(member, self._check_reload)
                # As in `install`: the next member may have a whole one.
                except (*CONNECTION_ERRORS, StorageError) as trouble:
                    self._log_refusal(member, trouble)
        return None

    def _standbys_first(self) -> list[int]:
        voters = self._state.voters
        return sorted(self._state.peers, key=lambda peer: (peer in voters, peer))

    def _log_refusal(self, member: int, trouble: BaseException) -> None:
        own = self._state.member_id
        log_event(
            log,
            logging.WARNING,
            "snapshot_refused",
            "member %(member)d: no snapshot from member %(peer)d: %(why)s",
            member=own,
            peer=member,
            why=repr(trouble),
        )

    async def fetch(self, member: int, judge: Callable[[SnapshotHead], None]) -> SnapshotHead:
        """Fetch a member's newest snapshot, or the rest of it.

        Args:
            member: is asked.
            judge: raises StorageError if the offered snapshot is of no use.

        Raises:
            TransportError, OSError, trio's errors of streams: the link broke, or stands still.
            StorageError: what came is damaged or of no use, or there is no room for it.
        """
        snapshots = self._snapshots

        def arrived(offset: int, file_bytes: int) -> None:
            snapshots.check_room()
            snapshots.arrived = offset, file_bytes

        patience = 4 * self._state.timeouts.leader_heartbeat_timeout
        stream = await self._links.open_stream(member, purpose=StreamPurpose.SNAPSHOT)
        async with stream:
            if self._state.witness:
                await stream.send(SnapshotRequest(*NOTHING_ARRIVED))
                _, head = await _offered(stream, judge, patience)
                await snapshots.keep_head(head)
                return head
            try:
                return await fetch_snapshot(
                    stream,
                    snapshots.folder,
                    judge=judge,
                    read=snapshots.read,
                    arrived=arrived,
                    patience=patience,
                )
            finally:
                snapshots.arrived = None

    # --- which snapshots are of use ---------------------------------------------------------------

    def _check_kind(self, head: SnapshotHead) -> None:
        cluster = self._state.config.cluster
        # The port takes connections from anybody; a snapshot of another cluster would replace our
        # state.
        if head.cluster != cluster:
            raise StorageError(f"it is one of cluster {head.cluster!r}, expected {cluster!r}")
        check_service_of(head, self._store)

    def _check_install(self, oldest: int, head: SnapshotHead) -> None:
        """Check a snapshot that is to replace our log.

        Raises:
            StorageError: it is of no use.
        """
        self._check_kind(head)
        # I-14, I-17: below it, entries that we know to be committed would be taken back.
        if head.position < max(oldest, self._applier.commit_position):
            raise StorageError(
                f"it is of position {head.position}; the leader's log begins at {oldest}"
            )
        # To take it would be to live in a term that we have not promised (I-6).
        if head.term > self._state.promised.candidate_term:
            raise StorageError(f"it is of term {head.term}, newer than the leader")

    def _check_reload(self, head: SnapshotHead) -> None:
        """Check a snapshot from which our own log is to go on.

        Raises:
            StorageError: it is of no use.
        """
        self._check_kind(head)
        store = self._store
        # The log between would be missing, and the state could never go on (I-42).
        if head.position < store.start_position:
            raise StorageError(
                f"it is of {head.position}, our log begins at {store.start_position}"
            )
        if head.position <= store.append_position:
            # The same term at the same place: it is a snapshot of our own log.
            row = term_at(store.terms, head.position - 1)
            if row is None or row.term != head.term:
                raise StorageError(
                    f"it is of position {head.position} in term {head.term}, not so here"
                )


def check_service_of(head: SnapshotHead, store: Store) -> None:
    """Refuse a snapshot of another kind of service.

    Raises:
        StorageError: it is one.
    """
    known = store.recorded.service
    if head.service and known and head.service != known:
        raise StorageError(f"it is one of a {head.service}, expected one of a {known}")


# --- the transfer ---------------------------------------------------------------------------------


class Reads(Protocol):
    """Calls what blocks on files, without holding up the event loop."""

    async def __call__(self, fn: Callable[[], T], /) -> T:
        """Return what `fn` returns."""
        ...


async def fetch_snapshot(
    stream: FrameStream,
    folder: SnapshotFolder,
    *,
    judge: Callable[[SnapshotHead], None],
    read: Reads,
    arrived: Callable[[int, int], None],
    patience: float,
) -> SnapshotHead:
    """Fetch a member's newest snapshot, or the rest of it, into a folder.

    Args:
        stream: opened for it; the caller closes it.
        folder: where the file is kept, durably and under its own name.
        judge: raises StorageError if the offered snapshot is of no use.
        read: for what blocks.
        arrived: called before each part with the bytes of the file that are here, and the length
            of the file; may raise StorageError.
        patience: seconds after which a silent member is given up.

    Raises:
        TransportError, OSError, trio's errors of streams: the link broke, or stands still.
        StorageError: what came is damaged or of no use, or there is no room for it.
    """
    await stream.send(SnapshotRequest(*await read(folder.arriving)))
    offer, head = await _offered(stream, judge, patience)
    transfer = await read(partial(folder.transfer, head, offer.head, offer.offset))
    try:
        while transfer.offset < offer.file_bytes:
            with trio.fail_after(patience):
                part = _part_untrusted(await stream.receive(), transfer, offer.file_bytes)
            # Before it is written: this checks whether the disk has room for it.
            arrived(transfer.offset, offer.file_bytes)
            await read(partial(transfer.write, part))
        await read(transfer.finish)
    except StorageError:
        # Also when there is no room: the part that arrived would only take more of it away.
        transfer.abandon()
        raise
    finally:
        transfer.close()
    return head


async def _offered(
    stream: FrameStream, judge: Callable[[SnapshotHead], None], patience: float
) -> tuple[SnapshotOffer, SnapshotHead]:
    """Wait for what a member offers; return it, and the head of the snapshot.

    Raises:
        TransportError, OSError, trio's errors of streams: the link broke, or stands still.
        StorageError: it has no snapshot, or one of no use.
    """
    with trio.fail_after(patience):
        offer = await stream.receive()
    if not isinstance(offer, SnapshotOffer):
        raise WireError(f"expected a SnapshotOffer, found {type(offer).__name__}")
    if not offer.head:
        raise StorageError("it has none")
    head = decode_head_untrusted(offer.head)
    # Before the rest is fetched: a file of gigabytes would only be thrown away.
    judge(head)
    return offer, head


def _part_untrusted(message: object, transfer: Transfer, file_bytes: int) -> bytes:
    if not isinstance(message, SnapshotPart):
        raise WireError(f"expected a SnapshotPart, found {type(message).__name__}")
    end = message.offset + len(message.part)
    # Parts come in order, so any other offset is a bug or forged, and would leave a hole in the
    # file.
    if message.offset != transfer.offset or not transfer.offset < end <= file_bytes:
        raise WireError(f"bytes {message.offset} to {end} came at {transfer.offset}")
    return message.part
