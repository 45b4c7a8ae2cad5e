"""What a member remembers of one client, and what all clients of a port share.

A :class:`Session` is the part of a connection that commands can see and change: its name, its
protocol, whether it is in a transaction. The sockets are in :mod:`.connection`. A
:class:`PortState` is what the answers of connection commands may need besides: the gateway into
the member, the other clients, figures.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import attrs

from ...errors import OversizedRequestError
from ...node.config.config import Redirect
from ...node.requests.gateway import Gateway
from ...node.requests.request import COMMAND, CONTROL, QUERY, Request, still_wanted
from ..state.service import RESP3
from .joined import Coalesced, Sender
from .routes import RUN_BYTES
from .transaction import Transaction
from .watching import Watched

__all__ = [
    "LOUD",
    "OFF",
    "SKIP_NEXT",
    "Client",
    "ClientPortLimits",
    "Counters",
    "Outlet",
    "PortState",
    "Replies",
    "Session",
]

_MIB: Final = 1024 * 1024

KEEPALIVE_SECONDS: Final = 300
"""How long the connection of a client stays whose machine is gone; CONFIG GET tcp-keepalive."""

ONE_READ_BYTES: Final = 128 * 1024
"""A client that holds no more input is not refused: it may just have come, in one read."""
LOUD: Final = 0
"""All replies are sent (CLIENT REPLY ON)."""
SKIP_NEXT: Final = 1
"""The reply to the next command is not."""
SKIPPING: Final = 2
"""That to the present command is not."""
OFF: Final = 3
"""None is."""

_log = logging.getLogger("quorate.keyvalue")


@attrs.frozen
class ClientPortLimits:
    """What clients may take of a member.

    Args:
        max_clients: open connections; one more is refused.
        request_bytes: the largest command, and the largest body of a transaction.
        input_bytes: read ahead from a client while a request of its is under way, give or take
            one read; then the client has to wait.
        all_input_bytes: input of all clients together that is not done. Beyond it, the one that
            holds most of it is refused, unless that is no more than one read.
        output_bytes: replies that a client has not read; beyond that, give or take one reply,
            its commands are not done.
        all_output_bytes: replies that all clients together have not read. From half of that on
            nothing is done for a client while any reply to it waits. Beyond it, the one that has
            read nothing for longest is closed.
    """

    max_clients: int = 4096
    request_bytes: int = 32 * _MIB
    input_bytes: int = _MIB // 2
    all_input_bytes: int = 256 * _MIB
    output_bytes: int = 64 * _MIB
    all_output_bytes: int = 512 * _MIB


@attrs.define(eq=False)
class Counters:
    """Figures since the start, or since CONFIG RESETSTAT."""

    connections: int = 0
    refused_connections: int = 0
    commands: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    protocol_errors: int = 0
    slow_clients: int = 0
    refused_clients: int = 0
    redirections: int = 0


@attrs.define(eq=False)
class Session:
    """One client, as commands see it. Times are trio's, in seconds."""

    client_id: int
    peer: str
    local: str
    created_at: float
    seen_at: float
    name: bytes = b""
    library: bytes = b""
    library_version: bytes = b""
    last_command: bytes = b""
    flags: int = 0
    """Of every request: :data:`.service.RESP3` or 0."""
    cluster_aware: bool = False
    """It takes MOVED for an answer: by its port, or it asked for the topology or sent READONLY."""
    began_aware: bool = False
    """It was so from the beginning, by the port that it connected to."""
    read_only: bool = False
    """READONLY: a follower answers its reads, from its own state."""
    no_evict: bool = False
    no_touch: bool = False
    quiet: int = LOUD
    """What CLIENT REPLY has said of its replies."""
    closing: bool = False
    """Its last reply is given; the connection ends once that is sent."""
    transaction: Transaction | None = None
    watched: Watched = attrs.field(factory=Watched)

    @property
    def resp3(self) -> bool:
        """Whether it speaks RESP3."""
        return bool(self.flags & RESP3)

    def skips(self) -> bool:
        """Begin a command; return whether its reply is to be skipped, and no other one."""
        if self.quiet != OFF:
            self.quiet = SKIPPING if self.quiet == SKIP_NEXT else LOUD
        return self.quiet == SKIPPING

    def reset(self) -> None:
        """Go back to how it began (RESET)."""
        self.name = b""
        self.flags = 0
        self.cluster_aware = self.began_aware
        self.read_only = self.no_evict = self.no_touch = False
        self.quiet = LOUD
        self.transaction = None
        self.watched = Watched()


class Replies(list[bytes]):
    """The replies that a client is to be sent next; none while it wants none."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def append(self, reply: bytes) -> None:
        """Add a reply, or skip it."""
        if self._session.quiet < SKIPPING:
            super().append(reply)


class Client(Protocol):
    """A connection, as other connections' commands see it."""

    session: Session
    fileno: int
    read_at: float
    """When it was last seen to read, if replies wait."""

    @property
    def waiting_bytes(self) -> tuple[int, int]:
        """Bytes received and not handled yet, and replies not sent yet."""
        ...

    @property
    def unfinished_bytes(self) -> int:
        """About what the input takes that could be given up."""
        ...

    def refuse(self, error: OversizedRequestError) -> None:
        """Give up the unfinished input; then comes the error, and the end in order."""
        ...

    def close(self) -> None:
        """End it; its parked request is withdrawn."""
        ...


