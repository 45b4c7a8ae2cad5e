"""The door through which clients reach the replicated state machine: requests, and who leads.

A request is a plain object with a callback, not a task: a member handles tens of thousands of
them a second. What becomes of one:

- it never left this member (no leader in time): :class:`~quorate.errors.NoLeaderError`;
- it was appended or forwarded and then lost sight of:
  :class:`~quorate.errors.UnknownOutcomeError`;
- it was committed and applied, or read: its reply.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ...errors import RequestError


Stamp: TypeAlias = tuple[int, int]
"""Client session and sequence number of a command."""

UNSTAMPED: Final[Stamp] = (0, 0)
"""Of one that belongs to no session."""


class RequestKind(enum.IntEnum):
    """Where a request goes: into the log, to the applied state, or to the leader itself."""

    COMMAND = 0
    QUERY = 1
    CONTROL = 2


COMMAND: Final = RequestKind.COMMAND
QUERY: Final = RequestKind.QUERY
CONTROL: Final = RequestKind.CONTROL
"""Kinds, for where each request is looked at: members of an enumeration are slow to get at."""


class Request:
    """One command or query on its way.

    Args:
        kind: command (recorded, replicated, applied), query (linearizable read) or control (of
            an operator, see :mod:`.control`).
        payload: the bytes for the service.
        flags: one byte of the service's own.
        done: called at most once, on the trio thread, with the reply or the error. It must
            neither block nor raise.

    Attributes:
        deadline: when it is given up if it was not sent until then (trio's clock); 0 before it was
            submitted.
        losses: how often it was lost on its way to a leader.
        session: client session that a command belongs to, 0 for none.
        sequence: its number there; both are recorded with it, and the service's to heed.
        commands: about how many commands it has.
    """

    __slots__ = (
        "cancelled",
        "commands",
        "deadline",
        "done",
        "flags",
        "kind",
        "losses",
        "payload",
        "sequence",
        "session",
    )

    def __init__(
        self,
        kind: RequestKind,
        payload: bytes,
        flags: int,
        done: Callable[[bytes | RequestError], None],
    ) -> None:
        self.kind = kind
        self.payload = payload
        self.flags = flags
        self.done = done
        self.cancelled = False
        self.deadline = 0.0
        self.losses = 0
        self.session = 0
        self.sequence = 0
        self.commands = 1

    def answer(self, query: Callable[[bytes, int], bytes]) -> bool:
        """Answer a query with what `query` makes of its payload and flags; not if nobody waits.

        Returns:
            Whether it is answered; else it is to be called again, now or later.
        """
        if not self.cancelled:
            self.done(query(self.payload, self.flags))
        return True

    def cancel(self) -> None:
        """The client is gone: if it was not sent yet it never will be, and `done` is not called."""
        self.cancelled = True
        self.done = _nobody

    def leave(self, _client: object) -> None:
        """A client is gone: it is not to be sent any more for this one."""
        self.cancel()

    def remaining(self) -> Sequence[Request]:
        """Return what is to be sent in place of this, once it is cancelled: nothing.

        A request that stands for several clients is cancelled as soon as one of them is gone. It
        returns one for each of the others, or itself with what they want.
        """
        return ()


def still_wanted(requests: Iterable[Request]) -> Iterator[Request]:
    """Yield what is left to be sent of requests that were not sent yet: none that is cancelled.

    What becomes of one may cancel another, so each is looked at when its turn comes.
    """
    for request in requests:
        if not request.cancelled:
            yield request
        else:
            for each in request.remaining():
                if not each.cancelled:
                    yield each


def _nobody(_result: bytes | RequestError) -> None:
    """Take a result that nobody waits for any more."""


@attrs.frozen
class MemberAddress:
    """Where clients reach a member, and the other members, if that is known (else port 0).

    A `standby` follows and serves like the others, but has no vote. With a `redirect_port`,
    cluster clients are sent there, and `client_port` is for all other clients.
    """

    member_id: int
    host: str
    client_port: int
    member_port: int = 0
    standby: bool = False
    redirect_port: int = 0

    @property
    def cluster_port(self) -> int:
        """Where cluster clients reach it."""
        return self.redirect_port or self.client_port


@attrs.frozen
class Topology:
    """The cluster as this member last knew it; the leader is kept during an election."""

    members: tuple[MemberAddress, ...]
    leader_id: int | None
    term: int
    own_id: int
    is_leader: bool

    def address_of(self, member_id: int) -> MemberAddress:
        """Return the address of a member."""
        return next(member for member in self.members if member.member_id == member_id)


@attrs.frozen
class PeerStatus:
    """Another member, as seen from here. Positions are -1 and ages None when never heard.

    Between a leader and a follower both count the `heartbeats` that they heard of each other since
    one leads the other, and the intervals in which none came, `missed`. If there is no link to it,
    `trouble` says why.
    """

    member_id: int
    connected: bool
    append_position: int
    last_heard_s: float | None
    heartbeats: int = 0
    missed: int = 0
    trouble: str = ""


@attrs.frozen
class NodeStatus:
    """What a member says of itself. Ages and uptime in seconds, positions in bytes of the log.

    Of its clients' requests so many are `parked`, waiting for a leader, and so many `forwarded`,
    waiting for its answer. `snapshot_position` is that of the newest snapshot, -1 without one, and
    `snapshot_timestamp_ms` the log's time there, 0 without one; `snapshot_activity` says in words
    what is being done with one, if anything is. A cluster that is `suspended` takes no commands, a
    member whose disk is full (`disk_full`) appends nothing. Its `damage` says in words what was
    damaged here and has not come back yet, empty if nothing. The `standing` of its store is
    ``member`` once it has a vote, ``recovering`` before it is admitted, and ``fresh`` before the
    cluster was founded, for which it has `not_heard` of these members; that of a standby is
    ``standby``, and so is its `role`. Since its start it has applied so many `entries` in so many
    `batches`, and made so many durable `commits` to its log. By what was
    promised to a leader with a lease nobody else can lead for `lease_s` more; 0 if there is none.
    The clock of its machine is `clock_skew_ms` ahead of the log's time, as far as it knows that.
    """

    member_id: int
    cluster: str
    role: str
    state: str
    state_age_s: float
    term: int
    leader_id: int | None
    log_term: int
    start_position: int
    append_position: int
    commit_position: int
    applied_position: int
    elections: int
    uptime_s: float
    timestamp_ms: int
    parked: int
    forwarded: int
    incarnation: int
    snapshot_position: int
    snapshot_activity: str
    suspended: bool
    disk_full: bool
    damage: str
    standing: str
    not_heard: tuple[int, ...]
    entries: int
    batches: int
    commits: int
    lease_s: float
    clock_skew_ms: int
    peers: tuple[PeerStatus, ...]
    snapshot_timestamp_ms: int = 0


class Gateway(Protocol):
    """What the client side may ask of a member."""

    def submit(self, request: Request) -> None:
        """Take a request: propose it, read, forward it to the leader, or park it meanwhile."""
        ...

    def submit_all(self, requests: list[Request]) -> None:
        """Take what came in one turn of the event loop; they need not wait for others of it.

        `submit` has to wake a task that comes round after the turn.
        """
        ...

    def stale_query(self, payload: bytes, flags: int) -> bytes:
        """Answer a query from this member's applied state, however old."""
        ...

    def now_ms(self) -> int:
        """The log's time by now, in milliseconds since the epoch: what a command would get."""
        ...

    @property
    def topology(self) -> Topology:
        """The members and the last known leader."""
        ...

    def status(self) -> NodeStatus:
        """What this member says of itself now."""
        ...
