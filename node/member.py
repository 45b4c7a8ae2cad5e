"""One member of a cluster: it builds its parts, and runs their tasks under one nursery.

Each part gets the other parts that it needs when it is made. The tasks start in this order, and end
in the reverse one::

    member
    ├── store               writes; its last commit is awaited
    ├── snapshots           takes, deletes and installs them; at the start one may be loaded
    ├── service             background work of the state machine (flushing)
    └── consensus           ends first
        ├── links           listen, dial, one task for each connection
        ├── applier         applies what has to be read back from the log
        ├── requests        parked and forwarded ones
        ├── disk space      watches how much is left
        ├── certificates    takes new ones into use
        └── election        elects, leads, follows, again and again

A bug in any of them ends the member, with one error that says why. A lost link, a refused
connection or a silent peer does not.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, closing, nullcontext
from typing import TYPE_CHECKING, Any, Never

import attrs
import trio

from ..errors import RefusedError, RequestError, check_interpreter
from ..storage import ThreadExecutor, VotingRight
from ..storage.lmdb.environment import free_bytes
from ..storage.writing.executor import nothing
from ..transport import (
    Address,
    ForwardReply,
    ForwardRequest,
    Founding,
    FrameStream,
    HeartbeatRequest,
    Hello,
    HelloStatus,
    LeadershipCession,
    Links,
    Message,
    StreamPurpose,
    TcpNetwork,
)
from .clocks import Clocks
from .election import election
from .election.context import ElectionContext
from .follower.catchup_rate import CatchupRate
from .follower.following import Following
from .follower.log_guard import LogGuard
from .follower.snapshot_install import SnapshotInstall
from .leader.leadership import Leadership
from .live.flight import recording_flight
from .live.loop_delay import watch_loop
from .live.messages import MessageRecorder
from .live.relay import Relay
from .live.reporter import Reporter
from .live.reports import send_events
from .member_status import Status
from .membership.admission import become_voter
from .membership.founding import Founders
from .membership.removal import Removal
from .membership.taken_seat import why_lost
from .membership.two_processes import TwoProcesses
from .one_error import one_error
from .protocol.causes import Cause
from .protocol.membership import MemberRole
from .protocol.states import State
from .protocol.untrusted import TermBound
from .readers.history import History
from .readers.pace import SharedRate
from .readers.serving import Server
from .requests.gateway import OWN_ORDERS
from .requests.journey import Latencies
from .requests.request import COMMAND, QUERY, UNSTAMPED, RequestKind
from .requests.router import Requests
from .requests.status import EtcdStatus, MemberAddress, NodeStatus, Topology
from .requests.task_calls import Calls
from .state import MemberState
from .state_machine.actions import Actions
from .state_machine.applier import Applier
from .state_machine.service import kind_of, rules_of
from .state_machine.snapshots import Snapshots
from .state_machine.tables_watch import TablesWatch
from .state_machine.witness import check_role
from .store_opening import check_arguments, check_service, open_store, service_of
from .upkeep.access import Access, open_access
from .upkeep.audit import open_audit, writing
from .upkeep.disk_space import DiskSpaceWatch
from .upkeep.exposure import check_exposure
from .upkeep.repair import Repair
from .voter import Voter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from random import Random

    from ..storage import ExecutorFactory, Store, Write
    from ..transport import Network, NewLeadershipTerm, PeerSecurity
    from .config.config import NodeConfig
    from .election.transition import Transition
    from .protocol.log_matching import WayToJoin
    from .protocol.membership import Membership, Seat
    from .requests.request import Request, Stamp
    from .state_machine.service import Service

CLOSE_GRACE_SECONDS = 1.0
"""How long a member that stops waits for its writes in flight, and for replies on their way out.
Shorter: more clients of a slow disk or network get no reply. Longer: a stop takes longer."""


class Member:
    """One member of a cluster; made and run by :func:`open_member`.

    It is the handler of its links and the gateway of its clients. Its parts are public for tests
    and for the simulator, and only for these.
    """

    etcd_status: Callable[[], EtcdStatus | None]  # the port for clients of etcd sets it

    def __init__(
        self,
        config: NodeConfig,
        *,
        store: Store,
        service: Service,
        access: Access,
        rng: Random,
        clock_ms: Callable[[], int],
        executor: ExecutorFactory[Write],
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        check_interpreter()
        check_service(config, store, service)
        store.opened_with(kind_of(service))
        self.config, self.store = config, store
        self.incarnation = rng.getrandbits(64)
        self.state, self.access = MemberState(config, store), access
        state = self.state
        links = self.links = self._links(access, rng, kind_of(service))
        self.clocks = Clocks(clock_ms, state)
        self.repair = Repair(state, store, links)
        self.applier = Applier(store, service, self.repair.read)
        lane = executor(_write_nothing, delivered=nothing)  # not the log's thread: see H17
        self.snapshots = Snapshots(
            config, store, self.applier, lane, configurations=state.configurations, free=free
        )
        self.history = History(store, self.applier, self.snapshots, self.repair.read)
        self.actions = Actions(store, self.snapshots, self._on_applied_membership)
        self.voter = Voter(state, store, links, self.clocks)
        self.log_guard = LogGuard(state, store, self.applier)
        self.catchup_rate = CatchupRate(self.applier, config.limits.catchup_bytes_per_second)
        self.founders = Founders(state, store, links)
        self.requests = Requests(state, links, rng, self.founders.take, rules_of(service))
        self._rng = rng
        self._terms = TermBound(config.member_id, lambda: state.known_term)
        self._tables = TablesWatch(state)
        self._ask = Calls(self.submit).ask
        # The watch has a lane of its own: reading a whole snapshot holds up the other one.
        looks = executor(_write_nothing, delivered=nothing)
        self.disk_space = DiskSpaceWatch(state, store, free, looks)
        self._install, self._server = self._snapshot_install(), self._make_server()
        self.election = self._elections()
        self._since, self._applied = trio.current_time(), trio.Event()
        self.reporter, self.messages = Reporter(self, clock_ms), MessageRecorder(links.tap)
        self._shown: tuple[Membership, tuple[object, ...], Topology] | None = None
        self.removal, self.etcd_status = Removal(store), _no_port
        self._twice = TwoProcesses(state.member_id, state.timeouts.leader_heartbeat_timeout)
        # Last, because they call the parts made above.
        store.on_durable, store.on_membership = self._on_durable, self._on_membership

    def __repr__(self) -> str:
        return f"<Member {self.config.member_id} of {self.config.cluster!r}>"

    def _links(self, access: Access, rng: Random, service: str) -> Links:
        """Make the links to the other members; `service` is the kind of the state machine."""
        config = self.config
        return Links(
            cluster=config.cluster,
            member_id=config.member_id,
            incarnation=self.incarnation,
            instance=self.store.identity.instance_id,
            bind=Address(config.member_listen_host, config.own.member_port),
            advertised=Address(config.own.host, config.own.member_port),
            peers=self.state.configurations.addresses(self.state.membership),
            network=access.network,
            handler=self,
            rng=rng,
            history=self.store.voting_status.history,
            service=service,
            security=access.security,
        )

    def _make_server(self) -> Server:
        """Make what serves our log and our snapshots to others."""
        pace = SharedRate(self.config.limits.reader_bytes_per_second)
        return Server(
            self.state,
            self.store,
            self.applier,
            self.snapshots,
            self.repair,
            pace,
            self.access.security.authoriser,
            self._send_events,
        )

    def _snapshot_install(self) -> SnapshotInstall:
        """Make what fetches snapshots from other members."""
        return SnapshotInstall(
            state=self.state,
            store=self.store,
            links=self.links,
            applier=self.applier,
            snapshots=self.snapshots,
            voter=self.voter,
        )

    def _elections(self) -> ElectionContext:
        """Make what runs the elections."""
        return ElectionContext(
            state=self.state,
            store=self.store,
            links=self.links,
            applier=self.applier,
            voter=self.voter,
            clocks=self.clocks,
            log_guard=self.log_guard,
            requests=self.requests,
            preconditions=(
                # Until all that the last role submitted is durable: then the end of our log is
                # certain.
                self.store.settled,
                # A snapshot that is being installed would replace the log.
                self.snapshots.idle,
                self.disk_space.available,
                self.founders.found,
                self._install.reload,
            ),
            lead=self._lead,
            follow=self._follow,
            rng=self._rng,
        )

    def _lead(self, term: int) -> Leadership:
        """Make the role of the leader of a term."""
        return Leadership(
            term,
            # Names the live log of this one leadership, so that no follower joins that of an
            # earlier one.
            self._rng.getrandbits(31),
            state=self.state,
            store=self.store,
            links=self.links,
            applier=self.applier,
            snapshots=self.snapshots,
            actions=self.actions,
            clocks=self.clocks,
            voter=self.voter,
            read=self.repair.read,
            is_startup=self.election.count == 1,
        )

    def _follow(self, message: NewLeadershipTerm, *, way: WayToJoin) -> Following:
        """Make the role of a follower of the leader that sent a message."""
        # A snapshot may have brought a configuration without its entry.
        self._look_for_our_seat()
        return Following(
            message,
            way=way,
            state=self.state,
            store=self.store,
            links=self.links,
            applier=self.applier,
            snapshots=self.snapshots,
            clocks=self.clocks,
            voter=self.voter,
            log_guard=self.log_guard,
            catchup_rate=self.catchup_rate,
            install=self._install,
        )

    # --- running ----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; started once links listen and the service may apply."""
        async with trio.open_nursery() as outer:
            # In this order, because each task needs the ones before it.
            await outer.start(self.store.run)
            # A crash may have come between the last flush of the service and the vote.
            await self._on_applied_membership()
            await outer.start(self.snapshots.run)
            await outer.start(self.applier.service.run)
            # A nursery of its own: it ends before what it writes to and reads from.
            async with trio.open_nursery() as consensus:
                await consensus.start(self.links.run)
                consensus.start_soon(self.applier.run, self.actions.act)
                consensus.start_soon(self.requests.run)
                consensus.start_soon(self.disk_space.run)
                consensus.start_soon(self.removal.run)
                consensus.start_soon(self._disconnect_removed)
                if self.access.watch is not None:
                    consensus.start_soon(self.access.watch.run, self.links)
                self._tables.watch(consensus)
                self.reporter.run_in(consensus)
                # Last: an election must find links that listen and an applier that runs.
                consensus.start_soon(election.run, self.election)
                task_status.started()

    async def close(self) -> None:
        """Stop in order: requests that were received are answered, for a second at most.

        The member stands in no election from then on; cancel :meth:`run` to end it.
        """
        # Kept, because the role may end during the drain, and `state.role` is another one then.
        role = self.state.role
        # First: if our role ends now for another reason, INIT must not begin an election.
        self.state.closing = True
        # Only in CLOSED: a leader in its election has no entry of its own term to drain.
        if isinstance(role, Leadership) and self.election.current is State.CLOSED:
            # Before the drain: what is in no batch yet has had no effect, and must not get into one
            # now.
            self.requests.cede()
            # Shielded: even if the caller is cancelled by now, clients are owed their replies.
            # Bounded: a quorum may be gone.
            with trio.move_on_after(CLOSE_GRACE_SECONDS, shield=True):
                await role.replication.drain()
            # Followers learn what is committed: their next leader would have to find out anew.
            role.replication.announce_commit()
            # Followers elect at once instead of after a heartbeat timeout, and do not wait for our
            # vote.
            self.links.broadcast(
                LeadershipCession(role.term, role.publication_position, self.config.member_id)
            )
            role.end("closing in order", Cause.LEADER_CLOSED)
            # Requests that cross our farewell on their way are still answered: nothing was done.
            await trio.sleep(self.state.timeouts.leader_heartbeat_interval)
        # What is parked has had no effect. From now on it is refused, not left without an answer.
        self.requests.close()
        with trio.move_on_after(CLOSE_GRACE_SECONDS, shield=True):
            await self.links.flush()

    def observe(self, observer: Callable[[Transition], None]) -> None:
        """Call `observer` with every transition of the election."""
        self.election.observers.append(observer)

    def make_relay(self) -> Relay:
        """Make what watches all members for those who watch this one."""
        return Relay(self.reporter, self.state, self.links, self._rng)

    async def _send_events(self, stream: FrameStream) -> None:
        await send_events(self.reporter, stream)

    def reload_certificates(self) -> None:
        """Look at the files of our certificate now; without one nothing happens."""
        if self.access.watch is not None:
            self.access.watch.look_now()

    # --- the links' handler -----------------------------------------------------------------------

    def admits(self, hello: Hello) -> tuple[HelloStatus, str]:
        """Say whether a member may call us."""
        member, own = hello.member_id, self.config.member_id
        # What is applied is committed, so a removed member stays removed. But a store without a
        # vote may still be at the history from before a restore.
        applied = self.configuration
        if self.state.votes and applied.is_removed(member):
            words = f"member {member} was removed; the configuration is version {applied.version}"
            return HelloStatus.REMOVED, words
        in_force = self.state.membership
        # A voter that an entry drops which is not committed yet is needed if that entry is lost.
        known = {*self.state.configurations.addresses(in_force), *applied.ids}
        # One that is newer than our log knows more than we do. Of the same history, it belongs to
        # us; and a store that joins has no history yet.
        status = self.store.voting_status
        ours = hello.history == status.history if status.history else self._joins
        # The file of a store that joins may be older than all present members, and the
        # configuration in its log of the history from before a restore.
        first = 0 if self._joins else in_force.next_id
        newer = ours and member >= first
        # One that has a history while our store is NEW may show that ours replaces a lost one.
        is_new = status.kind is VotingRight.NEW and hello.purpose is StreamPurpose.CONSENSUS
        begun = is_new and bool(hello.history)
        if member != own and (member in known or newer or begun):
            return HelloStatus.ACCEPTED, ""
        others = ", ".join(map(str, sorted(known - {own})))
        expected = f"expected one of {others}" if others else "this member knows of no other one"
        return HelloStatus.WRONG_MEMBER, f"member {member}, {expected}"

    @property
    def _joins(self) -> bool:
        return self.store.voting_status.kind is VotingRight.RECOVERING

    def on_peers(self) -> None:
        """Note to which members there are links now."""
        self.state.use_peers(self.links.peers)
        self._twice.keep(self.links.peers)

    def on_removed(self, member: int, reason: str) -> None:
        """Note that a member says that we were removed from the cluster."""
        self.removal.heard(member, reason)

    def on_hello(self, member: int, hello: Hello) -> None:
        """Note which store of a member speaks from now on."""
        self._twice.on_hello(hello)
        self.founders.on_hello(hello)
        self.state.versions[member] = hello.protocol_version
        if self.state.use_store(member, hello.instance):
            self.state.role.on_other_store(member)

    def on_message(self, sender: int, message: Message) -> None:
        """Pass a message on: to the requests, to the founders, or to the role that we are in."""
        match message:
            # Not through the role: a request and its reply mean the same in all roles.
            case ForwardRequest():
                self.requests.on_forward_request(sender, message)
            case ForwardReply():
                self.requests.on_forward_reply(sender, message)
            case Founding():
                self.founders.on_message(sender, message)
            case HeartbeatRequest() if not self._may_ask(sender):
                pass
            # One forged frame with a huge term could otherwise use up all terms (`TermBound`).
            case _ if self._terms.allows(sender, message):
                self.state.role.on_message(sender, message)
            case _:
                pass  # its term is too far above ours, see `TermBound`

    def _may_ask(self, sender: int) -> bool:
        """Whether a member may ask for a sign of life."""
        principal = self.links.principal(sender)
        return self.access.security.authoriser.allows(principal, HeartbeatRequest)

    def on_receiving(self, member: int) -> None:
        """Note that a part of a message has come from a member."""
        self.state.role.on_receiving(member)

    def on_link_up(self, member: int) -> None:
        """Note that our link to a member is ready."""
        self.requests.relinked(member)
        self.state.role.on_link_up(member)

    def on_link_lost(self, member: int) -> None:
        """Note that a member's link to us has ended."""
        self._twice.on_link_lost(member)
        self.requests.unlinked(member)
        self.state.role.on_link_lost(member)

    async def on_stream(self, hello: Hello, stream: FrameStream) -> None:
        """Serve a stream: somebody asks us for something, or a catch-up that we asked for comes."""
        role = self.state.role
        if (
            not await self._server.serve(hello, stream)
            and isinstance(role, Following)
            and hello.member_id == role.leader_id
            # A catch-up that was asked for in an earlier term must not be recorded in this one.
            and hello.log_session_id == role.session_id
        ):
            await role.receive_catchup(hello.join_position, stream)

    def _on_membership(self) -> None:
        """Use the configuration that has just come into our log, or that a truncation left."""
        state = self.state
        state.use_configuration()
        self.links.set_peers(state.configurations.addresses(state.membership))
        state.role.on_membership()

    async def _on_applied_membership(self) -> None:
        """A configuration is applied: take the vote that it may give us, and part with others.

        Raises:
            ConfigurationError: it is to have tables, and is a witness by its file.
        """
        # Before the vote. A member that joins has no seat yet when its store is opened.
        check_role(self.config, self.configuration)
        if await become_voter(self.store, self.configuration):
            self.links.set_history(self.store.voting_status.history)
        self._look_for_our_seat()
        self._applied.set()

    def _look_for_our_seat(self) -> None:
        """End, once a task of ours can, if what is applied gives our seat to another store."""
        applied = self.applier.applied_position
        if words := why_lost(self.store, self.state.configurations, applied):
            self.removal.lost(words)

    async def _disconnect_removed(self) -> Never:
        """End the links of members that an applied configuration has removed; until cancelled."""
        while True:
            await self._applied.wait()
            self._applied = trio.Event()
            # An order that came through such a member is answered first, over these links. And the
            # configuration counts as applied only when this action is over.
            await trio.sleep(self.state.timeouts.leader_heartbeat_interval)
            # So is what it had forwarded before: on a slow disk that takes longer, and what is not
            # answered then has an unknown outcome. Bounded: a quorum may be gone.
            with trio.move_on_after(self.state.timeouts.leader_heartbeat_timeout):
                await self.applier.applied(self.store.submitted_position)
                await self.links.flush()
            self.links.judge_anew()

    def _on_durable(self, position: int) -> None:
        # First: it reports or commits, for which clients wait.
        self.state.role.on_durable(position)
        self.disk_space.appended()

    # --- the clients' gateway ---------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request of a client."""
        # A command or a query may find damaged tables. A port would only drop one client for that,
        # but the member has to end, so that it can begin anew with whole ones.
        with self._tables:
            self.requests.submit(request)

    def submit_all(self, requests: list[Request]) -> None:
        """Take the requests that clients have sent in one turn of the event loop."""
        with self._tables:
            self.requests.submit_all(requests)

    def stale_query(self, payload: bytes, flags: int) -> bytes:
        """Answer a query from this member's applied state, however old that is.

        Raises:
            RefusedError: it is a witness, and has none.
        """
        if self.state.witness:
            raise RefusedError(self._elsewhere)
        with self._tables:
            return self.applier.service.query(payload, flags)

    @property
    def _elsewhere(self) -> str:
        """Where a client of a witness finds data, in words."""
        others = (each for each in self.topology.members if not each.witness)
        places = ", ".join(f"{each.host}:{each.client_port or each.tls_port}" for each in others)
        return f"member {self.config.member_id} is a witness and has no data: ask {places}"

    # These two return a coroutine and are none themselves: one more frame of a coroutine would cost
    # each call twice, when it begins and when it resumes.

    def command(
        self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED, principal: int = 0
    ) -> Coroutine[Any, Any, bytes]:
        """Record, replicate and apply a command, with its stamp and principal; return the reply.

        Raises:
            NoLeaderError: it was not sent, and has no effect.
            UnknownOutcomeError: it was sent, and may or may not take effect. A call that is
                cancelled has an unknown outcome too, unless it was still parked.
        """
        return self._ask(COMMAND, payload, flags, stamp, principal)

    def query(self, payload: bytes, flags: int = 0) -> Coroutine[Any, Any, bytes]:
        """Answer a query linearizably: it sees every write acknowledged before it was called.

        Raises:
            NoLeaderError: no leader answered in time.
        """
        return self._ask(QUERY, payload, flags)

    def confirm(self) -> Coroutine[Any, Any, bytes]:
        """Find out whether a linearizable read would succeed, without asking the state machine.

        Raises:
            NoLeaderError: no leader answered in time.
        """
        return self._ask(RequestKind.CONFIRM, b"", 0)

    async def control(self, words: str) -> str:
        """Send the leader an operator's request, such as ``transfer MEMBER [even-if-behind]``.

        ``trace ...`` is for this member, and is not sent.

        Returns:
            What was done, in words.

        Raises:
            RefusedError: it can't be done now; nothing has changed.
            NoLeaderError: no leader was found in time.
            UnknownOutcomeError: the leader was lost before it answered.
        """
        audit = self.access.audit
        audit.note("operator", words=words)
        try:
            if words.split()[:1] == [OWN_ORDERS]:
                answer = self.own_order(words.encode())
                await trio.lowlevel.checkpoint()
            else:
                answer = await self._ask(RequestKind.CONTROL, words.encode(), 0)
        except RequestError as error:
            audit.note("operator_done", words=words, outcome=str(error))
            raise
        audit.note("operator_done", words=words, outcome="ok")
        return answer.decode()

    def own_order(self, words: bytes) -> bytes:
        """Do what an operator asks of this member alone; return what was done, in words.

        Raises:
            RefusedError: it is nothing that a member does by itself, or can't be done now.
        """
        return self.messages.order_untrusted(words.decode(errors="replace")).encode()

    @property
    def configuration(self) -> Membership:
        """The configuration that is applied here: no new leader can take it back."""
        return self.state.configurations.at(self.applier.applied_position)

    @property
    def topology(self) -> Topology:
        """The members and the last known leader."""
        membership, leader = self.configuration, self.state.leader_id
        seat = None if leader is None else membership.seat(leader)
        if seat is not None and seat.role is MemberRole.WITNESS:
            leader = None
        # Asked for with each command of some clients, so it is made only when something is new.
        state = leader, self.state.leadership_term, self.requests.leads, self.state.witness
        if self._shown is None or self._shown[0] is not membership or self._shown[1] != state:
            self._shown = membership, state, self._topology(membership, leader)
        return self._shown[2]

    def _topology(self, membership: Membership, leader: int | None) -> Topology:
        hidden = {seat.member_id for seat in membership.joining} - {leader}
        return Topology(
            members=tuple(
                _address(seat, membership)
                for seat in membership.seats
                if seat.member_id not in hidden or seat.member_id == self.config.member_id
            ),
            leader_id=leader,
            term=self.state.leadership_term,
            own_id=self.config.member_id,
            is_leader=self.requests.leads,
            version=membership.version,
            quorum=membership.quorums.smallest,
            witness=self.state.witness,
        )

    def now_ms(self) -> int:
        """The log's time now, as far as this member knows; never before that of its log."""
        role = self.state.role
        if isinstance(role, Leadership):
            return role.now_ms()
        # Our clock may be behind our own log, and log time never goes back.
        return max(self.clocks.log_ms(), self.store.last_timestamp_ms)

    def recent(self, since: int) -> dict[str, Any]:
        """Return rates, quantiles and the last steps of elections, see `Reporter.recent`."""
        return self.reporter.recent(since)

    def latencies(self) -> Latencies:
        """Return how long things took here, and which batches took long."""
        counts = self.state.counts
        return Latencies(
            tuple(self.applier.slow.kept),
            {
                "disk-sync": self.store.syncs,
                "commit": counts.commit_duration,
                "apply": self.applier.apply_duration,
                "loop-delay": counts.loop_delay,
            },
        )

    def status(self) -> NodeStatus:
        """Describe this member as it is now."""
        status = Status(
            self.incarnation,
            self._since,
            self.state,
            self.store,
            self.links,
            self.applier,
            self.snapshots,
            self.clocks,
            self.founders,
            self.election,
            self.requests,
            self.access,
            self.etcd_status(),
        )
        return status.now(self.now_ms())


