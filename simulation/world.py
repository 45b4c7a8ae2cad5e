"""A cluster in virtual time: real members, stores in a temporary folder, a network in memory."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Final, Generic

import attrs
import trio

from ..errors import NoLeaderError, RemovedError, UnknownOutcomeError, leaves
from ..node import MemberConfig, NodeConfig, State
from ..node.config.config import MAX_MEMBERS, Limits
from ..node.leader.leadership import Leadership
from ..node.one_error import one_error
from ..node.protocol.membership import MemberRole
from ..storage.testing import found_cluster
from ..transport.testing import MemoryNetwork
from .machines.clock import Clock
from .machines.disk import Disk, Fate
from .machines.host import Host, S_co
from .machines.scheduler import seeded_scheduler
from .machines.setting import TIMEOUTS, Setting
from .machines.tasks import Pauses
from .messages import Messages
from .watching.arrows import Arrows
from .watching.facts import Deleted, LeaderRefused
from .watching.pictures import Pictures
from .watching.stamps import watch_stamps
from .watching.trace import Trace

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from pathlib import Path

    from ..node import Member, Service, Timeouts, Transition
    from ..node.protocol.membership import Membership, Seat
    from ..transport import Message
    from .machines.host import ServiceFactory
    from .observer import Observer

__all__ = ["TIMEOUTS", "Setting", "World", "open_world"]

LOOK_SECONDS = 0.005


LIMITS: Final = Limits(journal_bytes=32 << 10)
"""Small journals, so that their entries are often moved to LMDB."""


class World(Generic[S_co]):
    """The cluster, its network, and a record of its events; made by :func:`open_world`.

    Attributes:
        network: the network between the hosts "h0", "h1" and so on.
        hosts: the hosts by member id, also those of members that were removed.
        transitions: transitions of all elections, oldest first.
        failures: the error that ended a member, by member.
        messages: messages between members; a script may drop or hold them.
        acked: commands with a reply to the client (:meth:`attempt`).
        refused: commands that were refused and will never have an effect.
        services: the services of all starts of all members.
        trace: every event.
        observer: sees what members receive, send and make durable; may be None.
        make_clock: gives the clock of a machine that is made later.
        accompany: runs next to each member, in its process; None for nothing.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        directory: Path,
        setting: Setting,
        service: ServiceFactory[S_co],
        *,
        trace: Trace | None = None,
        observer: Observer | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self.setting = setting
        self.trace = trace or Trace()
        self.observer = observer
        rng = random.Random(f"{setting.seed}/network")
        self.network = MemoryNetwork(rng, latency=setting.latency, jitter=setting.jitter)
        self.transitions: list[Transition] = []
        self.failures: dict[int, BaseException] = {}
        self.messages = Messages()
        self.acked: list[bytes] = []
        self.refused: list[bytes] = []
        self.services: list[S_co] = []
        self.pauses = pauses or Pauses()
        self.make_clock: Callable[[int], Clock] = lambda _: Clock()
        self.accompany: Callable[[Member, Service], Awaitable[None]] | None = None
        self._nursery = nursery
        self._directory = directory
        self._service = service
        self._after: list[Callable[[int], None]] = []
        members = _first_members(setting)
        self.hosts = {i: self._host(i, members) for i in range(setting.members)}
        self._arrows: Arrows | None = None
        if self.trace.has_file:
            self._arrows = Arrows(self.trace)
            pictures = Pictures(self.trace, self.hosts)
            self.trace.picture = pictures.now
            self._after.append(pictures.look)
        if setting.founded:
            stores = {i: self.hosts[i].config.directory / "log" for i in setting.voters}
            found_cluster(
                stores, cluster="simulated", rng=random.Random(f"{setting.seed}/founders")
            )

    def _host(self, i: int, members: tuple[MemberConfig, ...], *, join: bool = False) -> Host[S_co]:
        setting = self.setting
        config = NodeConfig(
            "simulated",
            i,
            self._directory / f"member-{i}",
            members,
            "lan",
            setting.timeouts,
            LIMITS,
            snapshot=setting.snapshot,
            join=join,
        )
        rng = random.Random(f"{setting.seed}/disk/{i}")
        disk = Disk(rng, setting.fsync, setting.fsync_jitter)
        return Host(
            config, self.network, self._service, setting.seed, self.pauses, disk, self._accompany
        )

    async def _accompany(self, member: Member, service: Service) -> None:
        if self.accompany is not None:
            await self.accompany(member, service)

    # --- members that come and go

    @property
    def membership(self) -> Membership:
        """The newest configuration that a running member has applied."""
        running = [host.member for host in self.hosts.values() if host.member is not None]
        return max((member.configuration for member in running), key=lambda each: each.version)

    @property
    def _committed(self) -> Membership | None:
        """The last committed configuration, as far as anybody sees it here."""
        if self.observer is not None:
            return self.observer.known.latest
        return self.membership if self.running() else None

    def create(self, i: int, membership: Membership | None = None) -> Host[S_co]:
        """Make the machine of a new member, with an empty disk and a joiner's file.

        Args:
            i: its id, which has a seat.
            membership: the present members, which are listed in its file; by default those that a
                running member has applied.
        """
        now = membership or self.membership
        seat = now.seat(i)
        assert seat is not None, f"member {i} has no seat in {now}"
        assert i not in self.hosts, f"member {i} has a machine already"
        host = self.hosts[i] = self._host(i, _listed(now, _entry(seat)), join=True)
        host.clock = self.make_clock(i)
        if self.observer is not None:
            self.observer.created(i)
        self.trace.tell("created", i, name=host.name)
        return host

    def readdress(self, i: int, member_port: int, membership: Membership) -> None:
        """Change where a member listens for members, in its file, from its next start on.

        Whoever edits the file also puts in where the other members are by now: a member that was
        away while they moved could not find them.
        """
        host = self.hosts[i]
        if host.config.join and membership.seats:
            own = attrs.evolve(host.config.own, member_port=member_port)
            host.config = attrs.evolve(host.config, members=_listed(membership, own))
            return
        ports = {seat.member_id: seat.member_port for seat in membership.seats} | {i: member_port}
        members = tuple(
            attrs.evolve(each, member_port=ports.get(each.member_id, each.member_port))
            for each in host.config.members
        )
        host.config = attrs.evolve(host.config, members=members)

    # --- members

    async def start(self, *ids: int) -> None:
        """Start these members, or all members."""
        for i in ids or self.present:
            await self.hosts[i].start(self._nursery, self._run)

    async def _run(self, host: Host[S_co]) -> None:
        i = host.member_id
        self.trace.tell("starts", i)
        try:
            await host.run(self._attend)
        except Exception as failure:
            if any(isinstance(each, RemovedError) for each in leaves(failure)):
                host.retired = True  # the orderly end of a member that was removed
                self.trace.tell("removed", i)
            elif self.setting.contain:
                self.failures[i] = failure
                self.trace.tell("fails", i, why=repr(failure)[:200])
            else:
                raise
        finally:
            if self.observer is not None:
                self.observer.gone(i)
        self.trace.tell("ends", i)

    def _attend(self, member: Member) -> None:
        """Observe a member that was just created."""
        i, store = member.config.member_id, member.store
        self.services.append(self.hosts[i].service)
        if self._arrows is not None:
            self._arrows.attend(member)
        if self.observer is not None:
            self._observe_member(member, self.observer)
            for name in self.hosts[i].deleted():
                self.observer.tell(Deleted(i, name))
        member.observe(self._observe)
        deliver, durable = member.on_message, store.on_durable

        def on_message(sender: int, message: Message) -> None:
            arrow = self._arrows.of(sender, i, message) if self._arrows else {}
            if self.messages.passes(sender, i, message):
                hear(sender, message, arrow)

        def hear(sender: int, message: Message, arrow: Mapping[str, int] | None = None) -> None:
            # Without an arrow it was held back.
            kind = type(message).__name__
            self.trace.tell("hears", i, more=arrow or {}, sender=sender, type=kind)
            deliver(sender, message)
            self.happened(i)

        def on_durable(position: int) -> None:
            self.trace.tell("durable", i, append=position)
            durable(position)
            self.happened(i)

        self.messages.attend(i, hear)
        setattr(member, "on_message", on_message)  # noqa: B010 - overrides it for this member only
        store.on_durable = on_durable

    def _observe_member(self, member: Member, observer: Observer) -> None:
        """Let the observer see what the member sends."""
        i, links = member.config.member_id, member.links
        send, broadcast = links.send, links.broadcast

        def watched_send(to: int, message: Message) -> bool:
            observer.sends(i, message)
            return send(to, message)

        def watched_broadcast(message: Message) -> None:
            observer.sends(i, message)
            broadcast(message)

        setattr(links, "send", watched_send)  # noqa: B010 - overrides it for these links only
        setattr(links, "broadcast", watched_broadcast)  # noqa: B010
        watch_stamps(
            member, lambda: {j: host.clock for j, host in self.hosts.items()}, observer.tell
        )
        member.log_guard.observe(lambda why: observer.tell(LeaderRefused(i, why)))
        observer.attend(member)

    def _observe(self, transition: Transition) -> None:
        self.transitions.append(transition)
        self.trace.tell(
            "enters",
            transition.member_id,
            before=transition.before.name,
            after=transition.after.name,
            reason=transition.reason,
            term=transition.term,
            election=transition.election,
            log_end=[transition.log_end.term, transition.log_end.position],
            commit=transition.commit_position,
        )
        if self.trace.has_file:
            self._show_leader(transition)
        self.happened(transition.member_id)

    def _show_leader(self, transition: Transition) -> None:
        """Write that a member leads, if that is the end of its election."""
        member = self.hosts[transition.member_id].member
        if member is None or transition.before is not State.LEADER_READY:
            return
        role, election = member.state.role, member.election
        if transition.after is State.CLOSED and isinstance(role, Leadership):
            self.trace.show(
                "leads",
                transition.member_id,
                term=role.term,
                cause=election.cause,
                base=role.base,
                took=transition.at - election.began,
            )

    def happened(self, i: int) -> None:
        """Handle an event of a member."""
        if self.observer is not None:
            self.observer.look(i)
        for look in self._after:
            look(i)

    def after_every_event(self, look: Callable[[int], None]) -> None:
        """Call `look` with the member's id after every message and every write of a member."""
        self._after.append(look)

    async def kill(self, *ids: int) -> None:
        """Kill processes: unwritten data is lost, and nothing more is sent or written."""
        lives = [
            self.hosts[i].ended for i in ids
        ]  # do not wait for a start that happens from now on
        for i in ids:
            self.happened(i)
            self.trace.tell("killed", i)
            self.hosts[i].kill()
        for life in lives:
            await life.wait()

    async def stop(self, i: int) -> None:
        """Stop a member in order; if the caller stops waiting, the member is killed."""
        host = self.hosts[i]
        self.trace.tell("stops", i)
        starts, member = host.starts, host.running
        try:
            await member.close()
        finally:
            if host.member is member and host.starts == starts:
                with trio.CancelScope(shield=True):
                    await self.kill(i)

    def pause(self, i: int) -> None:
        """Pause a process."""
        self.trace.tell("pauses", i)
        self.hosts[i].pause()

    def resume(self, i: int) -> None:
        """Resume a process, if it was paused."""
        if self.hosts[i].paused:
            self.trace.tell("resumes", i)
            self.hosts[i].resume()

    async def wipe(self, i: int) -> None:
        """Kill a member and replace its disk by an empty one; the member is not started."""
        await self.kill(i)
        self.replace_disk(i)

    def replace_disk(self, i: int) -> None:
        """Replace the disk of a member that does not run, and write its file anew.

        Nothing but the file says where other members are, so the present ones are written into it.
        """
        self.trace.tell("wiped", i)
        host, now = self.hosts[i], self._committed
        host.wipe()
        # Before any change the file is the configuration.
        if now is not None and now.version:
            host.config = attrs.evolve(host.config, members=_listed(now, host.config.own))
        if self.observer is not None:
            self.observer.wiped(i)

    async def cut_power(self, *ids: int, fate: Fate = Fate.LOST) -> None:
        """Cut the power of machines: connections break silently, `fate` decides pending writes."""
        lives = [
            self.hosts[i].ended for i in ids
        ]  # do not wait for a start that happens from now on
        for i in ids:
            self.happened(i)
            self.trace.tell("powerless", i, fate=fate.value)
            self.hosts[i].cut_power(fate)
        for life in lives:
            await life.wait()

    def set_timeouts(self, i: int, timeouts: Timeouts) -> None:
        """Change the timeouts of a running member."""
        state = self.hosts[i].running.state
        state.config = attrs.evolve(state.config, timeouts=timeouts)

    @property
    def present(self) -> tuple[int, ...]:
        """The members that were not removed."""
        return tuple(i for i, host in self.hosts.items() if not host.retired)

    def name(self, i: int) -> str:
        """Return the name of a member's machine in the network."""
        return self.hosts[i].name

    def others(self, *ids: int) -> list[int]:
        """Return all other members that were not removed."""
        return [i for i in self.present if i not in ids]

    def running(self) -> list[int]:
        """Return the running members."""
        return [i for i, host in self.hosts.items() if host.member is not None]

    # --- the network

    def isolate(self, i: int) -> None:
        """Cut a member off from all other members."""
        for other in self.others(i):
            self.network.cut(self.name(i), self.name(other))

    def mend(self) -> None:
        """Undo all cuts."""
        for one in self.present:
            self.reconnect(one)

    def reconnect(self, i: int) -> None:
        """Undo the cuts on all ways from one member."""
        for other in self.others(i):
            self.network.heal(self.name(i), self.name(other), both=False)

    # --- waiting

    async def until(
        self,
        condition: Callable[[], bool],
        *,
        within: float = 30.0,
        every: float = LOOK_SECONDS,
    ) -> None:
        """Wait for a condition, by polling.

        Raises:
            trio.TooSlowError: the condition did not hold in time.
        """
        with trio.fail_after(within):
            while not condition():  # noqa: ASYNC110 - virtual time, and any condition
                await trio.sleep(every)

    async def reached(self, member: int, state: State, *, within: float = 30.0) -> None:
        """Wait until a member is in a state."""

        def there() -> bool:
            host = self.hosts[member]
            return host.member is not None and host.state is state

        await self.until(there, within=within)

    def leaders(self) -> list[int]:
        """Return the members that lead and take requests."""
        return [
            i for i, host in self.hosts.items() if host.member and host.member.topology.is_leader
        ]

    async def leader(self, *, within: float = 30.0) -> int:
        """Wait until there is one leader; return it."""
        await self.until(lambda: len(self.leaders()) == 1, within=within)
        return self.leaders()[0]

    async def settled(self, *, within: float = 30.0) -> int:
        """Wait until every running member's election is closed, with one leader; return it."""
        alive = [host for host in self.hosts.values() if host.member]
        await self.until(
            lambda: all(host.state is State.CLOSED for host in alive) and len(self.leaders()) == 1,
            within=within,
        )
        return self.leaders()[0]

    # --- clients

    async def command(self, at: int, payload: bytes) -> bytes:
        """Execute a command through a member; return the service's reply."""
        return await self.hosts[at].running.command(payload)

    async def attempt(self, at: int, payload: bytes, *, within: float = 1.0) -> bool:
        """Execute a command through a member; return whether it was acknowledged."""
        host = self.hosts[at]
        if host.member is None:
            return False
        try:
            with trio.move_on_after(within):
                await host.member.command(payload)
                self.acked.append(payload)
                return True
        except UnknownOutcomeError:
            pass
        except NoLeaderError:
            self.refused.append(payload)
        return False

    def path(self, member: int, *, since: int = 0) -> list[str]:
        """Return the names of the states that a member has entered."""
        return [t.after.name for t in self.transitions[since:] if t.member_id == member]


