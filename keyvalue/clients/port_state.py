"""What all connections of a client port share: gateway, limits, figures, and the memory budgets.

**Turns.** The port works in turns (:mod:`..port.listener`). From :meth:`PortState.begin_turn` to
:meth:`PortState.end_turn` the requests of all clients gather, and plain commands are joined
(:mod:`.joined`). The gateway then takes all of them in one call, so a turn becomes one batch of the
log.

**Budgets.** Each connection bounds what one client may hold (:mod:`..port.connection`). Thousands
of clients may hold that much at the same time, so this file also bounds the sums:

- unfinished input: beyond `all_input_bytes` the client that holds most is refused;
- unread replies: beyond `all_output_bytes` the client that has not read for longest is closed.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import attrs
import trio

from ...errors import OversizedRequestError
from ...log_events import log_event
from ...node.config.config import Redirect
from ...node.requests.gateway import Gateway
from ...node.requests.request import COMMAND, CONTROL, QUERY, Request, still_wanted
from ..limits import RUN_BYTES
from ..slots.signposts import Signposts
from .client_state import ClientState
from .counters import Counters
from .joined import JoinedClient, JoinedRequest
from .port_access import PortAccess
from .strangers import Strangers

__all__ = [
    "KEEPALIVE_SECONDS",
    "ChangeWatches",
    "ClientConnection",
    "ClientPortLimits",
    "Outlet",
    "PortState",
]

_MIB: Final = 1024 * 1024

KEEPALIVE_SECONDS: Final = 300
"""How long a connection stays open after the client's machine has vanished; CONFIG GET
tcp-keepalive shows it. Shorter, and a network failure of minutes ends connections; longer, and
dead ones hold descriptors and parked requests."""

ONE_READ_BYTES: Final = 128 * 1024
"""A client that holds no more input than this is never refused: one read may have brought it.
Smaller, and a client could be refused for its first bytes; larger, and many small holders would
exceed the budget without anybody to refuse."""

_log = logging.getLogger("quorate.keyvalue")


@attrs.frozen
class ClientPortLimits:
    """What clients may take of a member.

    Args:
        max_clients: open connections; one more is refused.
        request_bytes: the largest command, and the largest body of a transaction.
        input_bytes: read ahead from a client while its request is under way. It may be exceeded
            by one read; then reading pauses.
        all_input_bytes: unfinished input of all clients together. Beyond it, the client that holds
            most is refused, unless it holds no more than one read.
        output_bytes: replies that a client has not read. It may be exceeded by one reply; then the
            client's commands wait.
        all_output_bytes: unread replies of all clients together. From half of it on, a client's
            commands wait while any reply to it is unread. Beyond it, the client that has read
            nothing for longest is closed.
    """

    max_clients: int = 4096
    request_bytes: int = 32 * _MIB
    input_bytes: int = _MIB // 2
    all_input_bytes: int = 256 * _MIB
    output_bytes: int = 64 * _MIB
    all_output_bytes: int = 512 * _MIB


class ClientConnection(Protocol):
    """A connection, as the commands of other connections see it."""

    client: ClientState
    fileno: int
    read_at: float
    """When the client was last seen to read, if replies wait (trio's clock)."""

    @property
    def waiting_bytes(self) -> tuple[int, int]:
        """Bytes received and not handled yet; bytes of replies not sent yet."""
        ...

    @property
    def unfinished_bytes(self) -> int:
        """About how much memory `refuse` would free."""
        ...

    def refuse(self, error: OversizedRequestError) -> None:
        """Give up the unfinished input, reply with the error, and end the connection in order."""
        ...

    def doubt(self) -> None:
        """The rules have changed: check the present request again, unless it was sent already."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether the client has been sent all that there was for it."""
        ...

    def push(self, data: bytes) -> None:
        """Send what is no reply, behind the replies so far."""
        ...

    def close(self) -> None:
        """End the connection at once; a parked request is withdrawn."""
        ...


class ChangeWatches(Protocol):
    """Serves QUORATE.WATCH."""

    def __len__(self) -> int:
        """How many watches there are."""
        ...

    def begin(
        self,
        connection: ClientConnection,
        arguments: Sequence[bytes],
        after: int,
        done: Callable[[bytes], None],
    ) -> None:
        """Begin a watch; `done` gets the reply later, and then pushes follow.

        Args:
            connection: of the client.
            arguments: the whole command, which its user may run.
            after: the log position; -1 for the present one.
            done: called once.
        """
        ...


class Outlet(JoinedClient, Protocol):
    """A connection, as its conversation sees it."""

    congested: bool
    """Too many replies wait, so no more commands are to be executed."""

    def deliver(self) -> None:
        """Take the gathered replies; afterwards the conversation waits, or is closing.

        Called also when less input is held than before.
        """
        ...


@attrs.define(eq=False)
class PortState:
    """What all connections of a client port share."""

    gateway: Gateway
    limits: ClientPortLimits
    host: str = ""
    port: int = 0
    redirect_port: int | None = None
    """Where cluster clients are served; None for no such port."""
    tls_port: int = 0
    """Where clients with TLS are served; 0 for no such port."""
    protected: bool = False
    """Clients of other machines must be users."""
    redirect: Redirect = "auto"
    """Which clients are redirected to the leader."""
    signposts: Signposts | None = None
    """Where the keys of other partitions are; None for a cluster without partitions."""
    access: PortAccess = attrs.field(factory=PortAccess)
    """Users, logins and denials."""
    now: float = 0.0
    """When the present turn began (trio's clock, seconds)."""
    counters: Counters = attrs.field(factory=Counters)
    slowlog_from: int = 0
    """Number of the first slow batch that SLOWLOG shows; those before were reset."""
    latency_from: dict[str, int] = attrs.field(factory=dict[str, int])
    """Likewise for each event of LATENCY."""
    unfinished: deque[Callable[[], None]] = attrs.field(factory=deque[Callable[[], None]])
    """Conversations that have paused; each is called once in a later turn."""
    parked: set[Callable[[], None]] = attrs.field(factory=set[Callable[[], None]])
    """Ends the wait for a frozen slot of each conversation that has one."""
    wake: Callable[[], None] = attrs.field(default=lambda: None)
    """Makes a turn begin."""
    clients: dict[int, ClientConnection] = attrs.field(factory=dict[int, ClientConnection])
    """By client id, in the order in which they connected."""

    gathered: list[Request] | None = None
    """The requests of this turn, for the gateway; None between turns."""
    joining: dict[int, JoinedRequest] = attrs.field(factory=dict[int, JoinedRequest])
    """The joined requests of this turn that have room, by principal, flags and kind."""
    run_bytes: int = attrs.field(init=False)
    """The longest run of several commands that goes as one request."""

    watches: ChangeWatches | None = None
    """Serves QUORATE.WATCH; None for a port without it."""
    strangers: Strangers = attrs.field(factory=Strangers)
    """Connections that have to log in first."""
    unread_bytes: int = 0
    """Replies that all clients together have not read."""
    unfinished_bytes: int = 0
    """Input of all clients together that is not done: `conversation.unfinished_input`."""

    def __attrs_post_init__(self) -> None:
        """Derive what follows from the limits."""
        # A run must also fit a request of this port.
        self.run_bytes = min(RUN_BYTES, self.limits.request_bytes)
        if self.signposts is not None:
            self.signposts.ownership.listen(self.wake_parked)
        self.access.users.listen(self._revise_sessions)

    def admit(self, client: ClientState, *, at_redirect_port: bool) -> None:
        """Decide by its port, before it sends anything, whether a client is cluster-aware."""
        # The port is the only sign of a cluster client: see `cluster_view`.
        always = self.redirect == "always"
        client.began_aware = always or (at_redirect_port and self.redirect == "auto")
        client.cluster_aware = client.began_aware
        self.access.begin(client)

    def _revise_sessions(self) -> None:
        """Apply a change of users to all sessions."""
        # What they may do changes now, before the change is answered. Sockets are closed in the
        # next turn: we are called while the log is applied.
        connections = [*self.clients.values()]
        ended = self.access.revise(connections)
        for connection in connections:
            connection.doubt()
            self.count_stranger(connection)
        if ended:
            self.resume_later(lambda: _close(ended))

    def count_stranger(self, connection: ClientConnection) -> None:
        """Count a connection if it has to log in first."""
        if not connection.client.logged_in:
            most, now = self.limits.max_clients, trio.current_time()
            self.counters.closed_strangers += self.strangers.came(connection, now, most)

    # --- turns

    def begin_turn(self, now: float) -> None:
        """From now on, until the turn ends, requests gather."""
        self.now = now
        self.gathered = []
        # Here as well: a process that stood still runs this before any task whose time is over.
        self.access.forget_if_old(now)

    def end_turn(self) -> None:
        """Submit the gathered requests together, without those whose clients have left."""
        # None first: a result that arrives within `submit_all` may make a new request, which goes
        # to the gateway directly.
        gathered, self.gathered = self.gathered, None
        if gathered:
            for each in self.joining.values():
                # Only now: until the turn ends, more clients may join.
                each.close()
            self.joining.clear()
            # A client that was served early in the turn may have left by now. Its commands are not
            # sent.
            self.gateway.submit_all([*still_wanted(gathered)])

    def join(
        self, client: JoinedClient, flags: int, principal: int, payload: bytes, count: int
    ) -> JoinedRequest:
        """Submit plain commands of a client together with those of other clients of this turn.

        Args:
            client: has sent them.
            flags: of its requests.
            principal: number of its user.
            payload: the commands.
            count: number of SETs, or minus the number of GETs.
        """
        assert self.gathered is not None
        # SETs and GETs go different ways, flags decide the form of replies, and an entry of the log
        # has one principal: one joined request for each combination. An integer as the key is
        # cheaper than a tuple. Flags have 8 bits.
        key, kind = flags << 1, COMMAND
        if count < 0:
            key, kind, count = key + 1, QUERY, -count
        elif principal:  # a read leaves no entry
            key += principal << 9
        request = self.joining.get(key)
        if request is None or not request.add(client, payload, count):
            # Full. It stays among the gathered requests; clients that come later join the next one.
            if request is not None:
                request.close()
            states = self.signposts.ownership.states if self.signposts is not None else None
            request = JoinedRequest(
                kind, flags, self.run_bytes, self.gateway, self.counters, states=states
            )
            request.began = self.now
            request.principal, request.rules = principal, self.access.users.version
            self.joining[key] = request
            self.gathered.append(request)
            request.add(client, payload, count)
        return request

    def submit(self, request: Request) -> None:
        """Submit a request: at the end of the turn, or at once between turns."""
        # An operator's request is parsed where it is submitted and concerns this client alone;
        # it has no place in the batch of the turn.
        if self.gathered is None or request.kind is CONTROL:
            self.gateway.submit(request)
        else:
            self.gathered.append(request)

    def resume_later(self, resume: Callable[[], None]) -> None:
        """Let a conversation go on in a later turn."""
        # One wake-up is enough for all that have paused.
        if not self.unfinished:
            self.wake()
        self.unfinished.append(resume)

    def wake_parked(self) -> None:
        """Slots have changed: let the conversations that wait for some look again."""
        for finish in self.parked:
            self.resume_later(finish)

    # --- budgets

    def close_slowest(self) -> None:
        """Close the client that has read nothing for longest, to bring unread replies down."""
        # One client at a time: closing it frees its replies, and that may be enough.
        # A walk over all clients: it happens only beyond the budget, so no order has to be kept up.
        waiting = [each for each in self.clients.values() if each.waiting_bytes[1]]
        # Of several that stopped reading in one turn, the one with the most unread bytes.
        slowest = min(waiting, key=lambda each: (each.read_at, -each.waiting_bytes[1]))
        self.close_slow(slowest, f"{self.unread_bytes} bytes of replies wait for all clients")

    def close_slow(self, connection: ClientConnection, reason: str) -> None:
        """Close a client that does not read, and log the reason."""
        self.counters.slow_clients += 1
        log_event(
            _log,
            logging.WARNING,
            "client_closed",
            "client %(client)d at %(address)s is closed: %(why)s",
            client=connection.client.client_id,
            address=connection.client.peer,
            why=reason,
            unread_bytes=connection.waiting_bytes[1],
        )
        connection.close()

    def count_input(self, more: int) -> None:
        """Count unfinished input; beyond the budget, refuse the client that holds most.

        Args:
            more: bytes by which it has grown; negative if it has shrunk.
        """
        self.unfinished_bytes += more
        most = self.limits.all_input_bytes
        # Shrinking input must never refuse anybody, not even while the sum is still too large.
        if more <= 0 or self.unfinished_bytes <= most:
            return
        # Refuse the largest holder, not the one that sent last: that would be any small client.
        largest = max(self.clients.values(), key=lambda each: each.unfinished_bytes)
        # Many small holders: refusing any of them would free next to nothing.
        if (size := largest.unfinished_bytes) <= ONE_READ_BYTES:
            return
        self.counters.refused_clients += 1
        log_event(
            _log,
            logging.WARNING,
            "client_refused",
            "client %(client)d at %(address)s is closed: it holds %(unfinished_bytes)d bytes of "
            "unfinished input, of %(limit)d that all clients may hold",
            client=largest.client.client_id,
            address=largest.client.peer,
            unfinished_bytes=size,
            limit=most,
        )
        words = f"unfinished input of all clients takes more than {most} bytes; this connection"
        words += f" held most of it, {size} bytes, and is closed; send less at once"
        largest.refuse(OversizedRequestError(words))


def _close(connections: list[ClientConnection]) -> None:
    for connection in connections:
        connection.close()
