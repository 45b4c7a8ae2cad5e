"""Repair: a batch that is damaged in our log is fetched from another member.

A batch is named by its term and position, and a term has one writer: all copies with the same name
have the same bytes. So a member that meets a damaged or missing batch, whenever it reads its log,
asks the other members for it, writes it in its place, logs that, and continues. If no member has
it, this member stops with an error that names the batch. Damaged bytes are never used and never
sent.

What is checked before a store opens (its last batch, the recording log) is repaired by
:mod:`quorate.storage.log.mending`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ...errors import DamagedRecordError, StorageError, WireError
from ...log_events import log_event
from ...storage import check_received_untrusted
from ...transport import CONNECTION_ERRORS, LogBatch, ReplayRequest, StreamPurpose
from ..store_opening import advising_recovery

if TYPE_CHECKING:
    from ...storage import Store
    from ...transport import Links
    from ..state import MemberState

log = logging.getLogger("quorate.node")


class Repair:
    """Reads a member's log, and repairs the batches that it finds damaged.

    Args:
        state: of the member.
        store: its log.
        links: to the members that may have the batch.

    Attributes:
        count: batches repaired so far.
        met: damaged batches met so far, repaired or not.
    """

    def __init__(self, state: MemberState, store: Store, links: Links) -> None:
        self.count = self.met = 0
        self._state = state
        self._store = store
        self._links = links
        # One repair at a time: several readers may meet the same damaged batch.
        self._one_at_a_time = trio.Lock()

    async def read(self, position: int, *, end: int | None = None) -> list[bytes]:
        """Return durable batches from `position` on; see `Store.read`.

        Raises:
            DamagedRecordError: one is damaged, and no other member has it.
            StorageError: as for `Store.read`.
        """
        before: tuple[int, int] | None = None
        while True:
            try:
                return await self._store.read(position, end=end)
            except DamagedRecordError as damage:
                place = damage.term, damage.position
                if place == before:
                    # It was just replaced, so the disk is at fault, not the copy.
                    with advising_recovery(self._state.config):
                        raise
                await self._mend(damage)
                before = place

    async def _mend(self, damage: DamagedRecordError) -> None:
        """Replace a damaged batch by another member's copy.

        Raises:
            DamagedRecordError: no member has it.
        """
        self.met += 1
        words = "%(damage)s; asking the other members for it"
        log_event(log, logging.ERROR, "record_damaged", words, damage=str(damage))
        async with self._one_at_a_time:
            until = trio.current_time() + 2 * self._state.timeouts.leader_heartbeat_timeout
            # -1 stands for a key that names no batch: there is nothing to ask for.
            while damage.term >= 0:
                for peer in self._state.peers:
                    if self._links.connected(peer) and await self._fetch(peer, damage, until):
                        self.count += 1
                        log_event(
                            log,
                            logging.WARNING,
                            "record_mended",
                            "member %(member)d: the batch of term %(term)d at %(position)d is "
                            "mended, by member %(peer)d",
                            member=self._state.member_id,
                            term=damage.term,
                            position=damage.position,
                            peer=peer,
                        )
                        return
                if trio.current_time() >= until or not self._state.peers:
                    break
                await trio.sleep(self._state.timeouts.leader_heartbeat_interval)
        with advising_recovery(self._state.config):
            raise damage

    async def _fetch(self, peer: int, damage: DamagedRecordError, until: float) -> bool:
        """Fetch the batch from a member and write it; return whether that worked."""
        try:
            # A silent member may be waiting for the same batch from us; leave time for the next.
            patience = self._state.timeouts.leader_heartbeat_timeout / 2
            with trio.fail_at(min(until, trio.current_time() + patience)):
                stream = await self._links.open_stream(peer, purpose=StreamPurpose.REPLAY)
                async with stream:
                    await stream.send(ReplayRequest(damage.position, damage.position + 1))
                    message = await stream.receive()
            if not isinstance(message, LogBatch):
                return False
            header = check_received_untrusted(message.batch)
            if (header.term, header.position) != (damage.term, damage.position):
                raise WireError(f"expected the batch at {damage.position}, found {header}")
            await self._store.replace(message.batch)
        except (*CONNECTION_ERRORS, StorageError) as trouble:
            log_event(
                log,
                logging.WARNING,
                "mend_failed",
                "member %(member)d: not repaired from member %(peer)d: %(why)s",
                member=self._state.member_id,
                peer=peer,
                why=repr(trouble),
            )
            return False
        return True
