"""How a cluster begins: NEW stores find each other, and found it together.

Each sends a list of the NEW stores that it has heard of. Once the lists of all members agree, the
cluster is founded. :mod:`.admission` argues why that is safe.

A founder that lost its disk
============================
A NEW store may be in the place of a lost one. Then the cluster runs elsewhere, and no second one
may be founded under its name. The naive way is to look only at the members in the file. But members
come and go without a change of any file. A cluster that was founded by one member may have three by
now, and the file of the first one still names only itself.

So the members that run are heard instead: the lost member has a seat in their configuration, and
they dial its address again and again. Their hello names their history. A NEW store that hears of
one founds no other: it asks the caller with which stores its cluster was founded, and goes by the
answer. A store that would found alone, or without named members, first gives the callers the time
to dial (`callers_seconds`).

A standby has no history to name as long as it has never had a vote. But it has the log of the only
voter that there was, and says so when that voter's new store would found alone. Of several founders
another one may have begun to write, so they ask no standby.

What this does not cover: all founders lose their disks and start together, while only newer members
are left. They hear each other at once, and wait for nobody else.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

import trio

from ...errors import LostStoreError, RefusedError
from ...log_events import log_event
from ...storage import VotingRight, VotingStatus
from ...storage.rows.log_end import EMPTY_LOG, LogEnd
from ...transport import Address, Founding, FoundingStore, Hello, LinkLimits
from ..protocol.membership import MAX_SEATS
from ..protocol.quorum import quorum
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...errors import RequestError
    from ...storage import Store
    from ...transport import Links
    from ..config.config import MemberConfig, Timeouts
    from ..state import MemberState

log = logging.getLogger("quorate.node")

FOUND: Final = b"found"
"""The verb of the control request that founds a cluster without named members."""

ANSWER_TIMEOUTS: Final = 10
"""How many heartbeat timeouts a member outside our file has to say how its cluster was founded. If
smaller, a slow link ends a store that is one of its founders. If larger, one that was lost waits
longer before it says so."""


def callers_seconds(timeouts: Timeouts) -> float:
    """Return how long a store listens for members of a cluster that runs, before it founds alone.

    A member waits at most `LinkLimits.backoff_longest` between its dials, and `alternative_seconds`
    for another address of the seat that is silent. Its hello comes after four round trips, with TLS
    and proofs. Where elections succeed, they take an election timeout at most: in half of one, a
    member is asked for its pre-vote twice.

    If shorter, a wiped member may found a second cluster before the members of the first one reach
    it. If longer, the very first start of a cluster of one takes longer. A machine whose network
    came up in this very second may be reached a second later, since a dial that got no answer is
    waited for.
    """
    limits = LinkLimits()
    return limits.backoff_longest + limits.alternative_seconds + timeouts.election_timeout


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
        self._with_data: dict[int, Founding] = {}  # standbys whose logs are not empty
        self._said = ""
        self._said_of = set[int]()
        self._changed = Signal()
        self._listens_until = math.inf
        # The hellos that named a history, and when the first of them came.
        self._with_history: dict[int, Hello] = {}
        self._history_heard_at = math.inf

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
        self._listens_until = trio.current_time() + callers_seconds(self._state.timeouts)
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
            self._give_up_late()
            self._tell()
            self._tell_of_histories()
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
            await self._changed.wait(min(resend_at, self._next_look))

    @property
    def _next_look(self) -> float:
        """When time alone changes what is to be done."""
        times = (self._listens_until, self._answer_due)
        return min((each for each in times if each > trio.current_time()), default=math.inf)

    @property
    def _answer_due(self) -> float:
        """When a member outside our file that has a history should have answered."""
        # One of our file may be a founder like us that is ahead, and unreachable for a while.
        if not self._with_history.keys() - {each.member_id for each in self._filed}:
            return math.inf
        return (
            self._history_heard_at + ANSWER_TIMEOUTS * self._state.timeouts.leader_heartbeat_timeout
        )

    @property
    def _filed(self) -> tuple[MemberConfig, ...]:
        return self._state.config.members

    def _give_up_late(self) -> None:
        """End if a member that has a history does not answer.

        Raises:
            LostStoreError: it does not.
        """
        if trio.current_time() >= self._answer_due:
            raise LostStoreError(self._lost(next(iter(self._with_history))))

    def on_hello(self, hello: Hello) -> None:
        """Note that a member has a history of our cluster, as long as our store is NEW."""
        member = hello.member_id
        if not self._new:
            return
        if not hello.history:
            # Its store was of another history perhaps, and has been emptied since.
            self._with_history.pop(member, None)
        elif len(self._with_history) < MAX_SEATS or member in self._with_history:
            if not self._with_history:
                self._history_heard_at = trio.current_time()
            self._with_history[member] = hello
            self._changed.notify()

    def _log_outcome(self, status: VotingStatus) -> None:
        """Log with which stores the cluster begins, or that it began without ours."""
        own = self._state.member_id
        if status.kind is VotingRight.RECOVERING:
            log_event(
                log,
                logging.WARNING,
                "founded_without",
                "member %(member)d: the cluster was founded without this member; it has no vote "
                "until the log admits its store",
                member=own,
            )
            return
        log_event(
            log,
            logging.INFO,
            "founded",
            "member %(member)d: the cluster is founded by members %(founders)s",
            member=own,
            founders=[member for member, _ in status.founders],
        )

    def _tell(self) -> None:
        """Log which members the founding waits for, whenever that changes."""
        if not self._state.voters:
            return  # it waits for callers, and only for a moment
        waits = ", ".join(map(str, self.missing)) or "nobody"
        # Once for each change: an operator may take hours to start the next member.
        if waits != self._said:
            self._said = waits
            log_event(
                log,
                # Once all are heard it waits for a moment only.
                logging.INFO if self.missing else logging.DEBUG,
                "founding_waits",
                "member %(member)d: its store is new; the cluster begins once all members report "
                "that theirs are new, too; not heard of: %(missing)s%(advice)s",
                member=self._state.member_id,
                missing=list(self.missing),
                advice=self._way_out(),
            )

    def _tell_of_histories(self) -> None:
        """Log which members have a history, whenever that changes."""
        for member, hello in self._with_history.items():
            if member not in self._said_of:
                self._said_of.add(member)
                # Where several found a cluster, the first one to be done has a history already. If
                # ours is no founder, the answer says so, and that is logged as a warning.
                usual = any(member == each.member_id for each in self._filed)
                log_event(
                    log,
                    logging.INFO if usual else logging.WARNING,
                    "founding_history",
                    "member %(member)d: its store is new, but %(where)s has the history "
                    "%(history)s; it is asked with which stores that began",
                    member=self._state.member_id,
                    where=self._where(member),
                    history=f"{hello.history:016x}",
                    peer=member,
                )

    def _way_out(self) -> str:
        """Return how to begin without the missing members, if enough for a quorum are left."""
        missing = self.missing
        if self._with_history:
            return ""
        # Without a quorum of the configuration nothing could ever be committed, so it is no way
        # out.
        if not missing or len(missing) > self._most_left_out:
            return ""
        named, own = ",".join(map(str, missing)), self._state.config.own
        port = own.client_port or own.tls_port
        return (
            f". To begin without member {named}, if it has no data of this cluster: "
            f"quorate control found --without {named} --connect {own.host}:{port}"
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
        log_event(
            log,
            logging.WARNING,
            "founds_without",
            "member %(member)d: founds without members %(without)s",
            member=self._state.member_id,
            without=list(self._without),
        )
        still = f", once member {', '.join(map(str, waits))} is there" if waits else ""
        done(f"the cluster begins without member {named}{still}".encode())
        return True

    def _named_untrusted(self, rest: bytes) -> tuple[int, ...]:
        """Decode the members to begin without: ids with spaces in between.

        Raises:
            RefusedError: they are not other voters, or too few would be left for a quorum; or a
                member has a history of our cluster.
        """
        words = rest.decode("ascii", "replace").split()
        if self._with_history:
            why_not = self._lost(next(iter(self._with_history)))
            raise RefusedError(f"found without {' '.join(words)!r}: refused: {why_not}")
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
            if self._state.standby:
                if not message.founded:
                    end = self._state.log_end
                    self._links.send(sender, self._founding((), end, founded=False))
            # A standby is no founder. But any member may say that the cluster has begun.
            elif sender in self._state.voters or message.founded:
                self._heard[sender] = message
                self._changed.notify()
            # Only we can write a log of a cluster of one, and ours has none.
            elif not self._state.voters and _end(message) != EMPTY_LOG == self._state.log_end:
                self._with_data[sender] = message
                self._changed.notify()
        # Only to one that asks: two founded members would answer each other without end. Also to a
        # member that is no voter: it learns that its store is in the wrong place.
        elif status.kind is VotingRight.VOTER and not message.founded:
            floor = LogEnd(*status.floor)
            self._links.send(sender, self._founding(status.founders, floor, founded=True))

    def _complete(self) -> VotingStatus | None:
        """Return our voting status, once it is certain with which stores the cluster begins."""
        own = self._store.identity
        for message in self._with_data.values():
            raise LostStoreError(self._lost_to(message))
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
                # A member that our file does not have may be of the history before a restore, or
                # before a quorum was forced.
                filed = message.member_id in {each.member_id for each in self._filed}
                if unlisted and filed and self._state.log_end == EMPTY_LOG:
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
        status = _voter_status(stores, max([self._state.log_end, *ends]))
        # Nobody else may be there yet to say that the cluster has begun.
        few = not heard or left_out
        early = few and trio.current_time() < self._listens_until
        # One of these very stores may have founded the cluster already, before us.
        other = any(hello.history != status.history for hello in self._with_history.values())
        return None if early or other else status

    def _lost_to(self, standby: Founding) -> str:
        own, end, where = self._state.config, _end(standby), self._where(standby.member_id)
        return (
            f"member {own.member_id}: its store is new, but {where}, a standby, has "
            f"log of cluster {own.cluster!r} up to {end.position} in term {end.term}. That may be "
            "all that is left: stop it, and make a new cluster of a copy of its directory: quorate "
            "restore --from DIRECTORY --to DIRECTORY --new-cluster NAME. If nobody needs it, give "
            "the standby an empty directory"
        )

    def _lost(self, witness: int) -> str:
        own, where = self._state.config, self._where(witness)
        if self._store.recorded.forced:
            return (
                f"member {own.member_id}: the quorum was forced with its store, but {where} has "
                "the history from before. Stop that one, and give it an empty directory"
            )
        # A store that was just restored: nothing of it was lost.
        if self._state.log_end != EMPTY_LOG:
            return (
                f"member {own.member_id}: its store is new and has a log, as after a restore, but "
                f"{where} has another history of cluster {own.cluster!r}. If that one is out of "
                "date, stop it. If not, give this member an empty directory, and type: "
                f"{self._recovery(witness)}"
            )
        return (
            f"member {own.member_id}: its store is new, but the cluster has a history, as {where} "
            f"says. If the disk of this member was lost or replaced: {self._recovery(witness)}"
        )

    def _where(self, member: int) -> str:
        """Name a member, and where members reach it."""
        if (hello := self._with_history.get(member)) is not None:
            return f"member {member} at {Address(hello.host, hello.port)}"
        filed = (f" at {e.host}:{e.member_port}" for e in self._filed if e.member_id == member)
        return f"member {member}{next(filed, '')}"

    def _recovery(self, member: int) -> str:
        """Return the command by which a lost store is made again."""
        command = f"quorate recover {self._state.config.directory}/node.toml"
        # The file is enough if it has that member.
        if any(each.member_id == member for each in self._filed):
            return command
        hello = self._with_history.get(member)
        host = "HOST" if hello is None else hello.host
        return f"{command} --connect {host}:PORT, with the port of that member for clients"

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
