"""A member inside your own trio program.

::

    async with quorate.open_node(config) as node:
        await node.wait_for_leader()
        await node.kv.set("greeting", "hello")

This runs the member, its key-value store and its client port for the length of the block. With a
state machine of your own (``open_node(config, machine)``) there is no client port. The program
uses :meth:`Node.command` and :meth:`Node.query` then, on any member.
"""

from __future__ import annotations

import random
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import trio

from .errors import ConfigurationError, UsageError
from .etcd.backend.upkeep import Upkeep
from .etcd.opening import EtcdServer, make_etcd_server
from .etcd.state.machine import EtcdState
from .keyvalue.access.directory import Directory
from .keyvalue.access.judges import ClientSecurity
from .keyvalue.clients.port_access import PortAccess
from .keyvalue.clients.port_audit import PortAudit
from .keyvalue.port.listener import ClientPort, ClientPortLimits, PortTls
from .keyvalue.programs.client import KeyValue
from .keyvalue.programs.gathering import Gathering
from .keyvalue.programs.session import open_session
from .keyvalue.programs.watch import LocalWatches, WatchSource
from .keyvalue.service import KeyValueService
from .keyvalue.slots.folder import Notice, board_file
from .keyvalue.slots.notices import Notices
from .keyvalue.slots.signposts import Signposts
from .keyvalue.watches.replays import REPLAYS, Replays
from .node import Member, NodeStatus, State, Topology, open_member
from .node.leader.operator import positions_of
from .node.one_error import one_error
from .node.requests.request import UNSTAMPED
from .node.state_machine.witness import WitnessService
from .node.store_opening import check_arguments
from .node.upkeep.exposure import check_client_exposure, check_etcd_exposure
from .storage.log.batch import MAX_PRINCIPAL
from .web.opening import open_guard
from .web.showing import all_families, count_clients, showing

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from .metrics import Family
    from .node import NodeConfig, Service, Transition
    from .node.requests.request import Stamp
    from .transport import PeerSecurity
    from .web.guard import Guard


_MAX_FLAGS: Final = 255

_ELSEWHERE: Final = (
    "this node is a member of a partition, which has some of the keys, and for a time: use "
    "quorate.connect with the client ports of the cluster"
)


class _Member(Protocol):
    """What a node asks of its member."""

    def command(
        self, payload: bytes, flags: int, stamp: Stamp, principal: int
    ) -> Awaitable[bytes]: ...
    def query(self, payload: bytes, flags: int) -> Awaitable[bytes]: ...
    async def control(self, words: str) -> str: ...
    def status(self) -> NodeStatus: ...
    def observe(self, observer: Callable[[Transition], None]) -> None: ...
    def reload_certificates(self) -> None: ...
    @property
    def topology(self) -> Topology: ...


