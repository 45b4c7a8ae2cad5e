"""The fault `members` of `quorate torture`: members come and go while other faults hit them.

A strike sends one order of `quorate member` to a member chosen at random, and repeats it until it
is answered, as an operator would. It is about a new voter, standby or witness, a promotion, a
demotion, a removal (also of the leader), a replacement (also of a dead member), or a move to other
ports. Or a voter loses its disk. Or a removed member is started again, which must end at once. Or a
snapshot is taken, so that new members install one. An order goes on while the next faults begin.

About half of the strikes are watched: when a leader has appended a joint configuration, it or
another member is killed a moment later. That is about when the final one is appended, too.

When all faults are over, the cluster must settle: no change is under way, nobody joins, all members
of the configuration are live, and the processes of all removed members have ended. Every order that
was answered must have been seen to be done.
"""

import random
import re
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import attrs
import trio

from ..client.resp import RespError
from ..keyvalue.retry import has_no_answer
from ..local.cluster import MemberProcess
from ..local.member_list import Listed, ListedMember, decode_changed_untrusted
from ..local.survey import StuckError
from ..local.words import span
from ..node.protocol.membership import MemberRole
from .keeper import EX_REMOVED, last_lines
from .machines import Place
from .picture import Expected, Picture, request

__all__ = ["Members"]

FEWEST_VOTERS: Final = 2
"""No order leaves fewer. With one, a joiner would need the operator's `even` to become a voter."""
FEWEST_TO_LOSE: Final = 3
"""With fewer voters, none may be dead for long, and none is replaced that is."""

ANSWER_SECONDS: Final = 10.0
"""How long a member has to answer. If smaller than a leader waits for a commit, the outcome of an
order is hardly ever known. If larger, a member that is paused holds up the next attempt."""
PATIENCE_SECONDS: Final = 40.0
"""How long an order is repeated. If smaller, few are answered in the middle of faults. If larger,
one that can't be done holds up the next ones."""
PAUSE_SECONDS: Final = 0.2
LOOK_SECONDS: Final = 0.3
END_SECONDS: Final = 30.0
"""How long the process of a removed member may take to start and end."""
SETTLE_SECONDS: Final = 120.0
"""How long the cluster may take to settle. If smaller, a joiner can't copy the whole log."""
LAST_STARTS: Final = 4
"""Removed members that are started once more at the end. If larger, the end takes longer."""

WATCHED: Final = 0.5
JOINT_SECONDS: Final = 20.0
"""How long a watch waits for a joint configuration. If smaller, joiners are not caught up by then.
If larger, watches outlive the faults."""
AFTER_JOINT_SECONDS: Final = (0.0, 0.001, 0.003, 0.01, 0.05)
"""From the append of a joint configuration to a kill: it may be committed by then, or be followed
by the final one."""
DOWN_SECONDS: Final = (0.1, 0.5, 2.0, 5.0)
_TICK_SECONDS: Final = 0.002
_JOINT: Final = re.compile(rb" config: [^\n]* joint=true ")
_VICTIMS: Final = {"leader": 4, "other": 3, "both": 1}

LOST_DISK: Final = "lost disk"

_LATER: Final = frozenset({"in-flight", "not-settled", "would-lose-quorum"})
"""Refusals that end with the faults that cause them."""

Act: TypeAlias = Callable[[Listed, ListedMember], Awaitable[None]]


@attrs.frozen
class _Way:
    """One kind of order that is possible now, for some subjects."""

    weight: float
    act: Act
    subjects: Sequence[ListedMember]


