"""Repair: a batch that is damaged in our recording is fetched from another member.

A batch is named by its term and its position, and a term has one writer: whoever has a batch of
that name has the same bytes. So a member that meets a damaged or missing one, whenever it reads its
log, asks the others for it, writes it in its place, says so, and goes on. If none of them has it
the member stops, with the error that names it. Damaged bytes are never used, and never sent.

What is checked before a store is even open (its last batch, the recording log) is mended by
:mod:`quorate.storage.log.mending`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ...errors import DamagedRecordError, StorageError, WireError
from ...storage import check_received_untrusted
from ...transport import WEATHER, LogBatch, ReplayRequest, StreamPurpose
from ..store_opening import advising_recovery

if TYPE_CHECKING:
    from ...storage import Store
    from ...transport import Links
    from ..state import MemberState

log = logging.getLogger("quorate.node")


class Repair:
    """Reads a member's log, and mends what it finds damaged.

    Args:
        state: of the member.
        store: its log.
        links: to the other members.

    Attributes:
        count: batches that were mended.
    """

    def __init__(self, state: MemberState, store: Store, links: Links) -> None:
        self.count = 0
        self._state = state
        self._store = store
        self._links = links
        self._turn = trio.Lock()

    async def read(self, position: int, *, end: int | None = None) -> list[bytes]:
        """Return durable batches from `position` on; see `Store.read`.

        Raises:
            DamagedRecordError: one is damaged, and no other member has it.
            StorageError: as `Store.read`.
        """
        before: tuple[int, int] | None = None
        while True:
            try:
                return await self._store.read(position, end=end)
            except DamagedRecordError as damage:
                place = damage.term, damage.position
                if place == before:  # it was put there, and something else is in the way
                    with advising_recovery(self._state.config):
                        raise
                await self._mend(damage)
                before = place

    async def _mend(self, damage: DamagedRecordError) -> None:
        """Put what another member has in the place of a damaged batch.

        Raises:
            DamagedRecordError: none has it.
        """
        log.error("%s: asking the other members for it", damage)
        async with self._turn:
            until = trio.current_time() + 2 * self._state.timeouts.leader_heartbeat_timeout
            while damage.term >= 0:
                for peer in self._state.peers:
                    if self._links.connected(peer) and await self._fetch(peer, damage, until):
                        self.count += 1
                        log.error(
                            "member %d: the batch of term %d at %d is mended, by member %d",
                            self._state.member_id,
                            damage.term,
                            damage.position,
                            peer,
                        )
                        return
                if trio.current_time() >= until or not self._state.peers:
                    break
                await trio.sleep(self._state.timeouts.leader_heartbeat_interval)
        with advising_recovery(self._state.config):
            raise damage

    async def _fetch(self, peer: int, damage: DamagedRecordError, until: float) -> bool:
        """Fetch the batch from a member and write it; False if that can't be done."""
        try:
            # Who is silent (it may ask us for the same batch) leaves time for the others.
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
        except (*WEATHER, StorageError) as trouble:
            log.warning(
                "member %d: not mended by member %d: %r", self._state.member_id, peer, trouble
            )
            return False
        return True