class Node:
    """A running member, as the program that embeds it sees it; :func:`open_node` gives one.

    Attributes:
        client_address: host and port where Redis clients are served, with TLS if there is no other
            port; None for a node with a state machine of your own.
    """

    def __init__(
        self,
        member: _Member,
        terminated: trio.Event,
        kv: KeyValue | str = "this node runs a service of its own, not the key-value store",
        client_address: tuple[str, int] | None = None,
    ) -> None:
        self.client_address = client_address
        self._member = member
        self._terminated = terminated
        self._kv = kv
        self._moved = trio.Event()
        member.observe(self._on_transition)

    def __repr__(self) -> str:
        said = self.status()
        leader = "no leader" if said.leader_id is None else f"leader {said.leader_id}"
        return (
            f"<Node {said.member_id} of {said.cluster!r}: {said.role}, {said.state}, "
            f"term {said.term}, {leader}>"
        )

    @property
    def kv(self) -> KeyValue:
        """The replicated key-value store.

        Raises:
            ConfigurationError: the node was opened with another state machine, or is a member of a
                partition, which has some of the keys only.
        """
        if isinstance(self._kv, KeyValue):
            return self._kv
        raise ConfigurationError(self._kv)

    def session(
        self, *, timeout_s: float = 300.0, patience_s: float = 60.0
    ) -> AbstractAsyncContextManager[KeyValue]:
        """Open the store with writes that are done exactly once, for the length of a block.

        A write is sent again until it is answered; see docs/sessions.md.

        Args:
            timeout_s: how long the session lives without a write, in seconds: 1 to 86,400.
            patience_s: how long a write is sent again, in seconds.

        Raises:
            ConfigurationError: there is no `kv`. Or, as the block begins: one of the two numbers is
                out of range.
        """
        kv = self.kv
        return open_session(
            kv.endpoint, timeout_s=timeout_s, patience_s=patience_s, watches=kv.watches
        )

    async def command(self, payload: bytes, flags: int = 0, *, principal: int = 0) -> bytes:
        """Record a command, replicate it, apply it, and return the reply of the state machine.

        Any member may be asked; one that follows sends the command to the leader.

        Args:
            payload: what the state machine gets.
            flags: one byte that it gets, too.
            principal: a number, for whom the command is; the program says what it means. It is
                recorded with the command (`quorate log dump` shows it), and the state machine gets
                it. Up to 2^32 - 1; 0 for nobody in particular.

        Raises:
            TypeError: the payload is not bytes, the flags are not one byte, or the principal is no
                such number.
            NoLeaderError: the command was not sent, and never takes effect.
            UnknownOutcomeError: it was sent, and may or may not take effect. A call that is
                cancelled has an unknown outcome, too.
            RefusedError: the cluster is suspended.
            OversizedRequestError: the payload is larger than the limit.
        """
        _check_flags(flags)
        _check_principal(principal)
        return await self._member.command(payload, flags, UNSTAMPED, principal)

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        """Answer a query linearizably: it sees every write acknowledged before the call.

        Raises:
            TypeError: as for `command`.
            NoLeaderError: no leader answered in time.
            OversizedRequestError: the payload is larger than the limit.
        """
        _check_flags(flags)
        return await self._member.query(payload, flags)

    def status(self) -> NodeStatus:
        """What this member reports of itself now."""
        return self._member.status()

    @property
    def topology(self) -> Topology:
        """The members and the last known leader."""
        return self._member.topology

    def reload_certificates(self) -> None:
        """Look at the files of the certificate now, not only every five seconds.

        A member without one does nothing. The result is in `status`.
        """
        self._member.reload_certificates()

    def observe(self, observer: Callable[[Transition], None]) -> None:
        """Call `observer` at every transition of this member's elections, from now on."""
        self._member.observe(observer)

    async def wait_for_leader(self) -> int:
        """Wait until this member leads, or follows a leader; return the leader's id.

        Returns at once if it does already. Requests may be sent before: they wait for a leader,
        too, but only for a few seconds. Use ``trio.fail_after`` for a limit.
        """
        while (leader := self._leader()) is None:
            await self._moved.wait()
        await trio.lowlevel.checkpoint()
        return leader

    async def wait(self) -> None:
        """Wait until an operator shuts the whole cluster down (`quorate control shutdown`).

        It does not return while the member runs. A member that fails ends the whole block with its
        error.
        """
        await self._terminated.wait()

    # --- what an operator asks of the leader, through any member

    async def snapshot(self) -> int:
        """Have all members take a snapshot at one position of the log; return that position.

        Returns when the leader's snapshot is written.

        Raises:
            RefusedError: a snapshot is being taken already, or the state machine has none.
            RequestError: see `command`; this holds for all methods below.
        """
        return await self._control_at("snapshot")

    async def transfer(self, member_id: int, *, even_if_behind: bool = False) -> None:
        """Hand the leadership to a member; no acknowledged write is lost.

        Returns when the old leader has stepped down. `wait_for_leader` waits for the new one.

        Args:
            member_id: the next leader; nothing happens if it leads already.
            even_if_behind: do not send it the end of the log first. It fetches that once it is
                elected, and writes pause for longer.

        Raises:
            RefusedError: the member has no vote, does not follow, or did not take over in time.
        """
        await self._control("transfer", member_id, *["even-if-behind"] * even_if_behind)

    async def suspend(self) -> int:
        """Refuse writes on all members until `resume`; return the log position of the change.

        Raises:
            RefusedError: the cluster is suspended already.
        """
        return await self._control_at("suspend")

    async def resume(self) -> int:
        """Take writes again, on all members; return the log position of the change.

        Raises:
            RefusedError: the cluster is not suspended.
        """
        return await self._control_at("resume")

    async def found(self, *, without: Sequence[int]) -> None:
        """Found a new cluster without some members, which join when they start.

        Ask a member that waits for them. The others must be a majority.

        Args:
            without: ids of the members that do not run yet.

        Raises:
            RefusedError: the cluster is founded already, or too few members run.
        """
        await self._control("found", *without)

    async def shutdown(self) -> None:
        """Have all members take a snapshot, and end their `wait`, at one position of the log.

        Raises:
            RefusedError: a snapshot is being taken already, or the state machine has none.
        """
        await self._control("shutdown")

    async def abort(self) -> None:
        """Have all members end their `wait` at one position of the log, without a snapshot."""
        await self._control("abort")

    async def _control(self, *words: object) -> str:
        return await self._member.control(" ".join(map(str, words)))

    async def _control_at(self, verb: str) -> int:
        return positions_of(await self._control(verb))[0]

    def _leader(self) -> int | None:
        """The leader of this member's election, once that is over."""
        said = self._member.status()
        return said.leader_id if said.state == State.CLOSED.name else None

    def _on_transition(self, _transition: Transition) -> None:
        self._moved.set()
        self._moved = trio.Event()


