"""How a cluster begins: NEW stores find each other, and found it together.

Each sends a list of the NEW stores that it has heard of. Once the lists of all members agree, the
cluster is founded. :mod:`.admission` argues why that is safe.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from ...errors import LostStoreError, RefusedError
from ...storage import VotingRight, VotingStatus
from ...storage.rows.log_end import EMPTY_LOG, LogEnd
from ...transport import Founding, FoundingStore
from ..protocol.quorum import quorum
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...errors import RequestError
    from ...storage import Store
    from ...transport import Links
    from ..state import MemberState

log = logging.getLogger("quorate.node")

FOUND: Final = b"found"
"""The verb of the control request that founds a cluster without named members."""


class Founders:
    """Founds the cluster with a NEW store, together with the stores of all other members.

    Args:
        state: of the member.
        store: says which store this is, and keeps its voting status.
        links: to the other members.
    """

    def __init__(self, state: MemberState, store: Store, links: Links) -> None:
        self._state = state
        self._store = store
        self._links = links
        self._heard: dict[int, Founding] = {}
        self._without: tuple[int, ...] = ()
        self._said = ""
        self._changed = Signal()

    @property
    def missing(self) -> list[int]:
        """Members whose stores we have not heard of; none once our store is NEW no more."""
        return [peer for peer in self._state.voters if self._new and peer not in self._heard]

    @property
    def _new(self) -> bool:
        # Of what was submitted: a member that is removed in this moment founds no cluster.
        return self._store.submitted.voting_status.kind is VotingRight.NEW

    @property
    def _most_left_out(self) -> int:
        """How many voters may be missing; a majority of them all must be left."""
        size = len(self._state.quorums.voters)
        return size - quorum(size)

    async def found(self) -> None:
        """Take part in the founding; return once our store is NEW no more.

        Raises:
            LostStoreError: the cluster began with other stores; ours is in the place of a lost one.
        """
        last_sent, resend_at, pause = None, trio.current_time(), 0.0
        state = self._state
        # A standby is no founder. Nor is one that has followed for a while, and is to have a vote.
        while self._new and not state.standby and not state.membership.version:
            if (stores := self._complete()) is not None:
                # Durable first: from the next line on, other members may count on our vote.
                await self._store.save_voting_status(stores)
                self._links.set_history(stores.history)
                # Links that were made before name no history, by which members of another founding
                # are refused.
                self._links.dial_anew()
                self._log_outcome(stores)
                return
            self._tell()
            announcement = self._founding(self._stores(), self._state.log_end, founded=False)
            # A list that only repeats itself is not answered at once: two members would answer each
            # other without end.
            new = announcement != last_sent
            if new or trio.current_time() >= resend_at:
                # Repeated, since members start late, and less often the longer one of them is
                # missing.
                self._links.broadcast(announcement)
                pause = self._state.timeouts.canvass_interval if new else 2 * pause
                pause = min(pause, self._state.timeouts.leader_heartbeat_timeout)
                last_sent, resend_at = announcement, trio.current_time() + pause
            await self._changed.wait(resend_at)

    def _log_outcome(self, status: VotingStatus) -> None:
        """Log with which stores the cluster begins, or that it began without ours."""
        own = self._state.member_id
        if status.kind is VotingRight.RECOVERING:
            log.warning(
                "member %d: the cluster was founded without this member; "
                "it has no vote until the log admits its store",
                own,
            )
            return
        members = ", ".join(str(member) for member, _ in status.founders)
        log.info("member %d: the cluster is founded by members %s", own, members)

    def _tell(self) -> None:
        """Log which members the founding waits for, whenever that changes."""
        waits = ", ".join(map(str, self.missing)) or "nobody"
        # Once for each change: an operator may take hours to start the next member.
        if waits != self._said:
            self._said = waits
            log.info(
                "member %d: its store is new; the cluster begins once all members report that "
                "theirs are new, too; not heard of: %s%s",
                self._state.member_id,
                waits,
                self._way_out(),
            )

    def _way_out(self) -> str:
        """Return how to begin without the missing members, if enough for a quorum are left."""
        missing = self.missing
        # Without a quorum of the configuration nothing could ever be committed, so it is no way
        # out.
        if not missing or len(missing) > self._most_left_out:
            return ""
        named, own = ",".join(map(str, missing)), self._state.config.own
        return (
            f". To begin without member {named}, if it has no data of this cluster: "
            f"quorate control found --without {named} --connect {own.host}:{own.client_port}"
        )

    def take(self, payload: bytes, done: Callable[[bytes | RequestError], None]) -> bool:
        """Answer an operator's request to found the cluster; return whether it was one.

        Args:
            payload: of a control request.
            done: called with the answer.
        """
        # No leader can answer as long as the cluster is not founded, so each member does.
        verb, _, rest = payload.partition(b" ")
        if verb != FOUND or self._store.voting_status.kind is not VotingRight.NEW:
            return False
        try:
            self._without = self._named_untrusted(rest)
        except RefusedError as error:
            done(error)
            return True
        self._changed.notify()
        named = ", ".join(map(str, self._without))
        waits = [peer for peer in self.missing if peer not in self._without]
        log.warning("member %d: founds without member %s", self._state.member_id, named)
        still = f", once member {', '.join(map(str, waits))} is there" if waits else ""
        done(f"the cluster begins without member {named}{still}".encode())
        return True

    def _named_untrusted(self, rest: bytes) -> tuple[int, ...]:
        """Decode the members to begin without: ids with spaces in between.

        Raises:
            RefusedError: they are not other voters, or too few would be left for a quorum.
        """
        words = rest.decode("ascii", "replace").split()
        known = {str(member): member for member in self._state.voters}
        named = {known[word] for word in words if word in known}
        most = self._most_left_out
        # All words or none: a member that is left out by a typing error has to be admitted later.
        if not words or not {*words} <= {*known} or len(named) > most:
            others, size = ", ".join(known), 1 + len(known)
            raise RefusedError(
                f"found without {' '.join(words)!r}: expected at most {most} of the other voters "
                f"{others}, so that a quorum of {quorum(size)} is left"
            )
        return tuple(sorted(named))

    def on_message(self, sender: int, message: Founding) -> None:
        """Note another member's list; send ours if our cluster is founded already."""
        # Nobody speaks in another member's name.
        if message.member_id != sender:
            return
        status = self._store.voting_status
        if status.kind is VotingRight.NEW:
            # A standby is no founder.
            if sender in self._state.voters:
                self._heard[sender] = message
                self._changed.notify()
        # Only to one that asks: two founded members would answer each other without end. Also to a
        # member that is no voter: it learns that its store is in the wrong place.
        elif status.kind is VotingRight.VOTER and not message.founded:
            floor = LogEnd(*status.floor)
            self._links.send(sender, self._founding(status.founders, floor, founded=True))

    def _complete(self) -> VotingStatus | None:
        """Return our voting status, once it is certain with which stores the cluster begins."""
        own = self._store.identity
        for message in self._heard.values():
            if message.founded:
                stores = _pairs(message)
                # The same store, not only the same member: another store of ours was lost, with
                # what it had promised.
                if (own.member_id, own.instance_id) in stores:
                    return _voter_status(stores, _end(message))
                # An unlisted member never had a vote, so nothing was lost. But a log of its own was
                # never compared.
                unlisted = own.member_id not in {member for member, _ in stores}
                if unlisted and self._state.log_end == EMPTY_LOG:
                    return VotingStatus(VotingRight.RECOVERING)
                # To go on as a new store could vote a second time, or forget what was acknowledged
                # here.
                raise LostStoreError(self._lost(message.member_id))
        stores, left_out = self._stores(), self._left_out
        heard = [each for each in self._heard.values() if each.member_id not in left_out]
        # All lists have to agree: at that moment each of these stores was new (:mod:`.admission`).
        agreed = all(self._counted(_pairs(message)) == stores for message in heard)
        if not agreed or not {*self.missing} <= left_out:
            return None
        ends = [_end(message) for message in heard]
        # The longest log of a restored cluster becomes the floor: no member below it may lead.
        return _voter_status(stores, max([self._state.log_end, *ends]))

    def _lost(self, witness: int) -> str:
        own = self._state.member_id
        if self._store.recorded.forced:
            return (
                f"member {own}: the quorum was forced with its store, but member {witness} has the "
                "history from before. Stop that one, and give it an empty directory"
            )
        return (
            f"member {own}: its store is new, but the cluster has a history, as member {witness} "
            "says. If its disk was lost or replaced: quorate recover"
        )

    def _stores(self) -> tuple[tuple[int, int], ...]:
        """Our store and the NEW ones that we have heard of, except those of named members."""
        own = self._store.identity
        heard = {peer: message.instance_id for peer, message in self._heard.items()}
        stores = sorted({**heard, own.member_id: own.instance_id}.items())
        return self._counted(tuple(stores))

    def _counted(self, stores: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The stores of a list that the founding is about."""
        return tuple(store for store in stores if store[0] not in self._left_out)

    @property
    def _left_out(self) -> set[int]:
        """The members to begin without."""
        # One that lists our store is there, and begins with us.
        own = self._store.identity
        ours = own.member_id, own.instance_id
        there = {each.member_id for each in self._heard.values() if ours in _pairs(each)}
        return {*self._without} - there

    def _founding(
        self, stores: tuple[tuple[int, int], ...], end: LogEnd, *, founded: bool
    ) -> Founding:
        own = self._store.identity
        listed = tuple(FoundingStore(*store) for store in stores)
        return Founding(own.member_id, own.instance_id, founded, end.term, end.position, listed)


def _voter_status(stores: tuple[tuple[int, int], ...], floor: LogEnd) -> VotingStatus:
    return VotingStatus(VotingRight.VOTER, stores, floor)


def _end(message: Founding) -> LogEnd:
    return LogEnd(message.log_term, message.log_position)


def _pairs(message: Founding) -> tuple[tuple[int, int], ...]:
    return tuple((store.member_id, store.instance_id) for store in message.stores)
