"""How a member ends once the cluster goes on without it, or without its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import attrs
import trio

from ...errors import LostStoreError, RemovedError
from ...storage import VotingRight

if TYPE_CHECKING:
    from ...storage import Store


class Removal:
    """Ends a member that was removed, or whose seat is another store's.

    It was removed if another member has refused its call for that reason. Members refuse it so only
    if the configuration that they have *applied* has no seat for it, so no new leader can take that
    back. :mod:`.taken_seat` finds out about the seat.

    Args:
        store: notes durably that the member was removed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heard = trio.Event()
        self._words = ""
        self._lost = ""

    def lost(self, words: str) -> None:
        """Note that our seat belongs to another store, in words."""
        self._lost = words
        self._heard.set()

    def heard(self, member: int, reason: str) -> None:
        """Note that another member says so; its words may come again and again."""
        self._words = f"member {member} says: {reason}"
        self._heard.set()

    async def run(self) -> Never:
        """Wait until the member was removed, or has lost its seat.

        Raises:
            RemovedError: it was removed.
            LostStoreError: another store has its seat.
        """
        await self._heard.wait()
        if self._lost:
            raise LostStoreError(self._lost)
        # Durable, so that it is not tried again after a restart. Based on what was submitted: our
        # store may be getting its vote in this moment. Without a vote, our histories were not
        # compared: a member of another history may listen at that address.
        status = self._store.submitted.voting_status
        if status.kind is VotingRight.VOTER:
            await self._store.save_voting_status(attrs.evolve(status, kind=VotingRight.REMOVED))
        own = self._store.identity
        raise RemovedError(
            f"member {own.member_id} is no part of cluster {own.cluster!r} any more: {self._words}"
        )
