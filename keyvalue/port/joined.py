"""Joins the plain commands of many clients into one request.

In a turn of the client port most clients have sent one SET or GET. A request of its own for each
would cost several times what executing the command costs: gateway, log and state machine handle
every request separately. So plain commands (:mod:`~..native.resp_reader`) are joined: the payload
is that of a pipeline, and the replies are cut apart and sent to each client.

If a client disconnects, or the joined request fails or is only partly done, it is split back into
one request per client.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from ...errors import RequestError, UnknownOutcomeError
from ...node.requests.gateway import Request, RequestKind
from ..native.resp_reader import cut_replies_untrusted
from ..state.service import AT_ONCE_BYTES, IN_PARTS, PART, part
from .routes import RUN_COMMANDS

if TYPE_CHECKING:
    from .client_state import PortState

__all__ = ["Coalesced", "Sender"]

_log = logging.getLogger("quorate.keyvalue")
_OTHERS: Final = UnknownOutcomeError("the replies are not those to what was sent")
_READS_AT_ONCE: Final = 64
"""Reads answered between two looks at the clock. More, and other tasks wait longer for a turn."""


class Sender(Protocol):
    """A client's connection with no other request under way."""

    def settle(self, reply: bytes) -> bool:
        """Send the reply; nothing is under way then.

        Returns:
            False if the client has sent more, or cannot take the reply: then nothing was done.
        """
        ...

    def take_over(self, kind: RequestKind, payload: bytes, flags: int, count: int) -> Request:
        """Make a request of its own of what it has sent, so many commands."""
        ...

    def close(self) -> None:
        """End it at once."""
        ...


class Coalesced(Request):
    """What several clients have sent, each a run of plain commands of one kind.

    Args:
        kind: of all of it.
        flags: of each client.
        port: that they came through.
    """

    __slots__ = (
        "_answered",
        "_counts",
        "_most",
        "_own_flags",
        "_payloads",
        "_port",
        "_senders",
        "_size",
    )

    def __init__(self, kind: RequestKind, flags: int, port: "PortState") -> None:
        super().__init__(kind, b"", flags, self._on_result)
        self._port = port
        self._own_flags = flags
        self._senders: list[Sender | None] = []  # None for one that has gone
        self._payloads: list[bytes] = []
        self._counts: list[int] = []
        self._most = min(AT_ONCE_BYTES, port.run_bytes)
        self._size = self.commands = 0
        self._answered = 0  # so many of the senders

    def add(self, sender: Sender, payload: bytes, count: int) -> bool:
        """Take what a client has sent, so many commands, if there is room for it."""
        size = self._size + len(payload)
        commands = self.commands + count
        if (size > self._most or commands > RUN_COMMANDS) and self._senders:
            return False
        self._senders.append(sender)
        self._payloads.append(payload)
        self._counts.append(count)
        self._size, self.commands = size, commands
        return True

    def close(self) -> None:
        """Take no more: from now on it is a request."""
        self.payload = b"".join(self._payloads)
        self._port.counters.commands += self.commands
        self._port.counters.input_bytes += self._size
        if self.commands > 1:
            self.flags |= IN_PARTS

    def leave(self, client: object) -> None:
        """One of the clients is gone."""
        place = next(place for place, sender in enumerate(self._senders) if sender is client)
        self._senders[place] = None
        self.cancelled = True

    def remaining(self) -> list[Request]:
        """Return a request for each client that is left."""
        left = range(self._answered, len(self._senders))
        requests = [self._take_apart(place) for place in left if self._senders[place] is not None]
        self.cancel()
        return requests

    def answer(self, query: Callable[[bytes, int], bytes]) -> bool:
        """Answer some of the clients."""
        replies = self._ask(query)
        try:
            partly = replies.pop() if replies[-1].startswith(PART) else None
            self._deliver(replies)
            if partly is not None:
                self._take_apart(self._answered).done(partly)
                self._answered += 1
        except Exception:  # noqa: BLE001 - see Conversation._fail
            self._abort()
            self.cancel()
            return True
        if self._answered < len(self._senders):
            self.cancelled = True  # whoever sends it again must not send all of it
            return False
        self.cancel()
        return True

    def _ask(self, query: Callable[[bytes, int], bytes]) -> list[bytes]:
        """Return the replies to the next clients, at least to one; to the last perhaps in part.

        Each is asked for by itself: those whose records are on disk are served slower.
        """
        replies: list[bytes] = []
        size = 0
        for place in range(self._answered, len(self._senders)):
            gone = self._senders[place] is None
            reply = b"" if gone else query(self._payloads[place], self._flags_of(place))
            replies.append(reply)
            size += len(reply)
            full = size > AT_ONCE_BYTES or len(replies) == _READS_AT_ONCE
            if full or reply.startswith(PART):
                break
        return replies

    def _on_result(self, result: bytes | RequestError) -> None:
        """Take what became of all of it. Never raises."""
        try:
            if not isinstance(result, bytes):
                self._fail(result)
                return
            done, replies = part(result, self.commands)
            if done < self.commands:
                self._take_in_part(done, replies)
            elif (own := cut_replies_untrusted(replies, self._counts)) is None:
                self._fail(_OTHERS)
            else:
                self._deliver(own)
                self.cancel()
        except Exception:  # noqa: BLE001 - see Conversation._fail
            self._abort()

    def _take_in_part(self, done: int, replies: bytes) -> None:
        """Take the replies to so many of the commands; what was not done is sent again."""
        whole = 0
        while done >= self._counts[whole]:
            done -= self._counts[whole]
            whole += 1
        own = cut_replies_untrusted(replies, [*self._counts[:whole], done])
        if own is None:
            self._fail(_OTHERS)
            return
        rest = own.pop()
        self._deliver(own)
        if self._senders[whole] is not None:
            self._take_apart(whole).done(b"%b%d\r\n%b" % (PART, done, rest))
        for request in self.remaining():
            self._port.gateway.submit(request)

    def _fail(self, error: RequestError) -> None:
        """Give each client the error."""
        for request in self.remaining():
            request.done(error)

    def _take_apart(self, place: int) -> Request:
        """Make a request of its own of what a client has sent."""
        sender, self._senders[place] = self._senders[place], None
        assert sender is not None
        count = self._counts[place]
        request = sender.take_over(self.kind, self._payloads[place], self._flags_of(place), count)
        request.deadline, request.losses = self.deadline, self.losses
        request.commands = count
        return request

    def _flags_of(self, place: int) -> int:
        """Return the flags of what a client has sent."""
        return self._own_flags | IN_PARTS if self._counts[place] > 1 else self._own_flags

    def _abort(self) -> None:
        """End all connections for a mistake in here."""
        _log.exception("%d connections are closed", len(self._senders) - self._senders.count(None))
        for sender in [*self._senders]:
            if sender is not None:
                sender.close()

    def _deliver(self, replies: list[bytes]) -> None:
        """Give the next clients their replies."""
        start = self._answered
        self._answered += len(replies)
        for place, reply in enumerate(replies, start):
            # Read from the list each time: a reply before may have closed this client.
            sender = self._senders[place]
            if sender is not None and not sender.settle(reply):
                self._take_apart(place).done(reply)