def _check_flags(flags: object) -> None:
    if not (isinstance(flags, int) and 0 <= flags <= _MAX_FLAGS):
        raise TypeError(f"flags = {flags!r:.60}: expected one byte, 0 to {_MAX_FLAGS}")


def _check_principal(principal: object) -> None:
    if not (isinstance(principal, int) and 0 <= principal <= MAX_PRINCIPAL):
        raise TypeError(f"principal = {principal!r:.60}: expected an integer, 0 to {MAX_PRINCIPAL}")


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@one_error
@asynccontextmanager
async def open_node(
    config: NodeConfig,
    service: Service | None = None,
    *,
    security: PeerSecurity | None = None,
    clients: ClientSecurity | None = None,
) -> AsyncGenerator[Node, None]:
    """Run a member for the length of the block; the end of the block stops it in order.

    The block begins once the member listens. There may be no leader yet: see
    :meth:`Node.wait_for_leader`.

    An error that the block raises comes out as itself. A failure of the member cancels the block,
    and comes out as one error, not as a group of groups.

    Args:
        config: the member's configuration.
        service: a state machine of your own, instead of the key-value store; see
            :class:`quorate.StateMachine`. A witness runs neither.
        security: judges members and readers, and proves who we are, in place of what `config` says.
            TLS stays as `config` has it.
        clients: judges the clients of the key-value store, in place of the users' passwords and
            rules. Give the same to all members.

    Raises:
        UsageError: this is no trio program; one on asyncio uses :func:`quorate.connect`.
        ConfigurationError: `config` is not a NodeConfig, `service` is missing methods, a
            certificate or key is wrong, or a port would be open to everybody.
        StorageError: the store is in use, is damaged, or belongs to another member.
        OSError: a host name cannot be resolved, or an address cannot be bound.
        SafetyViolationError: the member stopped, rather than lose data.
        RemovedError: it was removed from its cluster.
    """
    _check_trio()
    check_arguments(config, service)
    # First: a mistake in it is found before anything is opened.
    guard = await open_guard(config) if config.web.port else None
    rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311 - not for secrets
    opening = partial(
        open_member, config, rng=rng, clock_ms=_wall_clock_ms, security=security, live=True
    )
    if service is not None:
        async with opening(service) as member, showing(member, config, guard):
            yield Node(member, member.state.terminated)
        return
    async with _open_key_value(config, opening, clients, guard) as node:
        yield node


