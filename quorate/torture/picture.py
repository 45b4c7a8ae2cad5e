"""Which members there should be, for a torture in which they come and go.

The picture comes from the leader's ``member list``. Only committed configurations count: an
uncommitted one may be taken back, and its new ids be given to other members. Each seat without a
process gets one. Each process without a seat must end with exit status 77, and its machine is free
for another member then. An order is completed once a list shows what it asked for.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

import attrs
import trio

from ..client.resp import Reply, RespError, open_resp
from ..local.cluster import MemberProcess
from ..local.member_list import Listed, decode_list_untrusted
from ..local.survey import Survey, ask
from .keeper import EX_REMOVED, Keeper
from .machines import Machines, Place

__all__ = ["Expected", "Picture", "request"]

_LIST_SECONDS: Final = 2.0
"""How long a leader has to list the members. If smaller, a busy one is never understood. If larger,
a leader that has just died holds up the picture."""


async def request(process: MemberProcess, *words: str) -> Reply:
    """Send a control request to a member.

    Raises:
        OSError: it can't be reached.
        RespError: it refuses.
    """
    address = process.address
    async with open_resp(address.host, address.client_port) as client:
        return await client.call("QUORATE.CONTROL", *words)


@attrs.define(eq=False)
class Expected:
    """What an order is to bring about.

    Args:
        kind: of the order, under which it is counted.
        words: the order.
        seen: whether a list shows that it is done.
        place: of the member that is to join, if the order is about one.
        answered: the cluster has said that it is done, or will be.
    """

    kind: str
    words: str
    seen: Callable[[Listed], bool]
    place: Place | None = None
    answered: bool = False


class Picture:
    """The members that there should be.

    Args:
        keeper: of the processes.
        machines: where they run.

    Attributes:
        version: of the newest committed configuration that was seen.
        expected: what orders are still to bring about.
        completed: number of completed orders of each kind.
    """

    def __init__(self, keeper: Keeper, machines: Machines) -> None:
        self.keeper = keeper
        self.machines = machines
        self.version = 0
        self.expected: list[Expected] = []
        self.completed: Counter[str] = Counter()
        self._looking = trio.Lock()

    @property
    def running(self) -> list[MemberProcess]:
        """The processes that run."""
        return [each for each in self.keeper.cluster.members if each.pid is not None]

    async def survey(self) -> Survey:
        """Ask all processes, also those of members that are in no configuration (any more)."""
        found = Survey(())

        async def ask_one(process: MemberProcess) -> None:
            nonlocal found
            found = Survey((*found.answers, await ask(process.address)))

        async with trio.open_nursery() as nursery:
            for process in self.running:
                nursery.start_soon(ask_one, process)
        return found

    async def look(self) -> Listed | None:
        """Look at the members, start new ones, and note what is done.

        Returns:
            The members; None if no leader lists committed ones.
        """
        async with self._looking:
            listed = await self._committed()
            if listed is not None:
                self.version = listed.version
                await self._start_joiners(listed)
                await self._start_leavers(listed)
                self._note_done(listed)
            return listed

    async def _committed(self) -> Listed | None:
        seen = await self.survey()
        leader = self.keeper.find(seen.leader.member_id) if seen.leader else None
        if leader is None:
            return None
        with trio.move_on_after(_LIST_SECONDS):
            try:
                listed = decode_list_untrusted(await request(leader, "member", "list"))
            except (OSError, RespError, ValueError):
                return None
            # A leader lists what is in force in its log. What a member has applied is committed.
            applied = max(each.version for each in seen.answers)
            return listed if listed.version == applied >= self.version else None
        return None

    async def _start_joiners(self, listed: Listed) -> None:
        for seat in listed.members:
            if self.keeper.find(seat.member_id) is None:
                process = self.machines.join(listed, seat.member_id)
                # Held until it runs: it has not ended by itself.
                self.keeper.hold(process)
                self.keeper.cluster.members.append(process)
                self.keeper.on_change()
                await self.keeper.release(process)

    async def _start_leavers(self, listed: Listed) -> None:
        """Start removed members that are dead: they have to hear that they were removed."""
        for process in list(self.keeper.cluster.members):
            member = process.member_id
            # A member that was added since has an id that this list does not know yet.
            if listed.member(member) is not None or member >= listed.next_id:
                continue
            if member not in self.keeper.leaving:
                self.keeper.leaving.add(member)
                words = f"member {member} has lost its seat, and nobody asked for that"
                self.keeper.violations.append(words)
            if process.returncode != EX_REMOVED:
                await self.keeper.release(process, for_all=True)

    def _note_done(self, listed: Listed) -> None:
        for each in [each for each in self.expected if each.seen(listed)]:
            self.expected.remove(each)
            self.completed[each.kind] += 1

    def withdraw(self, place: Place) -> None:
        """Expect no longer that a member joins at this place."""
        self.expected = [each for each in self.expected if each.place != place]

    def unsettled(self, listed: Listed | None) -> str:
        """Return in words what is not as it should be at the end; empty if all is."""
        if listed is None:
            return "no leader lists committed members"
        if listed.joint:
            return f"version {listed.version} of the configuration is joint"
        for each in listed.members:
            if each.state in {"joining", "leaving"} or not (each.live and each.is_claimed):
                waits = each.waits or ("it is not live" if not each.live else "it has no store")
                return f"member {each.member_id} is {each.state}, and waits: {waits}"
        for process in self.keeper.cluster.members:
            if listed.member(process.member_id) is None:
                return f"member {process.member_id} was removed, and has not ended"
        return ""
