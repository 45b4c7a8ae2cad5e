"""What a member remembers of one client connection, as commands see and change it.

Not the socket (:mod:`..port.connection`), not the commands under way
(:mod:`..conversation.conversation`), and not a replicated session (:mod:`..state.sessions`): this
state lives and dies with one TCP connection.
"""

import math
from typing import Final

import attrs

from ..access.compiled import GETS, SETS, Access
from ..access.logins import NO_PASSWORD
from ..access.rules import DEFAULT
from ..access.users import DEFAULT_NAME
from ..protocol.payload import RESP3
from .change_watches import ClientWatches
from .transaction import Transaction
from .watching import WatchedKeys

__all__ = ["LOUD", "OFF", "SKIPPING", "SKIP_NEXT", "ClientState", "Replies"]

_OPEN: Final = Access(DEFAULT_NAME, DEFAULT)

# Which replies a client gets, as CLIENT REPLY has set it.
LOUD: Final = 0
"""All (CLIENT REPLY ON)."""
SKIP_NEXT: Final = 1
"""Not the reply to the next command."""
SKIPPING: Final = 2
"""Not the reply to the present command."""
OFF: Final = 3
"""None."""


@attrs.define(eq=False)
class ClientState:
    """One client, as commands see it. Times are of trio's clock, in seconds."""

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
    """The flags of each of its requests: `payload.RESP3` or 0."""
    cluster_aware: bool = False
    """It understands MOVED: by its port, or because it asked for the topology or sent READONLY."""
    began_aware: bool = False
    """Whether it was cluster-aware from the beginning, by its port; RESET returns to that."""
    read_only: bool = False
    """READONLY: a follower answers its reads, from its own state."""
    no_evict: bool = False
    no_touch: bool = False
    quiet: int = LOUD
    """`LOUD`, `SKIP_NEXT`, `SKIPPING` or `OFF`."""
    closing: bool = False
    """The connection ends once its last reply is sent."""
    access: Access = _OPEN
    """What its user may do. Set by `give`."""
    logged_in: bool = True
    """Whether it was let in. If not, the limits before a login hold. Set by `give`."""
    joins: int = SETS | GETS
    """``access.joins``, which is looked at for each plain command."""
    login: bytes = DEFAULT_NAME
    """The name that it has logged in with; what that allows now is `access`."""
    principal: int = 0
    """The number of the user that was let in last, for the log. It stays while nothing is known of
    the users, and once the user is deleted: what is under way is still that user's."""
    proof: bytes = NO_PASSWORD
    """What has let it in: `NO_PASSWORD`, a hash of its user, or `CERTIFICATE`."""
    certified: bytes = b""
    """The user that its certificate names; empty without a certificate."""
    good_until: float = math.inf
    """When its certificate expires."""
    authorities: frozenset[bytes] = frozenset()
    """The CAs that its certificate may be of, each as DER; empty without a certificate."""
    tls: bool = False
    """It came by TLS."""
    remote: bool = False
    """It must be a user: it is on another machine, and the port is open to these."""
    changes_users: bool = False
    """A change of users that it sent is under way."""
    removed: bool = False
    """Its user was deleted, by itself: it is closed after the reply."""
    transaction: Transaction | None = None
    watched: WatchedKeys = attrs.field(factory=WatchedKeys)
    """Of WATCH."""
    watches: ClientWatches = attrs.field(factory=ClientWatches)
    """Of QUORATE.WATCH."""

    @property
    def resp3(self) -> bool:
        """Whether it speaks RESP3."""
        return bool(self.flags & RESP3)

    @property
    def user(self) -> bytes:
        """Name of its user; `default` before a login."""
        return self.access.name

    def give(self, access: Access, *, logged_in: bool = True) -> None:
        """Set what its user may do, and whether that is a login."""
        self.access, self.joins, self.logged_in = access, access.joins, logged_in

    def skips(self) -> bool:
        """Begin a command; return whether the reply to this command alone is skipped."""
        if self.quiet != OFF:
            self.quiet = SKIPPING if self.quiet == SKIP_NEXT else LOUD
        return self.quiet == SKIPPING

    def end_transaction(self) -> None:
        """Drop the commands since MULTI, and what WATCH watches."""
        self.transaction, self.watched = None, WatchedKeys()

    def reset(self) -> None:
        """Return to the initial state (RESET)."""
        self.name = b""
        self.flags = 0
        self.cluster_aware = self.began_aware
        self.read_only = self.no_evict = self.no_touch = False
        self.quiet = LOUD
        self.end_transaction()
        self.watches.end_all()


class Replies(list[bytes]):
    """The replies to send to a client next; replies that it does not want are dropped."""

    __slots__ = ("_client",)

    def __init__(self, client: ClientState) -> None:
        super().__init__()
        self._client = client

    def append(self, reply: bytes) -> None:
        """Add a reply, or drop it."""
        if self._client.quiet < SKIPPING:
            super().append(reply)
