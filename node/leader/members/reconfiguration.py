"""Changes of the members: the leader goes on with what is to be, step by step.

The log says what is to be (the roles of the seats), and this part works towards it: whatever an
earlier leader has begun, any later one goes on with. One step at a time:

1. An entry of our own term is committed, and so is the configuration in force (:mod:`.changes`).
2. In a joint configuration, the final one is appended. A leader that is not in it hands over first;
   the next one gives it a heartbeat timeout to send its clients on.
3. Otherwise, joiners that are caught up become voters, by a joint configuration
   (:mod:`.promotion`); a leader that one of them replaces hands over first.
4. A witness hands over to a member with tables.
5. If it is wanted (`Timeouts.replace_after`), a spare takes the place of a voter that is lost.

An operator's order (:mod:`.plans`) changes seats, or begins a joint configuration, and is answered
when what it wants is committed.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final, Never

import attrs
import trio

from ....errors import RefusedError
from ....log_events import log_event
from ...protocol.membership import MemberRole, completed, promoted, with_seat, with_spare
from .changes import IN_FLIGHT, NOT_SETTLED, Changes
from .listing import member_list
from .plans import plan
from .promotion import Promotion

if TYPE_CHECKING:
    from ....storage import Store
    from ....transport import AdmissionRequest, Links
    from ...protocol.membership import Membership, Seat
    from ...state import MemberState
    from ...state_machine.applier import Applier
    from ..follower_progress import Follower, Followers
    from ..handover import Handover
    from ..replication import Replication
    from .orders import MemberOrder

log = logging.getLogger("quorate.node")

MAX_DOUBLINGS: Final = 6
"""Limit of the doubling of the pause after a handover that failed. If smaller, a leader that is to
go holds up requests more often. If larger, it goes on longer once a successor is there."""


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
        self.begun = False
        self._state = state
        self._links = links
        self._applier = applier
        self._followers = followers
        self._replication = replication
        self._handover = handover
        self._changes = Changes(
            base,
            state=state,
            store=store,
            applier=applier,
            followers=followers,
            replication=replication,
        )
        self._promotion = Promotion(
            state=state,
            links=links,
            applier=applier,
            followers=followers,
            replication=replication,
        )
        self._began = trio.current_time()
        self._claims_refused: dict[int, str] = {}
        self._failures = 0
        self._retry_at = self._began

    @property
    def awaited(self) -> int:
        """Where the configuration ends that is not committed yet; 0 if it is."""
        return self._changes.awaited

    def update(self) -> None:
        """Note that another configuration is in force, or that it is committed now."""
        # What was refused before may be possible now.
        self._failures, self._retry_at = 0, trio.current_time()
        self._followers.use_configuration(committed=self._applier.commit_position)
        self._changes.happened.notify()

    # --- going on ---------------------------------------------------------------------------------

    async def run(self) -> Never:
        """Go on with what is to be, step by step; until cancelled."""
        timeouts = self._state.timeouts
        while True:
            if self._idle:
                await self._changes.happened.wait()
            else:
                until = trio.current_time() + timeouts.leader_heartbeat_interval
                await self._changes.happened.wait(until)
            self._promotion.observe()
            if trio.current_time() < self._retry_at:
                continue
            try:
                await self._go_on()
            except RefusedError as error:
                # Longer each time: a handover that fails has held up requests.
                pause = timeouts.leader_heartbeat_timeout * (1 << self._failures)
                self._failures = min(self._failures + 1, MAX_DOUBLINGS)
                self._retry_at = trio.current_time() + pause
                log_event(
                    log,
                    logging.INFO,
                    "change_refused",
                    "the change of members waits %(seconds)g s: %(why)s",
                    seconds=pause,
                    why=str(error),
                )

    @property
    def _idle(self) -> bool:
        """Whether nothing is left to do until somebody asks for it."""
        now = self._state.membership
        spares = self._state.timeouts.replace_after and any(
            seat.role is MemberRole.SPARE for seat in now.seats
        )
        busy = now.joint or now.joining or self.awaited or spares
        return not busy and not self._must_hand_over(now)

    def _must_hand_over(self, now: Membership) -> bool:
        """Whether we are not to lead for longer than it takes to hand over."""
        state, seat = self._state, now.seat(self._state.member_id)
        if state.witness or seat is None or seat.role is MemberRole.WITNESS:
            return True
        return state.own not in now.voters

    async def _go_on(self) -> None:
        """Take the next step, if there is one and it may be taken."""
        now = self._state.membership
        if self._changes.obstacle:
            return
        if self._must_hand_over(now):
            # Without a successor we lead on: that serves clients better than nobody.
            if self._has_successor:
                await self._handover.to_best(drain=True)
        elif now.joint:
            if self._may_part(now):
                self._changes.append(completed(now))
        elif due := self._promotion.ready_to_promote():
            replaced = self._state.member_id in {seat.replaces for seat in due}
            # Without a successor we begin the change: then the one that replaces us may lead.
            if replaced and self._handover.best_successor() is not None:
                await self._handover.to_best(drain=True)
            self._changes.append(promoted(now, {seat.member_id for seat in due}))
        else:
            self._use_spare(now)

    @property
    def _has_successor(self) -> bool:
        """Whether to try to hand over, if we are not to lead."""
        # A witness takes no requests, so it hands over as soon as it can. Members with tables catch
        # up from it, which a try would only delay.
        if self._state.witness:
            return self._handover.best_successor() is not None
        # Each try holds up requests until it has failed, so we only try with a member that follows
        # well. On a busy leader no follower has the whole log before the drain.
        return self._promotion.has_steady_heir

    def _use_spare(self, now: Membership) -> None:
        """Have a spare take the place of a voter that was silent for too long, if wanted."""
        patience = self._state.timeouts.replace_after
        if not patience or (spare := self._promotion.spare()) is None:
            return
        if (lost := self._promotion.lost_voter(patience)) is not None:
            self._changes.append(with_spare(now, spare.member_id, lost))
            log_event(
                log,
                logging.WARNING,
                "spare_used",
                "the spare, member %(spare)d, takes the place of member %(replaces)d",
                spare=spare.member_id,
                replaces=lost,
            )

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
        if not self._changes.settled or seat.instance == message.instance_id:
            return
        if message.instance_id != self._state.speaks_with(member):
            return  # forged, or of a store that has gone since
        now = self._changes.named()
        seat = now.seat(member)
        assert seat is not None
        try:
            self._changes.append(with_seat(now, attrs.evolve(seat, instance=message.instance_id)))
        except RefusedError as error:
            # Once for each reason: the member repeats its claim twice in a heartbeat timeout.
            if self._claims_refused.get(member) != str(error):
                self._claims_refused[member] = str(error)
                words = "the seat of member %(peer)d can't be claimed: %(why)s"
                log_event(log, logging.WARNING, "claim_refused", words, peer=member, why=str(error))
        else:
            self._claims_refused.pop(member, None)
            words = "member %(peer)d claims its seat with the store %(store)s"
            store = f"{message.instance_id:016x}"
            log_event(log, logging.INFO, "seat_claimed", words, peer=member, store=store)

    # --- for operators ----------------------------------------------------------------------------

    async def do(self, order: MemberOrder, principal: int = 0) -> str:
        """Do what an operator asks for; return what was done, as JSON.

        Args:
            order: what is asked for.
            principal: number of the operator's user, recorded with the first configuration. Those
                that the leader appends afterwards, to go on with it, have 0.

        Raises:
            RefusedError: it cannot be done now; nothing has changed.
            UnknownOutcomeError: it was begun, and is not committed in time.
        """
        self.begun = False
        await self._changes.wait_settled()
        planned = plan(self._changes.named(), order)
        if planned.after is not None:
            self._changes.vet(planned.after)
            if planned.after.joint and planned.member == self._state.member_id:
                await self._hand_over_first()
            self._changes.append(planned.after, principal)
            self.begun = True
            await self._changes.wait_committed()
        version = self._state.membership.version
        return json.dumps({"version": version, "member": planned.member, "done": planned.words})

    async def _hand_over_first(self) -> None:
        """Hand over, since an order takes our vote; the next leader gets the order.

        Raises:
            RefusedError: we lead on.
        """
        try:
            # Its success cancels us: `Operator.surrender` passes the order on.
            await self._handover.to_best(drain=True)
        except RefusedError as error:
            words = f"member {self._state.member_id} leads, and can't hand over now: {error}"
            raise RefusedError(f"{NOT_SETTLED}: {words}") from error

    def listed(self) -> str:
        """Describe the configuration, and how far each member is, as JSON."""
        end = self._replication.end
        return member_list(self._state, self._followers, end, self._why_waiting)

    def _why_waiting(self, seat: Seat) -> str:
        if word := self._promotion.why_waiting(seat) or self._changes.obstacle:
            return word
        # The joint one may be committed, and the final one not appended yet.
        return (
            IN_FLIGHT if self._state.membership.joint else self._promotion.why_not_together([seat])
        )