def _no_port() -> None:
    """A member without a port for clients of etcd has nothing to say of it."""


def _address(seat: Seat, membership: Membership) -> MemberAddress:
    return MemberAddress(
        seat.member_id,
        seat.host,
        seat.client_port,
        seat.member_port,
        not membership.has_vote(seat.member_id),
        seat.redirect_port,
        seat.role is MemberRole.WITNESS,
        seat.tls_port,
    )


def _write_nothing(_group: Sequence[Write]) -> None:
    """Write nothing: this executor is only used to read."""


@asynccontextmanager
async def _running(member: Member, *, live: bool) -> AsyncGenerator[None, None]:
    """Run a member for the length of the block, and close it in order at the end."""
    async with trio.open_nursery() as nursery:
        await nursery.start(member.run)
        if live:
            patience = member.state.timeouts.leader_heartbeat_timeout
            nursery.start_soon(watch_loop, member.state.counts, patience)
        try:
            yield
            await member.close()
        finally:
            # Also after an error in the block, when nothing is closed in order.
            nursery.cancel_scope.cancel()


async def _access_of(
    config: NodeConfig,
    network: Network | None,
    security: PeerSecurity | None,
    clock_ms: Callable[[], int],
    rng: Random,
) -> Access:
    """Return how a member reaches other ones; see `open_member`."""
    if network is None and security is None:
        await check_exposure(config)
    audit = open_audit(config, clock_ms)
    access = open_access(config, network or TcpNetwork(), clock_ms, rng, audit)
    if security is None:
        return access
    return attrs.evolve(access, security=attrs.evolve(security, audit=audit))