def _first_members(setting: Setting) -> tuple[MemberConfig, ...]:
    return tuple(
        MemberConfig(
            i,
            f"h{i}",
            7000,
            6000,
            standby=i not in setting.voters,
            witness=i in setting.without_tables,
        )
        for i in range(setting.members)
    )


def _listed(membership: Membership, own: MemberConfig) -> tuple[MemberConfig, ...]:
    """Return the members of the file of a member that begins with an empty disk."""
    # As many other ones as a file may have, those that vote first.
    others = sorted(
        (each for each in membership.seats if each.member_id != own.member_id),
        key=lambda each: not membership.has_vote(each.member_id),
    )
    listed = [own, *map(_entry, others[: MAX_MEMBERS - 1])]
    return tuple(sorted(listed, key=lambda each: each.member_id))


def _entry(seat: Seat) -> MemberConfig:
    """Return the entry of a member in a node.toml."""
    return MemberConfig(
        seat.member_id,
        seat.host,
        seat.member_port,
        seat.client_port,
        standby=not seat.is_to_vote,
        witness=seat.role is MemberRole.WITNESS,
    )


@one_error
@contextlib.asynccontextmanager
async def open_world(
    directory: Path,
    service: ServiceFactory[S_co],
    setting: Setting,
    *,
    trace: Trace | None = None,
    observer: Observer | None = None,
    pauses: Pauses | None = None,
) -> AsyncGenerator[World[S_co], None]:
    """Open a world in virtual time; the scheduler is seeded while it is open.

    Args:
        directory: a folder for the members' stores; a RAM disk is faster.
        service: makes each member's state machine.
        setting: the settings of the world.
        trace: receives all events.
        observer: called after every event.
        pauses: of several worlds that run together; there must be one for all.
    """
    with seeded_scheduler(setting.seed):
        async with trio.open_nursery() as nursery:
            world = World(
                nursery,
                directory,
                setting,
                service,
                trace=trace,
                observer=observer,
                pauses=pauses,
            )
            try:
                yield world
            finally:
                for host in world.hosts.values():
                    host.kill()
                world.pauses.end()
                nursery.cancel_scope.cancel()