def _check_trio() -> None:
    if not trio.lowlevel.in_trio_run():
        raise UsageError(
            "a member runs in trio programs only: start yours with trio.run(main). A program on "
            "asyncio uses quorate.connect, with the client ports of running members"
        )


@asynccontextmanager
async def _open_key_value(
    config: NodeConfig,
    opening: Callable[[Service], AbstractAsyncContextManager[Member]],
    clients: ClientSecurity | None,
    guard: Guard | None,
) -> AsyncGenerator[Node, None]:
    """Run a member with the key-value store, and a port for its clients."""
    clients = clients or ClientSecurity()
    # If the program judges each login, nobody comes in that it did not let in, and the file need
    # not say who may use the port. An authoriser alone lets in everybody.
    judged = clients.authenticator is not None
    protected = not judged and await check_client_exposure(config)
    etcd_protected = await check_etcd_exposure(config)
    store = _key_value_service(config)
    try:
        async with opening(store) as member, trio.open_nursery() as nursery:
            watches = await nursery.start(_watches, member, store)
            _keep_notice(member, config, nursery)
            _keep_history(member, store, nursery)
            port = _client_port(member, config, store, clients, watches, protected=protected)
            address = await nursery.start(port.run)
            etcd = _etcd_server(member, config, store, port, watches, protected=etcd_protected)
            if etcd is not None:
                await nursery.start(etcd.run)
            gathering = Gathering(member, config.limits.max_request_bytes)
            await nursery.start(gathering.run)
            count_clients(member, port, {} if etcd is None else etcd.durations)
            # Outermost: whoever watches sees the stop, too.
            others = list if etcd is None else etcd.families
            async with showing(member, config, guard, port, watches, others=others):
                # Slots of a partition freeze and leave: only clients of the port wait and follow.
                kv = _ELSEWHERE if config.partition.is_one else KeyValue(member, gathering, watches)
                yield Node(member, member.state.terminated, kv, address)
                await _drain(port, etcd)  # first: it needs a member that still answers
                await member.close()
                await port.close()
            nursery.cancel_scope.cancel()
    finally:
        if isinstance(store, KeyValueService):
            store.close()


async def _drain(port: ClientPort, etcd: EtcdServer | None) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.drain)
        if etcd is not None:
            nursery.start_soon(etcd.port.drain)


def _etcd_server(
    member: Member,
    config: NodeConfig,
    store: KeyValueService | WitnessService,
    port: ClientPort,
    watches: LocalWatches | None,
    *,
    protected: bool,
) -> EtcdServer | None:
    """Make the port of etcd's clients; None if the file has none."""
    if not config.etcd.port or not isinstance(store, KeyValueService):
        return None
    assert isinstance(store.keyspace, EtcdState), "made with it"

    def families() -> list[Family]:
        return all_families(member, port, watches, list)

    return make_etcd_server(
        member,
        config,
        store.keyspace,
        access=port.state.access,
        protected=protected,
        families=families,
    )


async def _watches(
    member: Member,
    store: KeyValueService | WitnessService,
    *,
    task_status: trio.TaskStatus[LocalWatches | None],
) -> None:
    """Serve watches of the member's keys, until cancelled; a witness has none."""
    if not isinstance(store, KeyValueService):
        task_status.started(None)
        return
    config = member.config
    make = partial(
        KeyValueService.open,
        cluster=config.cluster,
        member_id=config.member_id,
        partition=config.partition.is_one,
    )
    place = config.directory / REPLAYS
    replays = Replays(member.history, store.changes, place, make, store.ownership)
    async with trio.open_nursery() as nursery:
        await nursery.start(replays.run)
        task_status.started(LocalWatches(store.changes, replays, member, service=store))


