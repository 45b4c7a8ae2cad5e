"""Storms over a cluster, and calm between them: in a storm it must be safe, in the calm live.

Each round is a storm of faults under load, and then:

1. The faults stop. A random quorum of intact voters is healed. All other members are dead, cut off,
   or connected with hanging disks. The quorum must elect a leader and serve. (A cluster that was
   not founded yet needs all members.)
2. All intact members are healed. An operator has the cluster know where a member has moved to. They
   must follow one leader, serve, and have equal states. A reader with only one of their directories
   must be able to find what is committed. Members without a seat must find that out, and end.
3. Members with damaged recordings get empty disks, and sometimes an intact member does, too. Each
   one must catch up before the next step (see :mod:`.faults.disks`).
4. The clients' history of the round is checked from outside.

For each healing the cluster has :meth:`Storm.patience` of virtual time. A change of the membership
that was begun must end in that time, members that are to get a vote must get it, and spares must
take the places of voters that were lost for long.
"""

from __future__ import annotations

import math
import random
import shutil
from typing import TYPE_CHECKING, Final

import trio

from ..errors import RequestError
from ..node import State
from ..node.protocol.membership import MemberRole
from ..node.protocol.quorum import VoterId
from ..node.protocol.quorum import quorum as quorum_size
from ..node.state_machine.applier import CUT_SECONDS
from ..storage import EntryKind, decode_entries_untrusted
from .door import Door, Serials
from .faults.members import finish_move
from .invariants import ViolationError
from .nemesis import Nemesis
from .watching.facts import Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..node import Service
    from .machines.clock import Clock
    from .observer import Observer
    from .scenarios import Scenario
    from .watching.facts import Batch
    from .workloads import Workload
    from .world import World

STORM_TIMEOUTS: Final = 40.0
"""Duration of a storm, in heartbeat timeouts."""

HEALING_TIMEOUTS: Final = 16.0
"""A cluster must be healed within this many heartbeat timeouts, plus two startup canvasses."""

TERM_TIMEOUTS: Final = 0.4
"""Heartbeat timeouts added for each term, since a member fetches missed terms one by one."""

CLIENTS: Final = 4
THINKING: Final = (0.0, 0.02, 0.1, 0.5, 2.0)
"""Maximum pauses of a client between two operations, in heartbeat timeouts."""


