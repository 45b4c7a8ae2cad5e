"""The commands of one client and their replies, in order. No sockets here.

The way of a command
    :meth:`Conversation.feed` takes bytes, and the parser makes commands of them. `_run` executes
    commands until one must wait. `_step` decides what the next command is:

    - part of a *run* of keyed commands, which goes to the member as one request (:mod:`.routes`);
    - any other command, on its own (:mod:`.one_command`).

    A chunk of nothing but plain SETs, or GETs, may skip all that and travel with those of other
    clients (:meth:`Conversation.join`, :mod:`..clients.joined`).

Who may do what
    Each command is checked against the rules of the client's user before it is queued or sent. A
    user that may do everything is not checked at all.

One request at a time
    The next request is made when the previous one is answered. So replies come in order, and a
    command sees the effects of the one before it. Input that arrives in the meantime is held,
    and becomes the next chunk. An expensive run may be executed in part; its rest becomes the next
    request. If a request fails, each of its commands gets the error.

Fairness
    A client may send ten thousand INFO at once. So after :data:`PATIENCE_S` of connection commands
    the conversation pauses and continues in a later turn. It also pauses while its outlet is
    congested, because replies that nobody reads take memory.

Redirection
    A *cluster-aware* client (`ClientState.cluster_aware`) is redirected to the leader. During an
    election the gateway parks its request, as it always does for other clients.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from ...errors import OversizedRequestError, RequestError, UnknownOutcomeError, WireError
from ...log_events import log_event
from ...node.requests.request import UNSTAMPED, Request, RequestKind, Stamp
from ..access.compiled import GETS, SETS
from ..access.verifier import BUSY
from ..clients.client_state import SKIP_NEXT, SKIPPING, ClientState, Replies
from ..clients.counters import KINDS
from ..clients.joined import JoinedRequest
from ..clients.penalties import network_of
from ..clients.port_state import Outlet, PortState
from ..clients.request_errors import DeniedError, error_text
from ..limits import AT_ONCE_BYTES
from ..native.resp_reader import owned_untrusted
from ..protocol import resp
from ..protocol.parser import NOTHING, CommandParser
from ..protocol.payload import IN_PARTS, PART, PayloadParser, part
from .one_command import execute
from .parking import TRY_AGAIN, Parking, rest_of
from .permission import denied_now, permits
from .routes import run_of, uniform_kind
from .slot_check import serves
from .steps import Convert, Result, Then, refuse
from .unfinished_input import estimate_bytes

__all__ = ["PATIENCE_S", "Conversation"]

PATIENCE_S: Final = 0.002
"""How long one client's connection commands are answered without a break. Longer, and others wait;
shorter, and a pipeline of them takes more turns."""

_KNOW_UNKNOWN: Final = frozenset({b"quorate.request", b"quorate.once", b"quorate.control"})
"""What only clients send that know the error -UNKNOWN."""

_log = logging.getLogger("quorate.keyvalue")


class Conversation:
    """The commands of one client and their replies.

    Args:
        client: the client's state, as commands see it.
        parser: parses what it sends.
        port: shared with the other connections.
        outlet: its connection, which takes the replies.

    Attributes:
        held_bytes: length of the input that waits for the present request.
        replies: gathered, not yet taken by the outlet.
    """

    __slots__ = (
        "_began",
        "_commands",
        "_convert",
        "_expected",
        "_held",
        "_next",
        "_outlet",
        "_parking",
        "_parser",
        "_paused",
        "_request",
        "_running",
        "_then",
        "_whole",
        "client",
        "held_bytes",
        "port",
        "replies",
    )

    def __init__(
        self, client: ClientState, parser: CommandParser, port: PortState, outlet: Outlet
    ) -> None:
        self.client = client
        self.port = port
        self._parser, self._outlet = parser, outlet
        self._commands: list[list[bytes]] = []
        self._whole, self._next = b"", 0  # the chunk's encoding; index of its next command
        self._request: Request | None = None  # under way
        self._expected = 0  # number of its commands
        self._began: float | None = None  # when it was submitted; None for a wait
        self._convert: Convert | None = None  # makes the reply from the request's result
        # In its place, the next step of a command that takes several; it also gets errors.
        self._then: Then | None = None
        # `_running` while `_run` is on the stack: a result may arrive within it. `_paused` while
        # commands wait for a later turn, or for the client to read.
        self._running = self._paused = False
        self._parking: Parking | None = None  # what was fed together waits for a frozen slot
        self._held: list[bytes] = []  # input that arrived while a request was under way
        self.held_bytes = 0
        self.replies = Replies(client)

    @property
    def failed(self) -> bool:
        """Whether the client broke the protocol, or was refused."""
        return self._parser.failure is not None

    @property
    def idle(self) -> bool:
        """Whether everything that was fed is answered, except an incomplete command."""
        under_way = self._request is not None or self._paused or self._running
        return not under_way and self._next == len(self._commands) and not self._held

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were fed and not executed yet."""
        return self.held_bytes + self._parser.waiting_bytes

    @property
    def unfinished_bytes(self) -> tuple[int, int]:
        """About how much memory unfinished input takes, and a large request under way."""
        chunk, transaction = (self._commands, self._whole), self.client.transaction
        # Most connections hold nothing at most times, and this is called for each chunk.
        some = self._held or self._commands or self._parser.incomplete or transaction
        if some:
            size = estimate_bytes(self._parser, self._held, self.held_bytes, chunk, transaction)
        else:
            size = 0
        # Small requests under way are not counted: they are soon over. A large one may be parked
        # for long, and refusing the client would not free it.
        under_way = len(self._request.payload) if self._request is not None else 0
        return size, under_way if under_way > AT_ONCE_BYTES else 0

    def refuse(self, error: OversizedRequestError) -> None:
        """Give up all input; the error follows the reply to the present request, then the end."""
        self._parser.failure, self._parser.incomplete = error, None
        # Commands that were sent already keep their replies; commands behind them are dropped.
        self._commands, self._whole = self._commands[: self._next], b""
        self._held, self.held_bytes, self.client.transaction = [], 0, None
        if not (self._request or self._paused or self._running):
            self._paused = True
            self.resume()

    def feed(self, data: bytes) -> None:
        """Take bytes that the client sent; not empty."""
        self._held.append(data)
        self.held_bytes += len(data)
        if self._request is None and not self._paused:
            self._paused = True  # so that `resume` does not return at once
            self.resume()

    def join(self, data: bytes, count: int) -> bool:
        """Let plain commands join those of other clients, if they may.

        Args:
            data: nothing but SETs, or nothing but GETs.
            count: number of SETs, or minus the number of GETs.

        Returns:
            False, without effect, if this client's commands need more care.
        """
        client, port = self.client, self.port
        busy = self._request is not None or self._paused or self._parser.incomplete is not None
        elsewhere = client.cluster_aware and not port.gateway.topology.is_leader
        # A transaction queues them, a follower redirects them, CLIENT REPLY drops replies, and a
        # watch of absent keys must see them: each needs the longer way.
        apart = client.transaction is not None or elsewhere or client.closing
        if busy or apart or client.quiet or client.watched.absent or len(data) > port.run_bytes:
            return False
        # Keys are not looked at here, so only for a user that may use this command on all keys.
        if not client.joins & (SETS if count > 0 else GETS):
            return False
        signposts = port.signposts
        if signposts is not None and not owned_untrusted(data, signposts.ownership.states):
            return False
        self._request = port.join(self._outlet, client.flags, client.principal, data, count)
        client.last_command, client.seen_at = b"set" if count > 0 else b"get", port.now
        return True

    def settle(self) -> bool:
        """Note that the joined request is answered; False, without effect, if input waits."""
        # Held input runs after this reply, and the error of broken input follows it: then the reply
        # must come through `_on_result`, which goes on with them.
        if self._held or self._parser.failure is not None:
            return False
        self._request = None
        return True

    def take_over(self, kind: RequestKind, payload: bytes, flags: int, count: int) -> Request:
        """Make a request of its own of this client's part of the joined one."""
        self._expected, self._began, self._parking = count, self.port.now, None
        self._request = request = Request(kind, payload, flags, self._on_result)
        return request

    def doubt(self) -> None:
        """The rules have changed: check the present request again, unless it was sent already."""
        request = self._request
        if isinstance(request, JoinedRequest):
            request.recheck = lambda _joined: request.check_again()
        elif request is not None:
            request.recheck = lambda _request: self.check_again()

    def check_again(self) -> Sequence[Request]:
        """Return the present request if it may be sent now; see `Request.recheck`."""
        request, users = self._request, self.port.access.users
        if request is None:
            return ()
        if (error := denied_now(self, request)) is None:
            request.rules = users.version
            return (request,)
        if users.known:
            # In a later turn: its client may send more then, and our caller counts what it has.
            self.port.resume_later(
                lambda: request.done(DeniedError(error.decode(errors="replace")))
            )
        else:
            self.port.access.wait_for_users(lambda result: self._go_on(request, result))
        return ()

    def _go_on(self, request: Request, result: Result) -> None:
        """Send a request that has waited for the users, if the client's user may."""
        if not isinstance(result, bytes):
            request.done(result)
        elif not request.cancelled:
            for each in self.check_again():
                self.port.gateway.submit(each)

    def end(self) -> None:
        """The client is gone: withdraw its request if it was not sent yet, and drop the rest."""
        self.client.closing = True
        self.client.watches.end_all()
        if self._request is not None:
            self._request.leave(self._outlet)
            self._request = None
        (self._commands, self._whole), self._next = NOTHING, 0
        # Dropped here, not by the garbage collector: this object is in a cycle of references.
        self._held, self.held_bytes = [], 0
        self._parser.incomplete = self.client.transaction = None
        self.replies.clear()

    def _close_after_bug(self) -> None:
        """End the connection after a bug in here."""
        # Our caller may be the task that applies the log. An exception there would end the member,
        # so a bug in the conversation ends one connection instead.
        log_event(
            _log,
            logging.ERROR,
            "client_closed",
            "client %(client)d: its connection is closed",
            exc_info=True,
            client=self.client.client_id,
        )
        self._outlet.close()

    def _load(self, data: bytes) -> None:
        if self.client.logged_in:
            taken = self._parser.take_untrusted(data)
        else:
            taken, rest = self._parser.take_before_login_untrusted(data)
            if rest:
                self._held, self.held_bytes = [rest], len(rest)
        self._commands, self._whole = taken
        self._next, self._parking = 0, None
        self.port.counters.count_commands(self._commands)

    def _refill(self) -> bool:
        """Parse the input that was held; False if there is nothing to execute."""
        # Everything before the broken bytes is answered by now: the error is the last reply.
        if self._parser.failure is not None:
            self.port.counters.protocol_errors += isinstance(self._parser.failure, WireError)
            self.reply(resp.error(f"ERR {self._parser.failure}"))
            self.client.closing = True
        if self.client.closing or not self._held:
            return False
        data = b"".join(self._held)
        self._held, self.held_bytes = [], 0
        self._load(data)
        return True

    def _run(self) -> None:
        """Execute commands until a request is under way, none is left, or it is time to pause."""
        self._running = True
        pause_at: float | None = None
        answered, now = 0, 0.0
        while self._request is None and not self.client.closing:
            if (self.replies or self._outlet.congested) and self._must_wait():
                self._paused = True  # the outlet resumes us when the client has read
                break
            if self._next == len(self._commands):
                if not self._refill():
                    break
            elif not self._step():
                # Only commands that made no request are timed. A request ends this loop anyway, and
                # the service bounds their work.
                now = trio.current_time()
                answered += 1
                if pause_at is None:
                    pause_at = now + PATIENCE_S
                elif now > pause_at:
                    self._paused = True
                    self.port.resume_later(self.resume)
                    break
        self._running = False
        if answered:
            # Up to the last look at the clock, for all of them: they are sent together.
            self.port.counters.durations["admin"].observe(now - self.port.now, answered)
        # The chunk is let go as soon as its last command is sent: thousands of clients may wait.
        if self._next == len(self._commands):
            (self._commands, self._whole), self._next = NOTHING, 0
        self._outlet.deliver()

    def _must_wait(self) -> bool:
        """Hand over a large reply before the next is made; True if the client must read first."""
        # Otherwise large replies (CLIENT LIST, ten thousand times) would all be made before the
        # outlet could report that the client does not read.
        if self.replies and len(self.replies[-1]) >= AT_ONCE_BYTES:
            self._outlet.deliver()
        return self._outlet.congested or self.client.closing

    def resume(self) -> None:
        """Continue after a pause, if there is one."""
        paused, self._paused = self._paused, False
        try:
            if paused and not self.client.closing:
                self._run()
        except Exception:  # noqa: BLE001 - see _close_after_bug
            self._close_after_bug()

    def _step(self) -> bool:
        """Execute the next command, or the run that begins with it; True if a request was made."""
        at, client, gateway = self._next, self.client, self.port.gateway
        elsewhere = client.cluster_aware and not gateway.topology.is_leader
        # CLIENT REPLY SKIP is for one command, so that one must not be in a run. `skips` also moves
        # its state on, so it is called once per command.
        alone = client.quiet and client.skips()
        if client.transaction is None and not alone and (not elsewhere or client.read_only):
            end, payload, kind = len(self._commands), self._whole, None
            # Commands that name an absent watched key ask about it as well: they go alone.
            apart = client.watched.absent
            # A chunk is usually one run: then its bytes are the payload, and nothing is encoded.
            free, signposts = client.access.open, self.port.signposts
            # After `refuse` there are fewer commands than the chunk had, and no bytes of it.
            if at == 0 and 0 < len(payload) <= self.port.run_bytes and not apart and free:
                kind = uniform_kind(self._commands)
            if kind is not None and signposts is not None:
                here = owned_untrusted(payload, signposts.ownership.states)
                kind = kind if here else None
            # If the leader is elsewhere, mixed commands are not cut into runs: each write among
            # them gets its own redirection.
            if kind is None and not elsewhere:
                check = None if free and signposts is None else self._permits
                encoded, kind = run_of(self._commands, at, self.port.run_bytes, apart, check)
                end, payload = at + len(encoded), b"".join(encoded)
            if kind is not None and (not elsewhere or kind is RequestKind.QUERY):
                client.last_command = self._commands[end - 1][0]
                self._next = end
                flags = client.flags | IN_PARTS if end - at > 1 else client.flags
                if elsewhere:
                    # READONLY on a follower: answered from its own state, without the leader. If
                    # that may not know of a removed user, nobody's access is open.
                    self.port.counters.stale_reads += end - at
                    self._take_replies(gateway.stale_query(payload, flags), payload, end - at)
                    return False
                self._submit(kind, payload, flags, end - at)
                return True
        arguments = self._commands[at]
        self._next = at + 1
        execute(arguments, self)
        return False

    def _permits(self, arguments: list[bytes]) -> bool:
        """Return whether a command may be part of a run."""
        signposts = self.port.signposts
        if signposts is not None and not serves(signposts, arguments):
            return False
        return self.client.access.open or permits(self, arguments)

    # --- what one command does, see `Steps`

    def reply(self, reply: bytes) -> None:
        """Answer the command."""
        self.port.counters.count_reply(reply)
        self.replies.append(reply)

    def submit(
        self,
        kind: RequestKind,
        payload: bytes,
        flags: int = 0,
        convert: Convert | None = None,
        stamp: Stamp = UNSTAMPED,
    ) -> None:
        """Send a request, whose result answers the command."""
        self._convert = convert
        self._submit(kind, payload, flags, 1, stamp)

    def send(self, kind: RequestKind, payload: bytes, then: Then) -> None:
        """Send a request, and call `then` with its result."""
        self._then = then
        self._submit(kind, payload, 0, 1)

    def offload(self, work: Callable[[], bytes], then: Then) -> None:
        """Have work done off the event loop, and call `then` with its result."""
        self._then = then
        # It is never submitted; but a client that leaves cancels it like any other.
        self._request = request = Request(RequestKind.CONTROL, b"", 0, self._on_result)

        def done(result: bytes) -> None:
            request.done(result)  # looked up now: a client that has left has replaced it

        if not self.port.access.verifier.submit(
            work,
            done,
            address=network_of(self.client.peer),
            wanted=lambda: not request.cancelled,
        ):
            self._request = self._then = None
            then(BUSY)

    def wait(self, seconds: float, then: Then) -> None:
        """Call `then` later, with nothing."""
        self._then = then
        self._request = request = Request(RequestKind.CONTROL, b"", 0, self._on_result)
        self.port.access.penalties.wait(seconds, lambda: request.done(b""))

    def answer_later(self, begin: Callable[[Callable[[bytes], None]], None], then: Then) -> None:
        """Call `begin` with a function; call `then` with what that function is given later."""
        self._then = then
        self._request = request = Request(RequestKind.CONTROL, b"", 0, self._on_result)
        begin(lambda result: None if request.cancelled else request.done(result))

    def wait_for_users(self) -> None:
        """Execute the present command once more when the users are known."""
        self._step_back(1)
        arguments = self._commands[self._next]

        def go_on(result: Result) -> None:
            given_up = self._next == len(self._commands)  # see `refuse`
            if not isinstance(result, bytes) and not given_up:  # no leader was found in time
                self._next += 1
                refuse(self, arguments, resp.error(error_text(result)))

        self._then = go_on
        self._request = request = Request(RequestKind.CONTROL, b"", 0, self._on_result)
        self.port.access.wait_for_users(lambda result: request.done(result))  # noqa: PLW0108

    def park(self) -> bool:
        """Execute the present command once more in a moment; False if it has waited too long."""
        if not self._wait_for_slot(lambda _: None):
            return False
        self._step_back(1)
        return True

    def _step_back(self, count: int) -> None:
        """Execute the last `count` commands once more."""
        self._next -= count
        if count and self.client.quiet == SKIPPING:  # it begins a second time then
            self.client.quiet = SKIP_NEXT

    def _wait_for_slot(self, then: Then, payload: bytes = b"") -> bool:
        """Call `then` in a moment; False, without effect, if there was enough waiting."""
        now, port = trio.current_time(), self.port
        if self._parking is None:
            self._parking = Parking(now)
        if (pause := self._parking.pause(now)) is None:
            return False
        self._then = then
        # It is never submitted, but holds what waits: see `unfinished_bytes`.
        self._request = request = Request(RequestKind.CONTROL, payload, 0, self._on_result)

        def finish() -> None:
            port.parked.discard(finish)
            if self._request is request:  # else it was woken before the pause was over
                request.done(b"")

        # In a turn, where the requests of all clients that have waited gather.
        port.parked.add(finish)
        port.access.penalties.wait(pause, partial(port.resume_later, finish))
        return True

    # --- requests

    def _submit(
        self, kind: RequestKind, payload: bytes, flags: int, count: int, stamp: Stamp = UNSTAMPED
    ) -> None:
        # Set before `submit`, which may deliver the result at once; `_convert` and `_then` are
        # already. `_on_result` clears them.
        self._expected, self._began = count, self.port.now
        self._request = request = Request(kind, payload, flags, self._on_result)
        request.session, request.sequence = stamp
        request.principal, request.rules = self.client.principal, self.port.access.users.version
        self.port.submit(request)

    def _on_result(self, result: bytes | RequestError) -> None:
        """Take the result of the request; may be called from within `submit`. Never raises."""
        request, self._request = self._request, None
        convert, self._convert = self._convert, None
        then, self._then = self._then, None
        if request is None:
            return  # the client is gone
        # Before the next step of a command, which may submit another request.
        answered, began, self._began = self._expected, self._began, None
        try:
            if then is not None:
                then(result)
            elif isinstance(result, UnknownOutcomeError) and self._hides_unknown():
                self.client.closing = True  # it gets the replies before this one
            elif not isinstance(result, bytes):
                # One error for each command of the request: clients count replies.
                error = resp.error(error_text(result))
                self.port.counters.count_replies(error * answered, answered)
                self.replies.append(error * answered)
            elif result.startswith(PART):
                if convert is None and not request.session:
                    answered = self._take_replies(result, request.payload, answered)
                else:
                    answered = self._send_rest(request, result, convert)
            else:
                reply = convert(result) if convert else result
                self.port.counters.count_replies(reply, answered)
                self.replies.append(reply)
            if began is not None:
                counters = self.port.counters
                counters.durations[KINDS[request.kind]].observe(counters.clock() - began, answered)
            if not self._running:  # else the loop in `_run` continues by itself
                self._run()
        except Exception:  # noqa: BLE001 - see _close_after_bug
            self._close_after_bug()

    def _hides_unknown(self) -> bool:
        """Whether the client is better off without its connection than with -UNKNOWN.

        Cluster clients do not know that error, and raise it. A connection that ends means the same
        to them: the command may be done, or not. With that they deal as with any leader that dies.
        """
        return self.client.cluster_aware and self.client.last_command not in _KNOW_UNKNOWN

    def _take_replies(self, reply: bytes, payload: bytes, expected: int) -> int:
        """Take the reply to `expected` commands; those that were not executed come next.

        Returns:
            How many were executed.
        """
        done, replies = part(reply, expected)
        if done:
            self.port.counters.count_replies(replies, done)
            self.replies.append(replies)
        if done < expected:
            if not self._commands:  # `_run` let them go, because they are seldom needed again
                self._commands = PayloadParser().parse_untrusted(payload)
                self._whole, self._next = payload, expected
            # If nothing was executed, the slot of the first command is frozen.
            if not done and not self._wait_for_slot(lambda _: None):
                self.reply(TRY_AGAIN)
                done = 1
            # The first command that was not executed is next; `_step` makes a request of the rest.
            self._step_back(expected - done)
        return done

    def _send_rest(self, request: Request, result: bytes, convert: Convert | None) -> int:
        """Send what was not executed of a request, since a slot is frozen, in a moment.

        Returns:
            How many commands are answered: 0, or 1 if there was enough waiting.
        """
        rest = rest_of(request.payload, result, convert)
        stamp = request.session, request.sequence

        def again(_: Result) -> None:
            self._convert = rest
            self._submit(request.kind, rest.payload, request.flags, 1, stamp)
            self.doubt()  # the rules may have changed since it was allowed

        if self._wait_for_slot(again, rest.payload):
            return 0
        self.reply(rest.given_up())
        return 1