class Outlet(Sender, Protocol):
    """A connection, as its conversation sees it."""

    congested: bool
    """So many replies wait that no more commands are to be done."""

    def deliver(self) -> None:
        """Take the replies: there is nothing to do but wait, or `session.closing` was set.

        Called also when less is held than before.
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
    redirect: Redirect = "auto"
    """Which clients are sent to the leader."""
    now: float = 0.0
    """When the present turn of the event loop began (trio's clock)."""
    counters: Counters = attrs.field(factory=Counters)
    unfinished: deque[Callable[[], None]] = attrs.field(factory=deque[Callable[[], None]])
    """Conversations that paused; each is called once in a later turn."""
    wake: Callable[[], None] = attrs.field(default=lambda: None)
    """Makes a turn begin."""
    clients: dict[int, Client] = attrs.field(factory=dict[int, Client])
    """By client id, in the order in which they came."""

    gathered: list[Request] | None = None
    """What the clients have sent in this turn, for the gateway; None between turns."""
    unread_bytes: int = 0
    """Replies that all clients together have not read."""

    unfinished_bytes: int = 0
    """Input of all clients together that is not done; see :mod:`.unfinished`."""
    most_waiting_bytes: int = 0
    """The most that these two came to, about, since somebody looked."""

    coalesced: dict[int, Coalesced] = attrs.field(factory=dict[int, Coalesced])
    """What takes more of this turn: by flags, and whether they are reads."""
    run_bytes: int = attrs.field(init=False)
    """The most of a run of commands that goes as one request."""

    def __attrs_post_init__(self) -> None:
        """Derive what follows from the limits."""
        self.run_bytes = min(RUN_BYTES, self.limits.request_bytes)

    def admit(self, session: Session, *, at_redirect_port: bool) -> None:
        """Decide by its port, before it says anything, whether a client takes MOVED."""
        always = self.redirect == "always"
        session.began_aware = always or (at_redirect_port and self.redirect == "auto")
        session.cluster_aware = session.began_aware

    def begin_turn(self, now: float) -> None:
        """From now on, until the turn ends, requests gather."""
        self.now = now
        self.gathered = []

    def end_turn(self) -> None:
        """Submit together what has gathered, but for those whose clients have gone already."""
        gathered, self.gathered = self.gathered, None
        if gathered:
            for each in self.coalesced.values():
                each.close()
            self.coalesced.clear()
            self.gateway.submit_all([*still_wanted(gathered)])

    def coalesce(self, sender: Sender, flags: int, payload: bytes, count: int) -> Coalesced:
        """Submit plain commands of a client together with others of this turn.

        Args:
            sender: has sent them.
            flags: of its requests.
            payload: the commands.
            count: of SETs, or minus that of GETs.
        """
        assert self.gathered is not None
        key, kind = flags << 1, COMMAND
        if count < 0:
            key, kind, count = key + 1, QUERY, -count
        request = self.coalesced.get(key)
        if request is None or not request.add(sender, payload, count):
            if request is not None:
                request.close()
            self.coalesced[key] = request = Coalesced(kind, flags, self)
            self.gathered.append(request)
            request.add(sender, payload, count)
        return request

    def submit(self, request: Request) -> None:
        """Submit a request, at the end of the turn if there is one and it is a read or a write.

        What an operator asks is taken apart where it is submitted, for this client alone.
        """
        if self.gathered is None or request.kind is CONTROL:
            self.gateway.submit(request)
        else:
            self.gathered.append(request)

    def close_slowest(self) -> None:
        """Close the client that has read nothing for longest: all have left too much unread."""
        waiting = [client for client in self.clients.values() if client.waiting_bytes[1]]
        slowest = min(waiting, key=lambda client: (client.read_at, -client.waiting_bytes[1]))
        self.close_slow(slowest, f"{self.unread_bytes} bytes of replies wait for all clients")

    def close_slow(self, client: Client, reason: str) -> None:
        """Close a client that does not read, for such a reason."""
        self.counters.slow_clients += 1
        _log.warning(
            "client_closed client=%d address=%s unread_bytes=%d reason=%r",
            client.session.client_id,
            client.session.peer,
            client.waiting_bytes[1],
            reason,
        )
        client.close()

    def count_input(self, more: int) -> None:
        """So much more input is not done, or less; refuse the client that holds most if need be.

        Also to be called when more replies wait.
        """
        self.unfinished_bytes += more
        waiting = self.unfinished_bytes + self.unread_bytes
        self.most_waiting_bytes = max(self.most_waiting_bytes, waiting)
        most = self.limits.all_input_bytes
        if more <= 0 or self.unfinished_bytes <= most:
            return
        largest = max(self.clients.values(), key=lambda client: client.unfinished_bytes)
        if (size := largest.unfinished_bytes) <= ONE_READ_BYTES:
            return
        self.counters.refused_clients += 1
        _log.warning(
            "client_refused client=%d address=%s unfinished_bytes=%d limit_of_all=%d",
            largest.session.client_id,
            largest.session.peer,
            size,
            most,
        )
        words = f"unfinished input of all clients takes more than {most} bytes; this connection"
        words += f" held most of it, {size} bytes, and is closed; send less at once"
        largest.refuse(OversizedRequestError(words))

    def resume_later(self, resume: Callable[[], None]) -> None:
        """Let a conversation go on in a later turn."""
        if not self.unfinished:
            self.wake()
        self.unfinished.append(resume)
