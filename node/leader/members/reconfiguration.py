"""Changes of the members: the leader appends one configuration after the other.

The log says what is to be (the roles of the seats), and this part works towards it: whatever an
earlier leader has begun, any later one goes on with. One step at a time:

1. An entry of our own term is committed, and so is the configuration in force.
2. In a joint configuration, the final one is appended. A leader that is not in it hands over first;
   the next one gives it a heartbeat timeout to send its clients on.
3. Otherwise, joiners that are caught up become voters, by a joint configuration
   (:mod:`.promotion`); a leader that one of them replaces hands over first.
4. A witness hands over to a member with tables.
5. If it is wanted (`Timeouts.replace_after`), a spare takes the place of a voter that is lost.

An operator's order changes seats, or begins a joint configuration, and is answered when what it
wants is committed.

Rules that make it safe, explored in ``tests/model/change.py``: every change of voters is joint; the
final configuration is appended only once the joint one is committed; and nobody who loses its vote
by it gets it before it is committed (`Follower.withheld`).
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING, Any, Final, Never

import attrs
import trio

from ....errors import RefusedError, UnknownOutcomeError
from ....storage import Entry, EntryKind
from ...protocol.membership import (
    MemberRole,
    Membership,
    check,
    completed,
    encode_membership,
    named,
    promoted,
    with_seat,
    without_seat,
    without_vote,
)
from ...protocol.signal import Signal
from .orders import Add, Demote, MemberOrder, Move, Promote, Remove
from .promotion import Promotion

if TYPE_CHECKING:
    from ....storage import Store
    from ....transport import AdmissionRequest, Links
    from ...protocol.membership import Seat
    from ...state import MemberState
    from ...state_machine.applier import Applier
    from ..follower_progress import Follower, Followers
    from ..handover import Handover
    from ..replication import Replication

log = logging.getLogger("quorate.node")

MAX_DOUBLINGS: Final = 6
"""Limit of the doubling of the pause after a handover that failed. If smaller, a leader that is to
go holds up requests more often. If larger, it goes on longer once a successor is there."""

IN_FLIGHT: Final = "in-flight"
NOT_SETTLED: Final = "not-settled"
_TOO_FEW: Final = (
    "would-lose-quorum: too few of the other voters follow; without them nothing could be committed"
)


class Reconfiguration:
    """Changes the members during one leadership.

    Args:
        base: where the term begins.
        state: of the member; has the configuration in force.
        store: of the member.
        links: to the followers.
        applier: knows what is committed.
        followers: the other members.
        replication: appends configurations.
        handover: hands the leadership over.

    Attributes:
        begun: the order under way is in the log.
    """

    def __init__(
        self,
        base: int,
        *,
        state: MemberState,
        store: Store,
        links: Links,
        applier: Applier,
        followers: Followers,
        replication: Replication,
        handover: Handover,
    ) -> None:
        self._base = base
        self._state = state
        self._store = store
        self._links = links
        self._applier = applier
        self._followers = followers
        self._replication = replication
        self._handover = handover
        self._promotion = Promotion(
            state=state,
            links=links,
            applier=applier,
            followers=followers,
            replication=replication,
        )
        self._changed = Signal()
        self.begun = False
        self._began = trio.current_time()

    # --- what is under way ------------------------------------------------------------------------

    @property
    def awaited(self) -> int:
        """Where the configuration ends that is not committed yet; 0 if it is."""
        end = self._state.configurations.end
        return end if end > self._applier.commit_position else 0

    @property
    def _obstacle(self) -> str:
        """The word for why no configuration may be appended now; empty if one may."""
        if self._applier.commit_position <= self._base or not self._replication.accepting:
            return NOT_SETTLED
        return IN_FLIGHT if self.awaited else ""

    def update(self) -> None:
        """Note that another configuration is in force, or that it is committed now."""
        self._followers.use_configuration(committed=self._applier.commit_position)
        self._changed.notify()

    def _append(self, after: Membership) -> None:
        """Append a configuration; it is in force when this returns."""
        check(after)
        # The first one names the stores of the voters. One whose store is not known counts no more.
        if after.version == 1 and not self._promotion.keeps_quorum(after):
            raise RefusedError(_TOO_FEW)
        if not after.joint:
            # Before the entry is sent: who loses its vote by it must not get it yet
            # (`Follower.withheld`).
            for voter in {*self._state.membership.outgoing} - {*after.voters}:
                follower = self._followers.get(voter.member_id)
                if follower is not None and self._state.names[voter.member_id] == voter:
                    follower.live = False
        self._replication.append([Entry(EntryKind.MEMBERSHIP, encode_membership(after))])
        log.warning(
            "membership version=%d position=%d voters=%s outgoing=%s members=%s",
            after.version,
            self._replication.end,
            [voter.member_id for voter in after.voters],
            [voter.member_id for voter in after.outgoing],
            [*after.ids],
        )

    def _named(self) -> Membership:
        """Return the configuration in force, with all voters named with their stores."""
        stores = dict(self._store.voting_status.founders)
        state = self._state
        for member, follower in self._followers.items():
            if follower.ready and follower.votes:
                stores[member] = state.speaks_with(member)
        stores[state.member_id] = state.speaks_with(state.member_id)
        status = self._store.voting_status
        first = attrs.evolve(state.membership, founders=status.founders, floor=status.floor)
        return named(first, stores)

    # --- going on ---------------------------------------------------------------------------------

    async def run(self) -> Never:
        """Go on with what is to be, step by step; until cancelled."""
        failures = 0
        while True:
            if self._idle:
                await self._changed.wait()
            else:
                await self._changed.wait(
                    trio.current_time() + self._state.timeouts.leader_heartbeat_interval
                )
            self._promotion.look()
            try:
                await self._go_on()
                failures = 0
            except RefusedError as error:
                log.info("member %d: members stay as they are: %s", self._state.member_id, error)
                # Longer each time: a handover that fails has held up requests.
                pause = self._state.timeouts.leader_heartbeat_timeout * (1 << failures)
                failures = min(failures + 1, MAX_DOUBLINGS)
                await trio.sleep(pause)

    @property
    def _idle(self) -> bool:
        """Whether nothing is left to do until somebody asks for it."""
        now = self._state.membership
        spares = self._state.timeouts.replace_after and any(
            seat.role is MemberRole.SPARE for seat in now.seats
        )
        busy = now.joint or now.joining or self.awaited or spares
        return not busy and not self._leads_for_others(now)

    def _leads_for_others(self, now: Membership) -> bool:
        """Whether we are not to lead for longer than it takes to hand over."""
        state, seat = self._state, now.seat(self._state.member_id)
        if state.witness or seat is None or seat.role is MemberRole.WITNESS:
            return True
        return state.own not in now.voters

    async def _go_on(self) -> None:
        """Take the next step, if there is one and it may be taken."""
        now = self._state.membership
        if self._obstacle:
            return
        if self._state.witness and self._handover.best_successor() is None:
            return  # members with tables catch up from us; to stop for them would only delay them
        if self._leads_for_others(now):
            # Without a successor we lead on: that serves clients better than nobody.
            await self._handover.to_best(drain=True)
        elif now.joint:
            if self._may_part(now):
                self._append(completed(now))
        elif due := self._promotion.due():
            replaced = self._state.member_id in {seat.replaces for seat in due}
            # Without a successor we begin the change: then the one that replaces us may lead.
            if replaced and self._handover.best_successor() is not None:
                await self._handover.to_best(drain=True)
            self._append(promoted(now, {seat.member_id for seat in due}))
        elif not now.joining:
            self._use_spare(now)

    def _use_spare(self, now: Membership) -> None:
        """Have a spare take the place of a voter that was silent for too long, if wanted."""
        patience = self._state.timeouts.replace_after
        if not patience or (spare := self._promotion.spare()) is None:
            return
        if (lost := self._promotion.lost_voter(patience)) is not None:
            log.warning("member %d takes the place of member %d", spare.member_id, lost)
            self._append(with_seat(now, attrs.evolve(spare, role=MemberRole.VOTER, replaces=lost)))

    def _may_part(self, now: Membership) -> bool:
        """Whether the voters that leave have had time to send their clients on.

        The last leader is one of them if it has handed over to leave. Cluster clients are all at
        this member. While it follows us, it answers them with our address. Without that answer
        redis-py only finds us if a member is left that it knows from before.
        """
        if trio.current_time() >= self._began + self._state.timeouts.leader_heartbeat_timeout:
            return True
        leaving = {voter.member_id for voter in {*now.outgoing} - {*now.voters}}
        return not any(self._links.connected(member) for member in leaving)

    def claim(self, follower: Follower, message: AdmissionRequest) -> None:
        """Note with which store a member has its seat; it is a vote only after a joint change."""
        member = follower.member_id
        seat = self._state.membership.seat(member)
        # A store that does not follow could not apply the entry by which it learns of it.
        if message.member_id != member or seat is None or not follower.follows:
            return
        if self._obstacle or self._state.membership.joint or seat.instance == message.instance_id:
            return
        if message.instance_id != self._state.speaks_with(member):
            return  # forged, or of a store that has gone since
        now = self._named()
        log.warning(
            "member %d: member %d has the store %016x from now on",
            self._state.member_id,
            member,
            message.instance_id,
        )
        seat = now.seat(member)
        assert seat is not None
        try:
            self._append(with_seat(now, attrs.evolve(seat, instance=message.instance_id)))
        except RefusedError as error:
            log.warning("member %d: it has to wait: %s", self._state.member_id, error)

    # --- orders -----------------------------------------------------------------------------------

    async def do(self, order: MemberOrder) -> str:
        """Do what an operator asks for; return what was done, as JSON.

        Raises:
            RefusedError: it cannot be done now; nothing has changed.
            UnknownOutcomeError: it was begun, and is not committed in time.
        """
        self.begun = False
        await self._settled()
        version = self._state.membership.version
        if order.if_version not in {None, version}:
            raise RefusedError(
                f"version: the configuration is version {version}, not {order.if_version}"
            )
        after, member, done = await self._planned(order)
        if after is not None:
            self._append(after)
            self.begun = True
            await self._over()
        return json.dumps(
            {"version": self._state.membership.version, "member": member, "done": done}
        )

    async def _settled(self) -> None:
        """Wait for the change under way, but not for long."""
        with trio.move_on_after(self._state.timeouts.leader_heartbeat_timeout):
            while self._obstacle or self._state.membership.joint:
                interval = self._state.timeouts.leader_heartbeat_interval
                await self._changed.wait(trio.current_time() + interval)
        if self._obstacle or self._state.membership.joint:
            word = self._obstacle or IN_FLIGHT
            raise RefusedError(f"{word}: {_OBSTACLES[word]}")

    async def _over(self) -> None:
        """Wait until what was begun is committed.

        Raises:
            UnknownOutcomeError: it is not, for long; it may still be.
        """
        with trio.move_on_after(10 * self._state.timeouts.leader_heartbeat_timeout) as scope:
            while self.awaited or self._state.membership.joint:
                await self._changed.wait()
        if scope.cancelled_caught:
            raise UnknownOutcomeError(
                f"version {self._state.membership.version} of the configuration is in the log, and "
                "not committed yet: see quorate member list"
            )

    async def _planned(self, order: MemberOrder) -> tuple[Membership | None, int, str]:
        """Return the configuration that an order asks for, the member, and what is done, in words.

        There is no configuration if the order is fulfilled already.
        """
        now = self._named()
        match order:
            case Add(seat=seat):
                return self._added(now, seat)
            case Move(member_id=member):
                seat = self._seat(now, member)
                after = order.seat_of(seat)
                words = f"member {member} is at {after.host}:{after.member_port}"
                return None if after == seat else with_seat(now, after), member, words
            case Promote(member_id=member):
                return self._promoted(now, order)
            case Demote(member_id=member):
                seat = self._seat(now, member)
                if seat.role is MemberRole.WITNESS:
                    raise RefusedError(
                        f"role: member {member} is a witness, and has no tables to serve as a "
                        "standby: remove it, and add another member"
                    )
                if not seat.is_to_vote and not now.has_vote(member):
                    return None, member, f"member {member} is a standby"
                words = f"member {member} is a standby now"
                return await self._without_vote(now, member, MemberRole.STANDBY), member, words
            case Remove(member_id=member):
                if now.is_removed(member):
                    return None, member, f"member {member} is removed"
                self._seat(now, member)
                words = f"member {member} is removed"
                return await self._without_vote(now, member, MemberRole.LEAVING), member, words

    def _seat(self, now: Membership, member: int) -> Seat:
        seat = now.seat(member)
        if seat is None:
            known = ", ".join(map(str, now.ids))
            word = "removed" if now.is_removed(member) else "unknown-member"
            raise RefusedError(f"{word}: member {member}: expected one of members {known}")
        return seat

    def _added(self, now: Membership, seat: Seat) -> tuple[Membership | None, int, str]:
        """Return the configuration with one more seat."""
        for there in now.seats:
            same = (there.host, there.ports) == (seat.host, seat.ports)
            if same and there.role is seat.role:
                return self._wanted_again(now, there, seat)
            if seat.replaces is not None and seat.replaces == there.replaces:
                word = f"{IN_FLIGHT}: member {there.member_id} is to replace member {seat.replaces}"
                raise RefusedError(word)
        if seat.replaces is not None:
            replaced = self._seat(now, seat.replaces)
            if not replaced.is_to_vote:
                raise RefusedError(f"role: member {replaced.member_id} has no vote to take over")
        member = now.next_id
        words = f"member {member} has a seat, and joins when it is started"
        return with_seat(now, attrs.evolve(seat, member_id=member)), member, words

    def _wanted_again(
        self, now: Membership, there: Seat, seat: Seat
    ) -> tuple[Membership | None, int, str]:
        """Return what an order for a member is about that has its seat already."""
        words = f"member {there.member_id} has a seat"
        replaced = None if seat.replaces is None else now.seat(seat.replaces)
        if replaced is None or there.replaces == seat.replaces:
            return None, there.member_id, words
        if there.name in now.voters or there.replaces is not None:
            raise RefusedError(
                f"address: member {there.member_id} at {there.host}:{there.member_port} has a part "
                f"already; expected a new one to replace member {seat.replaces}"
            )
        after = with_seat(now, attrs.evolve(there, replaces=seat.replaces))
        return after, there.member_id, f"{words}, and replaces member {seat.replaces}"

    def _promoted(self, now: Membership, order: Promote) -> tuple[Membership | None, int, str]:
        """Return the configuration in which a member is to become a voter."""
        seat = self._seat(now, order.member_id)
        if seat.name in now.voters:
            return None, seat.member_id, f"member {seat.member_id} is a voter"
        role = seat.role if seat.is_to_vote else MemberRole.VOTER
        after = attrs.evolve(seat, role=role, even=seat.even or order.even)
        words = f"member {seat.member_id} becomes a voter once it is caught up"
        return None if after == seat else with_seat(now, after), seat.member_id, words

    async def _without_vote(self, now: Membership, member: int, role: MemberRole) -> Membership:
        """Return the configuration in which a member loses its vote, or its seat."""
        if not now.has_vote(member):
            if role is MemberRole.LEAVING:
                return without_seat(now, member)
            seat = self._seat(now, member)
            return with_seat(now, attrs.evolve(seat, role=role, priority=0, replaces=None))
        after = without_vote(now, member, role=role)
        check(after)
        if not self._promotion.keeps_quorum(after):
            raise RefusedError(_TOO_FEW)
        if member == self._state.member_id:
            # The next leader gets the order: see `Operator.surrender`.
            try:
                await self._handover.to_best(drain=True)
            except RefusedError as error:
                words = f"member {member} leads, and can't hand over now: {error}"
                raise RefusedError(f"{NOT_SETTLED}: {words}") from error
        return after

    def listed(self) -> str:
        """Describe the configuration, and how far each member is, as JSON."""
        now = self._state.membership
        description = {
            "version": now.version,
            "joint": now.joint,
            "next_id": now.next_id,
            "leader": self._state.member_id,
            "term": self._state.leadership_term,
            "members": [self._described(now, seat) for seat in now.seats],
        }
        return json.dumps(description)

    def _described(self, now: Membership, seat: Seat) -> dict[str, Any]:
        own = seat.member_id == self._state.member_id
        follower = None if own else self._followers.get(seat.member_id)
        # A member that was not heard yet may have all of the log, or nothing.
        heard = follower is not None and follower.heard_at > -math.inf
        match = self._replication.end if own else follower.match if follower and heard else None
        joins = seat in now.joining and now.version > 0
        return {
            "member_id": seat.member_id,
            "role": seat.role.value,
            "state": _state_word(now, seat),
            "instance": f"{seat.instance:016x}",
            "host": seat.host,
            "member_port": seat.member_port,
            "client_port": seat.client_port,
            "redirect_port": seat.redirect_port,
            "priority": seat.priority,
            "replaces": seat.replaces,
            "live": own or (follower is not None and follower.follows),
            "match": match,
            "behind": None if match is None else self._replication.end - match,
            "waits": self._waits(seat) if joins else "",
        }

    def _waits(self, seat: Seat) -> str:
        if word := self._promotion.waits_for(seat) or self._obstacle:
            return word
        # The joint one may be committed, and the final one not appended yet.
        return IN_FLIGHT if self._state.membership.joint else self._promotion.verdict([seat])


_OBSTACLES: Final = {
    IN_FLIGHT: "another change of the members is under way",
    NOT_SETTLED: "this leader has just been elected, or hands over",
}


def _state_word(now: Membership, seat: Seat) -> str:
    if seat.role is MemberRole.LEAVING:
        return "leaving"
    if now.version > 0 and seat in now.joining:
        return "joining"
    return seat.role.value if seat.is_to_vote else "standby"
