"""What a member remembers of one client connection, as commands see and change it.

Not the socket (:mod:`.connection`), not the commands under way (:mod:`.conversation`), and not a
replicated session (:mod:`...state.sessions`): this state lives and dies with one TCP connection.
"""

from typing import Final

import attrs

from ..protocol.payload import RESP3
from .transaction import Transaction
from .watching import Watched

__all__ = ["LOUD", "OFF", "SKIPPING", "SKIP_NEXT", "ClientState", "Replies"]

LOUD: Final = 0
"""All replies are sent (CLIENT REPLY ON)."""
SKIP_NEXT: Final = 1
"""The reply to the next command is not."""
SKIPPING: Final = 2
"""That to the present command is not."""
OFF: Final = 3
"""None is."""


@attrs.define(eq=False)
class ClientState:
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

    __slots__ = ("_client",)

    def __init__(self, client: ClientState) -> None:
        super().__init__()
        self._client = client

    def append(self, reply: bytes) -> None:
        """Add a reply, or skip it."""
        if self._client.quiet < SKIPPING:
            super().append(reply)
