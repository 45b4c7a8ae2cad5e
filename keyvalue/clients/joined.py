"""One request for the plain commands that many clients sent in the same turn.

**Why.** In a busy turn of the client port, most clients have sent one SET or GET. Carrying each of
them alone through gateway, log and state machine costs several times what executing it costs. So
plain commands are joined: the payload is that of one pipeline, and the reply is cut apart again.

**The life of a joined request.** While the turn lasts, :meth:`JoinedRequest.add` takes clients.
:meth:`JoinedRequest.close` makes the payload; from then on it is a request like any other. Its
result comes through `_on_result` (a command) or `answer` (a query), in the order of the clients.

**When something goes wrong** the joined request is split: each remaining client takes its own
commands back (:meth:`JoinedClient.take_over`) and has a request of its own. That happens when

- a client disconnects before the request was sent (:meth:`JoinedRequest.leave`),
- the state machine executed only a part of the payload; if a slot is frozen, only the clients with
  keys that are not served here leave, and the others share one request again,
- the request failed: then each client gets the error.

So nothing outside of this file has to know partial results of several clients.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ...errors import RequestError, UnknownOutcomeError
from ...log_events import log_event
from ...node.requests.gateway import Gateway
from ...node.requests.request import QUERY, Request, RequestKind
from ..limits import AT_ONCE_BYTES, RUN_COMMANDS
from ..native.resp_reader import cut_replies_untrusted, owned_untrusted
from ..protocol.payload import FROZEN, IN_PARTS, PART, encode_part, part
from .counters import KINDS, Counters

__all__ = ["JoinedClient", "JoinedRequest"]

_log = logging.getLogger("quorate.keyvalue")
_WRONG_REPLIES: Final = UnknownOutcomeError("the replies are not those to what was sent")

_READS_AT_ONCE: Final = 64
"""Clients whose reads are answered in one go. More would hold up the other tasks of the member;
fewer would cost a call of the scheduler too often."""


class JoinedClient(Protocol):
    """A client's connection that has nothing else under way."""

    def settle(self, reply: bytes) -> bool:
        """Send the reply; afterwards nothing is under way.

        Returns:
            False, without effect, if the client has sent more, or cannot take the reply.
        """
        ...

    def take_over(self, kind: RequestKind, payload: bytes, flags: int, count: int) -> Request:
        """Make a request of its own of the `count` commands that this client has sent."""
        ...

    def check_again(self) -> Sequence[Request]:
        """Return the present request if the client's user may still send it, now."""
        ...

    def close(self) -> None:
        """End the connection at once."""
        ...