def _flight_of(member: Member) -> AbstractAsyncContextManager[None]:
    directory = member.state.config.directory
    return recording_flight(member.reporter, directory, member.messages, member.disk_space.is_low)


@one_error
@asynccontextmanager
async def open_member(
    config: NodeConfig,
    service: Service,
    *,
    rng: Random,
    clock_ms: Callable[[], int],
    network: Network | None = None,
    security: PeerSecurity | None = None,
    executor: ExecutorFactory[Write] = ThreadExecutor,
    free: Callable[[Path], int] = free_bytes,
    live: bool = False,
) -> AsyncGenerator[Member, None]:
    """Run a member with a state machine of one's own for the length of the block.

    Args:
        config: of the member.
        service: the replicated state machine; a witness runs none in its place.
        rng: the only source of randomness.
        clock_ms: milliseconds since the epoch; the log's time follows it while this member leads.
        network: TCP unless given. TLS is put over either, as `config` says.
        security: judges others, and proves who we are; by default as `config` says.
        executor: writes to disk on a thread unless given.
        free: returns the bytes that are free on a disk; the system's by default.
        live: keep the flight recorder, and watch how late the event loop is; not in virtual time.

    Raises:
        ConfigurationError: an argument, a certificate or a key is wrong, or the port is too open.
        StorageError: the store is another member's, is in use, or is damaged.
        RemovedError: the member was removed from its cluster.
        OSError: its address can't be bound.
    """
    check_arguments(config, service)
    access = await _access_of(config, network, security, clock_ms, rng)
    store = open_store(config, rng, executor)
    # Closed last: the member's tasks write to it until they have ended.
    with closing(store):
        member = Member(
            config,
            store=store,
            service=service_of(config, store, service),
            access=access,
            rng=rng,
            clock_ms=clock_ms,
            executor=executor,
            free=free,
        )
        flight = _flight_of(member) if live else nullcontext()
        async with writing(access.audit), flight, _running(member, live=live):
            yield member