class Storm:
    """Storms over one cluster.

    Args:
        world: the cluster, not started.
        observer: records and checks all events.
        workloads: what the clients do.
        scenario: the faults.
        seed: seed of the faults and of the load.

    Attributes:
        healed: duration of the longest healing, in seconds.
        serials: of all that its clients ask; others who ask the cluster draw from it, too.
    """

    def __init__(
        self,
        world: World[Service],
        observer: Observer,
        workloads: Sequence[Workload],
        scenario: Scenario,
        seed: object,
    ) -> None:
        self.world = world
        self.observer = observer
        self.workloads = workloads
        self.scenario = scenario
        self.rng = random.Random(f"{seed}/storm")
        rng = random.Random(f"{seed}/nemesis")
        self.nemesis = Nemesis(world, observer, rng, scenario.faults)
        self.healed = 0.0
        self.rounds = 0
        self.serials = Serials()
        shared = [each for each in workloads if not each.clients]
        doing = [shared] * CLIENTS + [[each] for each in workloads for _ in range(each.clients)]
        self.doors = [
            Door(i, world, random.Random(f"{seed}/client/{i}"), observer.tell, self.serials)
            for i in range(len(doing))
        ]
        self._doing = list(zip(self.doors, doing, strict=True))
        self._unit = world.setting.timeouts.leader_heartbeat_timeout
        self._replace_after = world.setting.timeouts.replace_after
        self._hanging = False
        self._hang_in_a_ballot: list[int] = []
        world.after_every_event(self._look_at_a_ballot)

    async def run(self, seconds: float) -> None:
        """Run rounds of storm and healing for `seconds`.

        Raises:
            ViolationError: an invariant is violated.
        """
        await self.begin()
        end = trio.current_time() + seconds
        while (left := end - trio.current_time()) > 0:
            for workload in self.workloads:
                workload.round = self.rounds
            async with trio.open_nursery() as nursery:
                for door, workloads in self._doing:
                    nursery.start_soon(self._client, door, workloads)
                await self.rage(min(STORM_TIMEOUTS * self._unit, left))
                nursery.cancel_scope.cancel()
            await self.heal()
            self.rounds += 1

    def _clock(self, i: int) -> Clock:
        return self.scenario.clock(random.Random(f"{self.world.setting.seed}/clock/{i}"))

    async def begin(self) -> None:
        """Start all members, each with its own clock."""
        self.world.make_clock = self._clock
        for i, host in self.world.hosts.items():
            host.litter()
            host.clock = self._clock(i)
        await self.world.start()

    async def rage(self, seconds: float) -> None:
        """Run the nemesis for `seconds`; a fault that never ends is a defect of the simulation."""
        try:
            with trio.fail_after(seconds + self.patience):
                await self.nemesis.run(seconds)
        except trio.TooSlowError:
            self._complain("the storm is over")

    async def _client(self, door: Door, workloads: Sequence[Workload]) -> None:
        """Execute one operation after the other, at a changing pace."""
        think = door.rng.choice(THINKING)
        while True:
            if door.rng.random() < 0.02:
                think = door.rng.choice(THINKING)
            await door.rng.choice(workloads).act(door)
            await trio.sleep(self._unit * think * door.rng.random())

    # --- healing ----------------------------------------------------------------------------------

    @property
    def patience(self) -> float:
        """Return the maximum duration of a healing, in seconds."""
        canvass = self.world.setting.timeouts.startup_canvass
        terms = max(len(disk.bases) for disk in self.observer.known.disks.values())
        patience = 2 * canvass + (HEALING_TIMEOUTS + TERM_TIMEOUTS * terms) * self._unit
        return patience + (CUT_SECONDS if self._hanging else 0.0)

    async def heal(self) -> None:
        """End the faults; check that the cluster serves again, and that nothing is lost.

        Raises:
            ViolationError: it does not serve in time, or something is lost.
        """
        world = self.world
        intact = [i for i in self._members() if i not in self.nemesis.context.rotten]
        await self._let_go(world.others(*intact))
        self.nemesis.check_failures()
        quorum = self._quorum(intact)
        others = world.others(*quorum)
        chance = self.rng.random()
        self._hanging = chance >= 0.7
        if chance < 0.4:
            await self._let_go(others)
        elif chance < 0.7:
            for i in others:
                world.isolate(i)
        else:
            self._hang(others)
        if "members" in self.scenario.faults or self.observer.known.ids_return:
            await self._serves_alone(quorum, intact)
        else:
            await self._serves(quorum)
        self._bring_back(others)
        await self._finish_move()
        self.make_machines()
        intact = [i for i in self._members() if i not in self.nemesis.context.rotten]
        await self._serves(intact)
        await self._converges(intact)
        await self._replace_disks()
        await self._dismisses()
        for workload in self.workloads:
            await workload.finish(self.doors[0])
        await self._converges(self._members())
        await self._tell(self._members())
        self.nemesis.check_failures()

    # --- members ----------------------------------------------------------------------------------

    def _members(self) -> list[int]:
        """Give the members with a machine that have a seat, as far as that is committed."""
        latest, hosts = self.observer.known.latest, self.world.hosts
        return [i for i in hosts if not latest.version or latest.seat(i) is not None]

    def _quorum(self, intact: list[int]) -> list[int]:
        """Draw a smallest set of intact members that can decide.

        By the last configuration, and by each in a log that may still be committed. All intact ones
        if there is none.
        """
        known = self.observer.known
        if [each.version for each in known.open_configurations()] == [0]:
            voting = [i for i in intact if known.is_there(VoterId(i))]
            size = quorum_size(len(known.first.voters))
            return self.rng.sample(voting, size) if len(voting) >= size else intact
        found = [*intact]
        if self._can_decide(found):
            drops = [i for i in intact if i not in self._spares()]
            for i in self.rng.sample(drops, len(drops)):
                fewer = [each for each in found if each != i]
                found = fewer if self._can_decide(fewer) else found
        return found

    def _can_decide(self, members: list[int]) -> bool:
        """Whether members are enough by every configuration that may count from now on."""
        known = self.observer.known
        return all(
            each.quorums.agree(
                {
                    voter
                    for voter in each.quorums.voters
                    if voter.member_id in members and known.is_there(voter)
                }
            )
            for each in known.open_configurations()
        )

    def _spares(self) -> set[int]:
        """Give the members that may take the places of lost voters."""
        seats = self.observer.known.latest.seats if self._replace_after else ()
        return {seat.member_id for seat in seats if seat.role is MemberRole.SPARE}

    async def _outwait(self, quorum: list[int]) -> None:
        """Have a leader put spares into the places of the voters that are lost.

        Storms hardly ever leave a leader alone for so long.
        """
        if self._spares().intersection(quorum):
            await trio.sleep(1.5 * self._replace_after)
            await self._serves(quorum)
            # A member whose disk hangs still answers, so it is not lost.
            if not self._hanging:
                words = f"spares among {quorum} take the places of lost voters"
                await self._within(lambda: not self._needs_spare(quorum), words)

    def _needs_spare(self, quorum: list[int]) -> bool:
        """Say whether a voter is lost whose place a spare could take, and nobody is to take it."""
        latest = self.observer.known.latest
        # A member that its operator has not started yet may keep the place for as long as it likes.
        kept = {
            seat.replaces
            for seat in latest.joining
            if seat.member_id in quorum or not seat.may_be_spare
        }
        lost = {voter.member_id for voter in latest.voters}.difference(quorum, kept)
        return bool(lost) and not self._spares().isdisjoint(quorum)

    async def _serves_alone(self, quorum: list[int], intact: list[int]) -> None:
        """Check that a quorum serves, unless a change of the members makes it no quorum.

        A leader looks whether the voters that it hears are enough. Some of them may be lost within
        a heartbeat timeout from then, or have disks that hang as soon as they stand. Those are
        missed by the change, which waits until they come back.
        """
        served = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_quorum, quorum, nursery.cancel_scope)
            await self._serves(quorum)
            await self._outwait(quorum)
            await self._within(self._settled, f"a change of the members ends at {quorum}")
            served = True
            nursery.cancel_scope.cancel()
        if not served:
            self._bring_back(self.world.others())
            await self._serves(intact)
            await self._within(self._settled, f"a change of the members ends at {intact}")

    async def _watch_quorum(self, quorum: list[int], scope: trio.CancelScope) -> None:
        while self._can_decide(quorum):  # noqa: ASYNC110 - any fact may change it
            await trio.sleep(self._unit / 10)
        scope.cancel()

    def _bring_back(self, ids: list[int]) -> None:
        """Undo what was done to members that were lost while a quorum had to serve."""
        self._hanging = False
        self._hang_in_a_ballot.clear()
        for i in ids:
            self.world.hosts[i].disk.mend()
        self.world.mend()

    def _settled(self) -> bool:
        """Whether no change of the voters is under way, by what is committed."""
        return not self.observer.known.latest.joint

    async def _finish_move(self) -> None:
        """Have the operator finish the move of a member, if the end of the storm interrupted it.

        A member with an empty disk may not be found before that.
        """
        with trio.move_on_after(self.patience) as scope:
            await finish_move(self.nemesis.context)
        if scope.cancelled_caught:
            self._complain("the new address of a member is acknowledged")

    def make_machines(self) -> list[int]:
        """Make the machines of new members that nobody has made yet; return those."""
        latest, hosts, made = self.observer.known.latest, self.world.hosts, list[int]()
        for i in latest.ids:
            host = hosts.get(i)
            if host is not None and host.retired and host.stopped:
                # A machine whose member was removed gets another one, and keeps nothing of that.
                shutil.rmtree(host.config.directory)
                self.observer.wiped(i)
                del hosts[i]
            if i not in hosts:
                self.world.create(i, latest)
                made.append(i)
        return made

    async def _dismisses(self) -> None:
        """Check that members without a seat end when they meet the present members."""
        world, known = self.world, self.observer.known
        gone = [i for i in world.present if known.latest.is_removed(i)]
        addresses = {(seat.host, seat.member_port) for seat in known.latest.seats}
        meet: list[int] = []
        for i in gone:
            last = known.disks[i].configurations[-1:]
            seats = {(s.host, s.member_port) for _, each in last for s in each.seats}
            seeds = {(each.host, each.member_port) for each in world.hosts[i].config.members}
            if addresses & (seats or seeds):
                meet.append(i)
            if world.hosts[i].ending:
                await world.hosts[i].gone()
            if world.hosts[i].stopped:
                await world.start(i)
        await self._within(
            lambda: all(world.hosts[i].retired for i in meet), f"members {meet} know of their end"
        )
        # The rest knows no address that is in use. Nobody waits for them.
        await self._let_go(gone)
        for i in gone:
            world.hosts[i].retired = True

    def _hang(self, ids: list[int]) -> None:
        """Make disks hang: at once, or when their member becomes a candidate."""
        if self.rng.random() < 0.5:
            self._hang_in_a_ballot += ids
        else:
            for i in ids:
                self.world.hosts[i].disk.stall(math.inf)

    def _look_at_a_ballot(self, i: int) -> None:
        host = self.world.hosts[i]
        if i in self._hang_in_a_ballot and host.member and host.state is State.CANDIDATE_BALLOT:
            host.disk.stall(math.inf)

    async def _let_go(self, ids: list[int]) -> None:
        await self.world.kill(*(i for i in ids if not self.world.hosts[i].stopped))

    async def _replace_disks(self) -> None:
        """Replace damaged disks, and sometimes an intact one; one at a time, without faults."""
        ids, context = self._members(), self.nemesis.context
        replaced = [i for i in context.rotten if i in ids]
        if not replaced and len(ids) > 1 and self.rng.random() < self.scenario.wipes:
            intact = [i for i in ids if context.may_spoil(i)]
            replaced = [self.rng.choice(intact)] if intact else []
        for i in replaced:
            await self.world.wipe(i)
            context.count("replaced disk")
            await self._serves([j for j in ids if j == i or not self.world.hosts[j].stopped])
            await self._converges([j for j in self.world.running() if j in ids])
        context.rotten.clear()

    async def _serves(self, ids: list[int]) -> None:
        """Check that these members soon have a leader among them, which takes commands.

        If disks of other members hang, one of those may lead, until there is a command.
        """
        world, since = self.world, trio.current_time()
        for i in ids:
            if world.hosts[i].ending:
                await world.hosts[i].gone()
            if world.hosts[i].stopped:
                await world.start(i)

        def joined() -> bool:
            # A change that was under way may have removed some of them by now.
            present = self._members()
            members = [i for i in ids if i in present]
            running = [world.hosts[i].running.status() for i in members if world.hosts[i].member]
            leaders = {each.leader_id for each in running if each.state == "CLOSED"}
            closed = all(each.state == "CLOSED" for each in running)
            there = len(running) == len(members) and len(leaders) == 1
            return closed and there and (self._hanging or not leaders.isdisjoint(members))

        await self._within(joined, f"members {ids} follow one leader")
        with trio.move_on_after(self.patience) as scope:
            await self._acknowledged(ids)
        if scope.cancelled_caught:
            self._complain(f"members {ids} take commands")
        self.healed = max(self.healed, trio.current_time() - since)

    async def _acknowledged(self, ids: list[int]) -> None:
        """Send commands until one of these members acknowledges one."""
        door = self.doors[0]
        before = door.counts["ok"]
        while door.counts["ok"] == before:
            try:
                await door.command(self.workloads[0].harmless(door.rng), among=ids)
            except RequestError:
                await trio.sleep(self._unit / 10)

    async def _converges(self, ids: list[int]) -> None:
        """Check that these members apply everything that is committed by now."""
        world, end = self.world, self.observer.known.committed_end

        def equal() -> bool:
            # A change that was under way may have removed some of them by now.
            present = self._members()
            hosts = [world.hosts[i] for i in ids if i in present]
            return all(
                host.member is not None and host.member.status().applied_position >= end
                for host in hosts
            )

        await self._within(equal, f"members {ids} have applied everything up to {end}")
        self.observer.tell(Settled(next(iter(world.leaders()), ids[0]), end))
        while left := self._without_vote(ids):
            # One after the other, since a change waits until the one before is done.
            await self._gets_a_vote(ids, left)
        await self._within(self._settled, "a change of the members ends")

    async def _gets_a_vote(self, ids: list[int], left: list[int]) -> None:
        await self._within(
            lambda: len(self._without_vote(ids)) < len(left),
            f"the store of one of members {left} gets a vote",
        )

    def _without_vote(self, ids: list[int]) -> list[int]:
        """Give the members that are to have a vote, and whose store has none yet."""
        known = self.observer.known
        latest = known.latest
        if not latest.version:
            voters = [voter.member_id for voter in latest.voters]
            return [i for i in ids if i in voters and not known.disks[i].votes]
        return [
            seat.member_id
            for seat in latest.seats
            if seat.member_id in ids
            and seat.is_to_vote
            and VoterId(seat.member_id, known.disks[seat.member_id].instance) not in latest.voters
        ]

    async def _tell(self, ids: list[int]) -> None:
        """Check that a reader with only a member's directory finds what is committed."""
        hosts, last = self.world.hosts, next(reversed(self.observer.known.committed.values()))

        def told() -> bool:
            stores = [host.member.store for i in ids if (host := hosts[i]).member is not None]
            known = [store.recorded.last_commit_position for store in stores]
            if len(known) < len(ids) or min(known) < last.position:
                return False
            return min(known) >= last.end or self._says_nothing(ids[0], last)

        words = f"the directories of members {ids} show that {last.end} is committed"
        await self._within(told, words)

    def _says_nothing(self, member: int, batch: Batch) -> bool:
        """Return whether a batch carries only log time, or only the last commit position."""
        raw = self.nemesis.context.find_batch(member, batch)
        entries = decode_entries_untrusted(raw) if raw is not None else ()
        return all(each.kind is EntryKind.TIMER for each in entries)

    async def _within(self, condition: Callable[[], bool], words: str) -> None:
        try:
            await self.world.until(condition, within=self.patience, every=self._unit / 10)
        except trio.TooSlowError:
            self._complain(words)

    def _complain(self, words: str) -> None:
        self.nemesis.check_failures()
        states = {i: host.state.name for i, host in self.world.hosts.items() if host.member}
        raise ViolationError(f"Liveness: not within {self.patience:g} s: {words}; {states}")