class JoinedRequest(Request):
    """What several clients have sent, each a run of plain commands of one kind.

    Args:
        kind: of all commands.
        flags: of every client's request.
        limit_bytes: the longest payload; a single client may exceed it.
        gateway: takes the requests that this one is split into.
        counters: figures of the port.
        states: of each slot, by what this member has applied; None without partitions.

    Attributes:
        began: when the turn of the port began that has made it (trio's clock).
    """

    __slots__ = (
        "_answered",
        "_clients",
        "_commands",
        "_counters",
        "_counts",
        "_gateway",
        "_own_flags",
        "_payloads",
        "_room",
        "_size",
        "_states",
        "began",
    )

    def __init__(
        self,
        kind: RequestKind,
        flags: int,
        limit_bytes: int,
        gateway: Gateway,
        counters: Counters,
        *,
        states: bytearray | None = None,
    ) -> None:
        super().__init__(kind, b"", flags, self._on_result)
        self._gateway = gateway
        self._states = states
        self._counters = counters
        self.began = 0.0
        self._own_flags = flags
        # three lists with one place per client; a client that has left is None
        self._clients: list[JoinedClient | None] = []
        self._payloads: list[bytes] = []
        self._counts: list[int] = []
        self._room = min(AT_ONCE_BYTES, limit_bytes)
        self._size = self._commands = 0
        self._answered = 0  # clients before this place have their replies

    def add(self, client: JoinedClient, payload: bytes, count: int) -> bool:
        """Take the `count` commands of a client; False if there is no room for them."""
        size = self._size + len(payload)
        commands = self._commands + count
        # The first client is always taken: its commands alone may be longer than the room.
        if (size > self._room or commands > RUN_COMMANDS) and self._clients:
            return False
        self._clients.append(client)
        self._payloads.append(payload)
        self._counts.append(count)
        self._size, self._commands = size, commands
        return True

    def close(self) -> None:
        """Take no more clients and become a request."""
        self._encode()
        counters = self._counters
        counters.commands += self._commands
        counters.by_command["get" if self.kind is QUERY else "set"] += self._commands
        counters.input_bytes += self._size

    def _encode(self) -> None:
        """Make payload and flags of what the clients have sent."""
        # Joined once, at the end: bytes that grow with each client would be copied each time.
        self.payload = b"".join(self._payloads)
        # Many clients' commands may be too much work for one entry; `_take_in_part` can resume.
        self.flags = self._own_flags | IN_PARTS if self._commands > 1 else self._own_flags

    def leave(self, client: object) -> None:
        """A client has disconnected."""
        # Searched: a client leaves rarely, and an index would have to be kept for each that stays.
        place = next(place for place, each in enumerate(self._clients) if each is client)
        self._clients[place] = None
        # The payload still holds the client's commands. Marked as cancelled, the request is not
        # sent as it is: the gateway asks for `remaining` and sends those requests instead.
        self.cancelled = True

    def remaining(self) -> list[Request]:
        """Split: return a request for each client that is still there and has no reply."""
        left = range(self._answered, len(self._clients))
        requests = [self._split_off(place) for place in left if self._clients[place] is not None]
        # Each client now has a request of its own. A late result of this one must reach nobody.
        self.cancel()
        return requests

    def check_again(self) -> Sequence[Request]:
        """Split; return the requests of the clients that may still send them; see `Request`."""
        clients = [client for client in self._clients[self._answered :] if client is not None]
        self.remaining()
        return [request for client in clients for request in client.check_again()]

    def answer(self, query: Callable[[bytes, int], bytes]) -> bool:
        """Answer the next clients of a joined query; see `Request.answer`."""
        replies = self._ask(query)
        try:
            # A pipeline of GETs may be too much work for one query: its client goes on alone.
            partly = replies.pop() if replies[-1].startswith(PART) else None
            self._deliver(replies)
            if partly is not None:
                self._split_off(self._answered).done(partly)
                self._answered += 1
        except Exception:  # noqa: BLE001 - see Conversation._close_after_bug
            self._abort()
            self.cancel()
            return True
        if self._answered < len(self._clients):
            # If the gateway has to send this query again, the answered clients must not be in it.
            self.cancelled = True
            return False
        self.cancel()
        return True

    def _ask(self, query: Callable[[bytes, int], bytes]) -> list[bytes]:
        """Return the replies to the next clients, at least to one; the last may be partial."""
        replies: list[bytes] = []
        size = 0
        # One query per client, not one for all: a record on disk then delays only the replies
        # behind it, and the loop can stop when it has taken long enough.
        for place in range(self._answered, len(self._clients)):
            # A place without a client keeps its turn, so that replies and clients stay aligned.
            gone = self._clients[place] is None
            reply = b"" if gone else query(self._payloads[place], self._flags_of(place))
            replies.append(reply)
            size += len(reply)
            full = size > AT_ONCE_BYTES or len(replies) == _READS_AT_ONCE
            if full or reply.startswith(PART):
                break
        return replies

    def _on_result(self, result: bytes | RequestError) -> None:
        """Take the result of the joined command. Never raises: the caller applies the log."""
        try:
            if not isinstance(result, bytes):
                self._fail(result)
                return
            done, replies = part(result, self._commands)
            if done < self._commands:
                self._take_in_part(done, replies)
            elif (own := cut_replies_untrusted(replies, self._counts)) is None:
                # A bug, or a member of another version: nobody may get another client's reply.
                self._fail(_WRONG_REPLIES)
            else:
                self._deliver(own)
                self.cancel()
        except Exception:  # noqa: BLE001 - see Conversation._close_after_bug
            self._abort()

    def _take_in_part(self, done: int, replies: bytes) -> None:
        """Take the replies to the first `done` commands; submit the other commands again."""
        whole = 0  # clients whose commands were all executed
        while done >= self._counts[whole]:
            done -= self._counts[whole]
            whole += 1
        own = cut_replies_untrusted(replies, [*self._counts[:whole], done])
        if own is None:
            self._fail(_WRONG_REPLIES)
            return
        rest = own.pop()
        self._deliver(own)
        # The client in which execution stopped resumes like one that has sent a pipeline alone.
        # After a whole client there was no room; before the first one, a slot is frozen.
        if self._clients[whole] is not None and (done or not whole):
            self._split_off(whole).done(encode_part(done, rest))
        if self._part_with_misplaced():
            self._submit_again()
        else:
            for request in self.remaining():
                self._gateway.submit(request)

    def _part_with_misplaced(self) -> bool:
        """Let clients wait whose keys are not served here; return whether there were any.

        Each of them would stop what is sent again, and hold up the clients behind it.
        """
        states = self._states
        if states is None:
            return False
        misplaced = [
            place
            for place in range(self._answered, len(self._clients))
            if self._clients[place] and not owned_untrusted(self._payloads[place], states)
        ]
        for place in misplaced:
            if self._clients[place] is not None:  # not closed by what another one's reply led to
                self._split_off(place).done(FROZEN)
        return bool(misplaced)

    def _submit_again(self) -> None:
        """Become the request of the clients that have no reply yet, and send it."""
        left = range(self._answered, len(self._clients))
        kept = [place for place in left if self._clients[place] is not None]
        self._clients = [self._clients[place] for place in kept]
        self._payloads = [self._payloads[place] for place in kept]
        self._counts = [self._counts[place] for place in kept]
        self._commands, self._answered = sum(self._counts), 0
        if kept:
            self._encode()
            self.cancelled = False  # if some have left: they are not in it any more
            self._gateway.submit(self)
        else:
            self.cancel()

    def _fail(self, error: RequestError) -> None:
        """Give each client the error."""
        # Through requests of their own: each client gets as many errors as it has sent commands.
        for request in self.remaining():
            request.done(error)

    def _split_off(self, place: int) -> Request:
        """Give a client's commands back to it, as a request of its own."""
        # None, so that no later reply of this request can reach the client a second time.
        client, self._clients[place] = self._clients[place], None
        assert client is not None
        count = self._counts[place]
        request = client.take_over(self.kind, self._payloads[place], self._flags_of(place), count)
        # It has waited as long as the joined request: its time to find a leader goes on.
        request.deadline, request.losses = self.deadline, self.losses
        request.principal, request.rules = self.principal, self.rules
        return request

    def _flags_of(self, place: int) -> int:
        """Return the flags of one client's commands."""
        return self._own_flags | IN_PARTS if self._counts[place] > 1 else self._own_flags

    def _abort(self) -> None:
        """End all connections after a bug in this file."""
        log_event(
            _log,
            logging.ERROR,
            "clients_closed",
            "%(count)d connections are closed",
            exc_info=True,
            count=len(self._clients) - self._clients.count(None),
        )
        for client in [*self._clients]:
            if client is not None:
                client.close()

    def _deliver(self, replies: list[bytes]) -> None:
        """Give the next clients their replies."""
        start, settled = self._answered, 0
        self._answered += len(replies)
        for place, reply in enumerate(replies, start):
            # Looked up each time: sending the reply before may have closed this client.
            client = self._clients[place]
            if client is None:
                continue
            if client.settle(reply):
                settled += self._counts[place]
            else:
                self._split_off(place).done(reply)
        # One look at the clock for all of them. What was split off counts itself. Errors need not
        # be looked for: a plain SET or GET has none, and other failures are split, too.
        if settled:
            counters = self._counters
            counters.durations[KINDS[self.kind]].observe(counters.clock() - self.began, settled)