def _key_value_service(config: NodeConfig) -> KeyValueService | WitnessService:
    if config.own.witness:
        return WitnessService(KeyValueService.kind)
    service = KeyValueService.open(
        config.directory / "tables",
        cluster=config.cluster,
        member_id=config.member_id,
        partition=config.partition.is_one,
        keyspace=EtcdState,  # also without a port: another member may have one
    )
    service.changes.rest()  # who watches nothing pays nothing
    return service


def _client_port(
    member: Member,
    config: NodeConfig,
    store: KeyValueService | WitnessService,
    clients: ClientSecurity,
    watches: WatchSource | None,
    *,
    protected: bool,
) -> ClientPort:
    """Make the ports of Redis clients: with and without TLS, and the one of cluster clients."""
    limits = ClientPortLimits(
        max_clients=config.limits.max_clients, request_bytes=config.limits.max_request_bytes
    )
    timeout_s = config.timeouts.leader_heartbeat_timeout
    users = store.users if isinstance(store, KeyValueService) else None
    access = PortAccess(
        # The state may be old, so the leader is asked.
        Directory(users, settled=False, authoriser=clients.authoriser),
        spread_s=2 * timeout_s,
        authenticator=clients.authenticator,
        stale_after_s=None if config.security.stale_auth else timeout_s,
        audit=PortAudit(member.access.audit),
    )
    return ClientPort(
        member,
        config.client_listen_host,
        config.own.client_port or None,
        limits,
        redirect_port=config.own.redirect_port or None,
        # No member of a partition has all keys, so each of its clients must follow redirections.
        redirect="always" if config.partition.is_one else config.redirect,
        access=access,
        tls=_tls_of(member, config),
        protected=protected,
        watches=watches,
        signposts=_signposts(member, config, store),
    )


def _signposts(
    member: Member, config: NodeConfig, store: KeyValueService | WitnessService
) -> Signposts | None:
    """Make what knows other partitions; None for a cluster without partitions."""
    machine, partition = config.partition.folder, config.partition.number
    if machine is None or isinstance(store, WitnessService):
        return None

    def reaches(machine_id: int) -> bool:
        # Of a machine without a member nothing is known.
        peers = member.status().peers
        return all(peer.connected for peer in peers if peer.member_id == machine_id)

    machine_id = config.member_id  # members have the ids of their machines
    signposts = Signposts(machine, partition, store.ownership, machine_id=machine_id)
    signposts.reaches = reaches
    # Without partitions it is one of the metadata group, whose state machine sends nobody away.
    # The state machine does not know which port a client came through.
    store.moved = partial(signposts.moved, tls=not config.own.client_port)
    return signposts


def _keep_notice(member: Member, config: NodeConfig, nursery: trio.Nursery) -> None:
    """Note for the other members of this machine who leads, if it has other members."""
    machine = config.partition.folder
    if machine is None:
        return

    def look() -> Notice:
        status = member.status()
        leader = status.leader_id if status.state == State.CLOSED.name else None
        return Notice(leader, status.term)

    notices = Notices(board_file(machine, config.partition.number), look)
    member.observe(notices.look_again)
    nursery.start_soon(notices.run)


def _keep_history(
    member: Member, store: KeyValueService | WitnessService, nursery: trio.Nursery
) -> None:
    """Look after the history of etcd's keys, also without a port for its clients."""
    if isinstance(store, KeyValueService):
        assert isinstance(store.keyspace, EtcdState), "made with it"
        nursery.start_soon(Upkeep(member, store.keyspace).run)


def _tls_of(member: Member, config: NodeConfig) -> PortTls | None:
    """Return TLS for clients; None if the member has no port for it."""
    watch = member.access.watch
    if not config.own.tls_port or watch is None:
        return None

    def context() -> ssl.SSLContext:
        # Asked for with each client: new files are taken into use without a restart.
        found = watch.material.port
        assert found is not None, "the files are loaded with it if there is a tls_port"
        return found

    return PortTls(config.own.tls_port, context, config.cluster, lambda: watch.material.authorities)