class Members:
    """Changes the members.

    Args:
        picture: which members there should be.
        rng: random numbers for this alone.
        tell: called with a line about each order.

    Attributes:
        killed: members that were killed in the middle of a change.
        refused: orders that were refused for good.
        aside: number of strikes that change no members, by kind.
    """

    def __init__(self, picture: Picture, rng: random.Random, tell: Callable[[str], None]) -> None:
        self.picture = picture
        self.killed = 0
        self.refused: list[str] = []
        self.aside: Counter[str] = Counter()
        self._keeper = picture.keeper
        self._machines = picture.machines
        self._rng = rng
        self._tell = tell
        self._busy = False
        self._watching = False
        self._over = False

    # --- strikes ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at the members, and start new ones; until cancelled."""
        while True:
            await self.picture.look()
            await trio.sleep(LOOK_SECONDS)

    def strike(self, nursery: trio.Nursery) -> bool:
        """Begin with an order, which goes on in a task; False if one is under way."""
        if self._busy:
            return False
        self._busy = True
        nursery.start_soon(self._one_order)
        if not self._watching and self._rng.random() < WATCHED:
            self._watching = True
            nursery.start_soon(self._kill_in_joint)
        return True

    async def _one_order(self) -> None:
        try:
            listed = await self._members_at_rest()
            if listed is None:
                return
            ways = self._ways(listed)
            (way,) = self._rng.choices(ways, [each.weight for each in ways])
            await way.act(listed, self._rng.choice(way.subjects))
            await self.picture.look()
        finally:
            self._busy = False

    async def _members_at_rest(self) -> Listed | None:
        """Wait until no change of the voters is under way; None if that takes too long."""
        with trio.move_on_after(PATIENCE_SECONDS):
            while True:
                listed = await self.picture.look()
                if listed is not None and not listed.joint:
                    return listed
                await trio.sleep(PAUSE_SECONDS)
        return None

    def _ways(self, listed: Listed) -> list[_Way]:
        """Return what may be ordered now."""
        joining = [each for each in listed.members if each.state == "joining"]
        standbys = [each for each in listed.members if each.state == "standby"]
        witnesses = [each for each in listed.members if each.role is MemberRole.WITNESS]
        voters = [each for each in listed.members if each.state in {"voter", "witness"}]
        up = [each for each in voters if not self._keeper.is_held(each.member_id)]
        # Without one more, a majority must be up: of the voters now, and of those that are left.
        # A voter that has lost its disk still counts as one, and is listed as one that joins.
        whole = not any(each.kind == LOST_DISK for each in self.picture.expected)
        spare = whole and len(voters) >= FEWEST_TO_LOSE and 2 * (len(up) - 1) > len(voters)
        grows = len(voters) + len(joining) < self._machines.count
        # One that is being replaced goes at any time.
        staying = [each for each in up if listed.replacement_of(each.member_id) is None]
        kept = [each for each in staying if each not in witnesses]
        full = self._machines.choose(self._rng, self._keeper.cluster.members) is None
        ways = [
            _Way(4 if full else 2, self._remove, up if spare else []),
            _Way(1, self._remove, standbys),
            _Way(0.5, self._remove, joining),
            _Way(1, self._demote, [each for each in up if spare and each not in witnesses]),
            _Way(2, self._promote, standbys),
            _Way(1, self._move, up if spare else []),
            _Way(2, self._lose_disk, staying if spare and len(up) == len(voters) else []),
            _Way(1, self._start_former, up if self._former_at_rest else []),
            _Way(1, self._snapshot, up),
        ]
        if not full:
            ways += [
                _Way(3, self._add, up if grows else []),
                _Way(1, self._add_standby, up),
                _Way(1, self._add_witness, up if grows and not witnesses else []),
                _Way(2, self._replace, kept),
                _Way(2, self._replace_dead, kept if spare and len(up) == len(voters) else []),
            ]
        return [way for way in ways if way.subjects]

    # --- orders -----------------------------------------------------------------------------------

    async def _add(self, _: Listed, __: ListedMember) -> None:
        await self._join("add", "voter")

    async def _add_standby(self, _: Listed, __: ListedMember) -> None:
        await self._join("add standby", "standby", "role=standby")

    async def _add_witness(self, _: Listed, __: ListedMember) -> None:
        await self._join("add witness", "witness", "role=witness")

    async def _replace(self, _: Listed, old: ListedMember) -> None:
        self._keeper.leaving.add(old.member_id)
        await self._join("replace", "voter", f"replaces={old.member_id}")

    async def _replace_dead(self, _: Listed, old: ListedMember) -> None:
        """Kill a member for good, and replace it; once it is removed, it is started again."""
        member = old.member_id
        process = self._keeper.find(member)
        assert process is not None
        self._keeper.hold(process)
        self._keeper.leaving.add(member)
        await process.kill()
        self._tell(f"members: member {member} is dead for good")
        if not await self._join("replace dead", "voter", f"replaces={member}"):
            await self._keeper.release(process)

    async def _join(self, kind: str, state: str, *words: str) -> bool:
        """Add a member on a free machine; return whether it has a seat."""
        # A standby may be promoted before anybody looks.
        states = {"standby", "joining", "voter"} if state == "standby" else {state}
        place = self._machines.choose(self._rng, self._keeper.cluster.members)
        if place is None:
            return False

        def seen(listed: Listed) -> bool:
            return not listed.joint and any(
                each.is_claimed and each.state in states
                for each in listed.members
                if (each.host, each.client_port) == (place.host, place.client_port)
            )

        return await self._order(kind, ("add", *place.words, *words), seen, place)

    async def _remove(self, listed: Listed, old: ListedMember) -> None:
        member = old.member_id
        self._keeper.leaving.add(member)

        def seen(listed: Listed) -> bool:
            return not listed.joint and listed.member(member) is None

        kind = "remove leader" if member == listed.leader else f"remove {old.state}"
        # It need not become what it was to become.
        self.picture.withdraw(self._machines.find(old.host, old.client_port))
        await self._order(kind, ("remove", str(member)), seen)
        # Nobody replaces the dead member any more: it comes back.
        dead = None if old.replaces is None else self._keeper.find(old.replaces)
        if dead is not None and self._keeper.is_held(dead.member_id):
            await self._keeper.release(dead)

    async def _demote(self, _: Listed, old: ListedMember) -> None:
        await self._order("demote", ("demote", str(old.member_id)), self._is(old, "standby"))

    async def _promote(self, _: Listed, old: ListedMember) -> None:
        place = self._machines.find(old.host, old.client_port)
        words = ("promote", str(old.member_id))
        await self._order("promote", words, self._is(old, "voter"), place)

    def _is(self, subject: ListedMember, state: str) -> Callable[[Listed], bool]:
        def seen(listed: Listed) -> bool:
            found = listed.member(subject.member_id)
            return not listed.joint and found is not None and found.state == state

        return seen

    async def _move(self, _: Listed, old: ListedMember) -> None:
        """Stop a member, have the cluster know its new ports, and start it there."""
        process = self._keeper.find(old.member_id)
        place = None if process is None else self._machines.neighbour(self._rng, process)
        if process is None or place is None:
            return

        def seen(listed: Listed) -> bool:
            found = listed.member(old.member_id)
            return found is not None and found.client_port == place.client_port

        self._keeper.hold(process)
        await process.stop()
        before = self._machines.of(process)
        self._machines.move(process, place)
        moved = await self._order("move", ("move", str(old.member_id), *place.words), seen)
        if not moved and not any(seen is each.seen for each in self.picture.expected):
            self._machines.move(process, before)
        self._keeper.on_change()
        await self._keeper.release(process)

    async def _lose_disk(self, listed: Listed, old: ListedMember) -> None:
        """Start a voter with an empty disk. No other disk is lost before it is a voter again."""
        process = self._keeper.find(old.member_id)
        assert process is not None
        self._keeper.hold(process)
        await process.kill()
        self._tell(f"members: member {old.member_id} loses its disk")
        self._machines.wipe(process, listed)

        def seen(listed: Listed) -> bool:
            found = listed.member(old.member_id)
            if found is None or listed.joint:
                return False
            return found.state == old.state and found.instance != old.instance

        place = self._machines.of(process)
        words = f"member {old.member_id} becomes a voter with another store"
        self.picture.expected.append(Expected(LOST_DISK, words, seen, place, answered=True))
        await self._keeper.release(process)

    async def _snapshot(self, _: Listed, __: ListedMember) -> None:
        """Take a snapshot; another one may be under way."""
        process = self._rng.choice(self.picture.running or self._keeper.cluster.members)
        with trio.move_on_after(ANSWER_SECONDS):
            try:
                await request(process, "snapshot")
            except (OSError, RespError):
                return
            self.aside["snapshot"] += 1

    async def _order(
        self,
        kind: str,
        words: Sequence[str],
        seen: Callable[[Listed], bool],
        place: Place | None = None,
    ) -> bool:
        """Send an order to one member after the other until it is answered.

        Returns:
            Whether it is done, or will be. If not, it may be done all the same.
        """
        expected = Expected(kind, " ".join(words), seen, place)
        self.picture.expected.append(expected)
        self._tell(f"members: {kind}: {expected.words}")
        began = trio.current_time()
        with trio.move_on_after(PATIENCE_SECONDS):
            while True:
                with trio.move_on_after(ANSWER_SECONDS):
                    refusal = await self._attempt(words)
                    if not refusal:
                        expected.answered = True
                        after = span(trio.current_time() - began)
                        self._tell(f"members: {kind}: answered after {after}")
                        return True
                    if refusal.partition(":")[0] not in _LATER:
                        self._tell(f"members: {kind}: refused: {refusal}")
                        self.refused.append(f"{kind}: {refusal}")
                        self.picture.expected.remove(expected)
                        return False
                await trio.sleep(PAUSE_SECONDS)
        self._tell(f"members: {kind}: not answered in time")
        return False

    async def _attempt(self, words: Sequence[str]) -> str:
        """Send an order once; return why it is not done, empty if it is."""
        process = self._rng.choice(self.picture.running or self._keeper.cluster.members)
        try:
            answer = await request(process, "member", *words)
        except RespError as refusal:
            return "in-flight" if has_no_answer(refusal.code) else str(refusal).partition(" ")[2]
        except OSError:
            return "in-flight"
        decode_changed_untrusted(answer)
        return ""

    # --- kills in the middle ----------------------------------------------------------------------

    async def _kill_in_joint(self) -> None:
        """Kill members a moment after a joint configuration was appended."""
        try:
            leader = await self._joint_at()
            if leader is not None and not self._over:
                await self._kill_near(leader)
        finally:
            self._watching = False

    async def _kill_near(self, leader: MemberProcess) -> None:
        """Kill a leader that changes the voters, or another member, and start it again later."""
        await trio.sleep(self._rng.choice(AFTER_JOINT_SECONDS))
        others = [each for each in self.picture.running if each is not leader]
        other = self._rng.choice(others) if others else leader
        (which,) = self._rng.choices(list(_VICTIMS), list(_VICTIMS.values()))
        victims = {"leader": [leader], "other": [other], "both": [leader, other]}[which]
        # Members that another fault keeps down are not ours to start again.
        victims = [each for each in victims if not self._keeper.is_held(each.member_id)]
        if not victims:
            return
        names = ", ".join(str(each.member_id) for each in victims)
        self._tell(f"members: kill in a change: member {names} ({which})")
        for each in victims:
            self._keeper.hold(each)
            self.killed += each.pid is not None
            each.send_signal(signal.SIGKILL)
        for each in victims:
            await each.kill()  # it may take a while to die, and counts as running until then
        await trio.sleep(self._rng.choice(DOWN_SECONDS))
        for each in victims:
            await self._keeper.release(each)

    async def _joint_at(self) -> MemberProcess | None:
        """Wait until a leader appends a joint configuration; return it, None if none does."""
        ends = {each.log: each.log.stat().st_size for each in self._keeper.cluster.members}
        with trio.move_on_after(JOINT_SECONDS):
            while not self._over:
                for process in self.picture.running:
                    end = process.log.stat().st_size
                    if end > (begin := ends.get(process.log, 0)):
                        with process.log.open("rb") as lines:
                            lines.seek(begin)
                            text = lines.read()
                        if _JOINT.search(text):
                            return process
                        # The last line may not be complete yet.
                        ends[process.log] = begin + text.rfind(b"\n") + 1
                await trio.sleep(_TICK_SECONDS)
        return None

    # --- removed members --------------------------------------------------------------------------

    @property
    def _former_at_rest(self) -> list[MemberProcess]:
        """The removed members whose ports nobody uses now."""
        taken = [self._machines.of(each) for each in self._keeper.cluster.members]
        return [each for each in self._keeper.former if self._machines.of(each) not in taken]

    async def _start_former(self, _: Listed, __: ListedMember) -> None:
        process = self._rng.choice(self._former_at_rest)
        self._tell(f"members: start member {process.member_id}, which was removed")
        await self._must_end(process)

    async def _must_end(self, process: MemberProcess) -> None:
        """Start a member that was removed, and check that it ends at once."""
        status: int | None = None
        await process.start()
        try:
            with trio.move_on_after(END_SECONDS):
                status = await process.wait()
        finally:
            await process.kill()
        if status == EX_REMOVED:
            self.aside["start of a removed member"] += 1
            return
        how = "went on" if status is None else f"ended with {status}"
        self._keeper.violations.append(
            f"member {process.member_id} was removed, and when it was started again it {how}: "
            f"{last_lines(process)}"
        )

    # --- the end ----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until all changes are done, and all removed members have ended.

        Raises:
            StuckError: that takes too long.
        """
        waits = "an order is under way"
        self._over = True
        with trio.move_on_after(SETTLE_SECONDS) as scope:
            while self._busy or self._watching:  # noqa: ASYNC110 - both end by themselves
                await trio.sleep(PAUSE_SECONDS)
            for process in list(self._keeper.cluster.members):
                await self._keeper.release(process, for_all=True)
            while waits:
                # Removed members may end, and all others must run.
                await self._keeper.look_after()
                waits = self.picture.unsettled(await self.picture.look())
                await trio.sleep(PAUSE_SECONDS)
        if scope.cancelled_caught:
            raise StuckError(f"members not settled after {SETTLE_SECONDS:g} s: {waits}")
        self._keeper.violations += [
            f"an order was answered, and is not done: {each.words}"
            for each in self.picture.expected
            if each.answered
        ]
        for process in self._former_at_rest[-LAST_STARTS:]:
            await self._must_end(process)
