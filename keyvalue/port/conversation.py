"""The commands of one client and their replies, in order. No sockets here.

The way of a command
    :meth:`Conversation.feed` takes bytes, and the parser makes commands of them. `_run` executes
    commands until one must wait. `_step` decides what the next command is:

    - part of a *run* of keyed commands, which goes to the member as one request (:mod:`.routes`);
    - a command that the connection answers itself (:mod:`.connection_commands`);
    - a special one: MULTI's queue, EXEC, WATCH, WAIT, QUORATE.ONCE, QUORATE.CONTROL, AUTH, HELLO;
    - a change of users (:mod:`.acl_command`).

    A chunk of nothing but plain SETs, or GETs, may skip all that and travel with those of other
    clients (:meth:`Conversation.join`, :mod:`.joined`).

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
    A *cluster-aware* client (:class:`~.client_state.ClientState`) is redirected to the leader.
    During an election the gateway parks its request, as it always does for other clients.
"""

import logging
from collections.abc import Callable
from typing import Final

import trio

from ...errors import OversizedRequestError, RequestError, WireError
from ...node.requests.request import UNSTAMPED, Request, RequestKind, Stamp
from ..access.compiled import GETS, SETS
from ..access.verifier import BUSY
from ..commands.table import CommandSpec, Kind, fault, resolve
from ..limits import AT_ONCE_BYTES
from ..protocol import resp
from ..protocol.parser import NOTHING, CommandParser
from ..protocol.payload import IN_PARTS, PART, TRANSACTION, PayloadParser, part, watch_query
from ..protocol.resp import CommandError
from .acl_command import CHANGES
from .client_command import client_line
from .client_state import SKIP_NEXT, SKIPPING, ClientState, Replies
from .cluster_view import redirection
from .connection_commands import answer, control_words, must_wait, woven
from .login import begin_login
from .once_command import parse_once_untrusted
from .port_state import Outlet, PortState
from .request_errors import error_text
from .routes import AT_ONCE, ATTACKS, KINDS, run_of, uniform_kind
from .transaction import Transaction
from .unfinished_input import estimate_bytes
from .user_change import Result, Then, change_users
from .watching import WatchedKeys

__all__ = ["PATIENCE_S", "Conversation"]

PATIENCE_S: Final = 0.002
"""How long one client's connection commands are answered without a break. Longer, and others wait;
shorter, and a pipeline of them takes more turns."""

_TOO_STALE: Final = resp.error(
    "MASTERDOWN this member has not heard of its leader, so it may not know which users were "
    "removed; ask another member"
)
_RULES_CHANGED: Final = (
    b"NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC "
    b"call; nothing was executed. "
)
_LOGINS: Final = frozenset(("auth", "hello"))
_HELLO_WITHOUT_LOGIN: Final = 2
_NEVER_QUEUED: Final = CHANGES | _LOGINS

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
        "_commands",
        "_convert",
        "_expected",
        "_held",
        "_next",
        "_outlet",
        "_parser",
        "_paused",
        "_port",
        "_request",
        "_running",
        "_then",
        "_whole",
        "client",
        "held_bytes",
        "replies",
    )

    def __init__(
        self, client: ClientState, parser: CommandParser, port: PortState, outlet: Outlet
    ) -> None:
        self.client = client
        self._parser, self._port, self._outlet = parser, port, outlet
        self._commands: list[list[bytes]] = []
        self._whole, self._next = b"", 0  # the chunk's encoding; index of its next command
        self._request: Request | None = None  # under way
        self._expected = 0  # number of its commands
        # Makes the reply from the request's result. In effect an argument of `_submit`: it is set
        # just before the call, because the result may arrive within it. `_on_result` clears it.
        self._convert: Callable[[bytes], bytes] | None = None
        # In its place, the next step of a command that takes several; it also gets errors.
        self._then: Then | None = None
        # `_running` while `_run` is on the stack: a result may arrive within it. `_paused` while
        # commands wait for a later turn, or for the client to read.
        self._running = self._paused = False
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
        client, port = self.client, self._port
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
        self._expected = count
        self._request = request = Request(kind, payload, flags, self._on_result)
        return request

    def end(self) -> None:
        """The client is gone: withdraw its request if it was not sent yet, and drop the rest."""
        self.client.closing = True
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
        _log.exception("client %d: its connection is closed", self.client.client_id)
        self._outlet.close()

    def _load(self, data: bytes) -> None:
        self._commands, self._whole = self._parser.take_untrusted(data)
        self._next = 0
        self._port.counters.commands += len(self._commands)

    def _refill(self) -> bool:
        """Parse the input that was held; False if there is nothing to execute."""
        # Everything before the broken bytes is answered by now: the error is the last reply.
        if self._parser.failure is not None:
            self._port.counters.protocol_errors += isinstance(self._parser.failure, WireError)
            self.replies.append(resp.error(f"ERR {self._parser.failure}"))
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
                if pause_at is None:
                    pause_at = now + PATIENCE_S
                elif now > pause_at:
                    self._paused = True
                    self._port.resume_later(self.resume)
                    break
        self._running = False
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
        at, client, gateway = self._next, self.client, self._port.gateway
        elsewhere = client.cluster_aware and not gateway.topology.is_leader
        # CLIENT REPLY SKIP is for one command, so that one must not be in a run. `skips` also moves
        # its state on, so it is called once per command.
        alone = client.quiet and client.skips()
        if client.transaction is None and not alone and (not elsewhere or client.read_only):
            end, payload, kind = len(self._commands), self._whole, None
            # Commands that name an absent watched key ask about it as well: they go alone.
            apart = client.watched.absent
            # A chunk is usually one run: then its bytes are the payload, and nothing is encoded.
            free = client.access.open
            if at == 0 and len(payload) <= self._port.run_bytes and not apart and free:
                kind = uniform_kind(self._commands)
            # If the leader is elsewhere, mixed commands are not cut into runs: each write among
            # them gets its own redirection.
            if kind is None and not elsewhere:
                permits = None if free else self._permits
                encoded, kind = run_of(self._commands, at, self._port.run_bytes, apart, permits)
                end, payload = at + len(encoded), b"".join(encoded)
            if kind is not None and (not elsewhere or kind is RequestKind.QUERY):
                client.last_command = self._commands[end - 1][0]
                self._next = end
                flags = client.flags | IN_PARTS if end - at > 1 else client.flags
                if elsewhere:
                    # READONLY on a follower: answered from its own state, without the leader
                    if not self._port.access.may_read_stale(gateway, self._port.now):
                        self.replies.append(_TOO_STALE * (end - at))
                        return False
                    self._take_replies(gateway.stale_query(payload, flags), payload, end - at)
                    return False
                self._submit(kind, payload, flags, end - at)
                return True
        arguments = self._commands[at]
        self._next = at + 1
        self._single(arguments)
        return False

    def _single(self, arguments: list[bytes]) -> None:
        """Execute one command that is not part of a run."""
        client = self.client
        problem = fault(arguments)
        spec = resolve(arguments)
        client.last_command = b"" if spec is None else spec.name.encode()
        if problem is not None or spec is None:
            if spec is not None and spec.name == "exec":  # as in Redis, a wrong EXEC ends MULTI
                client.watched, client.transaction = WatchedKeys(), None
                problem = b"EXECABORT Transaction discarded because of: " + (problem or b"")[4:]
            self._answer_error(resp.error(problem or b"ERR"))
            if arguments[0].lower() in ATTACKS:
                client.closing = True  # before the body of the HTTP request is taken for commands
        elif self._must_know_users(spec, arguments):
            self._wait_for_users()
        elif (denied := self._denied(spec, arguments)) is not None:
            self._refuse_denied(spec, denied)
        elif client.transaction is not None and spec.name not in AT_ONCE:
            self._queue(client.transaction, spec, arguments)
        elif spec.kind is Kind.CONNECTION:
            self._local(spec, arguments)
        elif spec.name in CHANGES:
            change_users(arguments, self.client, self._port, self)
        else:
            self._keyed(spec, arguments)

    def _permits(self, arguments: list[bytes]) -> bool:
        """Whether the user may run a command, which is a part of a run."""
        spec = resolve(arguments)
        return spec is not None and self.client.access.denial(spec, arguments) is None

    def _must_know_users(self, spec: CommandSpec, arguments: list[bytes]) -> bool:
        """Whether a command waits until the users are known; see `access.directory`."""
        if self._port.access.users.known:
            return False
        if spec.name in _LOGINS:
            return len(arguments) > _HELLO_WITHOUT_LOGIN or spec.name == "auth"
        # A cluster that is not founded has no leader, and no users.
        if spec.name == "quorate.control" and arguments[1].lower() == b"found":
            return False
        return self.client.access.denial(spec, arguments) is not None

    def _wait_for_users(self) -> None:
        """Wait until the users are known, and then execute the present command."""
        self._next -= 1
        if self.client.quiet == SKIPPING:  # it begins a second time then
            self.client.quiet = SKIP_NEXT

        def go_on(result: Result) -> None:
            if not isinstance(result, bytes):  # no leader was found in time
                self._next += 1
                self._answer_error(resp.error(error_text(result)))

        self._then = go_on
        self._request = request = Request(RequestKind.CONTROL, b"", 0, self._on_result)
        self._port.access.wait_for_users(lambda result: request.done(result))  # noqa: PLW0108

    def _denied(self, spec: CommandSpec, arguments: list[bytes]) -> bytes | None:
        """Return the text of the error if the user may not run a command."""
        client, port = self.client, self._port
        denial = client.access.denial(spec, arguments)
        # See `_must_know_users`, which lets this one pass.
        if denial is None or (denial.what == b"quorate.control" and not port.access.users.known):
            return None
        return port.access.deny(
            client, denial, line=lambda: client_line(client, port), now_ms=port.gateway.now_ms()
        )

    def _refuse_denied(self, spec: CommandSpec, text: bytes) -> None:
        """Answer a command that the user may not run."""
        if spec.name == "exec" and self.client.transaction is not None:
            self.client.watched, self.client.transaction = WatchedKeys(), None
            text = b"EXECABORT Transaction discarded because of: " + text
        self._answer_error(resp.error(text))

    def _log_in(self, arguments: list[bytes]) -> None:
        """Execute AUTH or HELLO."""
        login = begin_login(arguments, self.client, self._port)
        if isinstance(login, bytes):
            self.replies.append(login)
        else:
            self.offload(login.work, lambda result: self.replies.append(login.finish(result)))

    # --- commands of several steps

    def offload(self, work: Callable[[], bytes], then: Then) -> None:
        """Have work done off the event loop; see `Steps`."""
        self._then = then
        # It is never submitted; but a client that leaves cancels it like any other.
        self._request = request = Request(RequestKind.CONTROL, b"", 0, self._on_result)

        def done(result: bytes) -> None:
            request.done(result)  # looked up now: a client that has left has replaced it

        if not self._port.access.verifier.submit(work, done):
            self._request = self._then = None
            then(BUSY)

    def send(self, kind: RequestKind, payload: bytes, then: Then) -> None:
        """Send a request; see `Steps`."""
        self._then = then
        self._submit(kind, payload, 0, 1)

    def reply(self, reply: bytes) -> None:
        """Answer a command of several steps."""
        self.replies.append(reply)

    def _answer_error(self, error: bytes) -> None:
        """Answer one command with an error; unlike `refuse`, which gives up all input."""
        # As in Redis, an error while queueing makes EXEC fail.
        if self.client.transaction is not None:
            self.client.transaction.fail()
        self.replies.append(error)

    def _local(self, spec: CommandSpec, arguments: list[bytes]) -> None:
        """Execute a command of kind CONNECTION; some of them send a request."""
        match spec.name:
            case "exec":
                self._exec()
            case "auth" | "hello":
                self._log_in(arguments)
            case "watch" | "quorate.control" | "quorate.once":
                try:
                    self._special(spec, arguments)
                except CommandError as trouble:
                    self._answer_error(trouble.reply)
            # WAIT waits at the leader, which alone knows what each follower has.
            case "wait" if (words := must_wait(arguments, self.client, self._port)) is not None:
                self._convert = lambda reply: resp.integer(int(reply))
                self._submit(RequestKind.CONTROL, words, 0, 1)
            case _:
                self.replies.append(answer(spec, arguments, self.client, self._port))

    def _special(self, spec: CommandSpec, arguments: list[bytes]) -> None:
        """Execute WATCH, QUORATE.CONTROL or QUORATE.ONCE.

        Raises:
            CommandError: before anything was sent.
        """
        if spec.name == "watch":
            self._watch(spec, arguments)
        elif spec.name == "quorate.control":
            self._control(control_words(arguments, self.client))
        else:
            once = parse_once_untrusted(arguments, self.client.transaction)
            # The user needs both: QUORATE.ONCE, and the command that it carries.
            if (denied := self._denied(once.spec, once.arguments)) is not None:
                raise CommandError(resp.error(denied))
            if once.is_exec:
                self._exec(once.stamp)
            else:
                self._keyed(once.spec, once.arguments, once.stamp)

    def _control(self, words: bytes) -> None:
        """Send an operator's request."""
        # Shown again and again by those who wait for a change: it is no change itself.
        looks = words == b"member list"
        done = None if looks else self._port.access.audit.operator(self.client, words)

        def answer(result: Result) -> None:
            text = error_text(result) if not isinstance(result, bytes) else ""
            if done is not None:
                done(text or "ok")
            # What was done is plain text.
            self.replies.append(
                resp.simple(result) if isinstance(result, bytes) else resp.error(text)
            )

        self.send(RequestKind.CONTROL, words, answer)

    def _keyed(self, spec: CommandSpec, arguments: list[bytes], stamp: Stamp = UNSTAMPED) -> None:
        """Execute one read or write, or redirect the client to the leader."""
        client, gateway = self.client, self._port.gateway
        encoded, convert = resp.pack(tuple(arguments)), None
        # A stamped command cannot ask about absent keys: its reply is kept, and a repetition
        # through another connection must get the same one. So these keys count as changed.
        if stamp[0]:
            client.watched.touch(arguments)
        elif client.watched.absent:
            encoded, convert = client.watched.ask_along(spec, arguments, encoded)
        if client.cluster_aware and not gateway.topology.is_leader:
            if client.read_only and spec.kind is Kind.READ:
                if not self._port.access.may_read_stale(gateway, self._port.now):
                    return self.replies.append(_TOO_STALE)
                reply = gateway.stale_query(encoded, client.flags)
                return self.replies.append(convert(reply) if convert else reply)
            if (moved := redirection(self._port, client, spec, arguments)) is not None:
                return self.replies.append(moved)
        self._convert = convert
        return self._submit(KINDS[spec.kind], encoded, client.flags, 1, stamp)

    def _submit(
        self, kind: RequestKind, payload: bytes, flags: int, count: int, stamp: Stamp = UNSTAMPED
    ) -> None:
        # Set before `submit`, which may deliver the result at once.
        self._expected = count
        self._request = request = Request(kind, payload, flags, self._on_result)
        request.session, request.sequence = stamp
        request.principal = self.client.principal
        self._port.submit(request)

    def _on_result(self, result: bytes | RequestError) -> None:
        """Take the result of the request; may be called from within `submit`. Never raises."""
        request, self._request = self._request, None
        convert, self._convert = self._convert, None
        then, self._then = self._then, None
        if request is None:
            return  # the client is gone
        try:
            if then is not None:
                then(result)
            elif not isinstance(result, bytes):
                # One error for each command of the request: clients count replies.
                self.replies.append(resp.error(error_text(result)) * self._expected)
            elif (reply := convert(result) if convert else result).startswith(PART):
                self._take_replies(reply, request.payload, self._expected)
            else:
                self.replies.append(reply)
            if not self._running:  # else the loop in `_run` continues by itself
                self._run()
        except Exception:  # noqa: BLE001 - see _close_after_bug
            self._close_after_bug()

    def _take_replies(self, reply: bytes, payload: bytes, expected: int) -> None:
        """Take the reply to `expected` commands; those that were not executed come next."""
        done, replies = part(reply, expected)
        self.replies.append(replies)
        # Step back to the first command that was not executed; `_step` makes a request of the rest.
        if done < expected:
            if not self._commands:  # `_run` let them go, because they are seldom needed again
                self._commands = PayloadParser().parse_untrusted(payload)
                self._whole, self._next = payload, expected
            self._next -= expected - done

    def _queue(self, transaction: Transaction, spec: CommandSpec, arguments: list[bytes]) -> None:
        # Redirected here already: EXEC has no key, so it could not name a slot.
        if (moved := redirection(self._port, self.client, spec, arguments)) is not None:
            return self._answer_error(moved)
        if spec.name in _NEVER_QUEUED:
            name = spec.name.replace("|", " ").upper()
            return self._answer_error(resp.error(f"ERR {name} inside MULTI is not allowed"))
        if transaction.access is None:
            transaction.access = self.client.access
        encoded = resp.pack(tuple(arguments))
        error = transaction.add(spec, arguments, encoded, self._port.limits.request_bytes)
        return self.replies.append(resp.QUEUED) if error is None else self._answer_error(error)

    def _exec(self, stamp: Stamp = UNSTAMPED) -> None:
        client, transaction = self.client, self.client.transaction
        if transaction is None:
            return self.replies.append(resp.error("ERR EXEC without MULTI"))
        # EXEC ends the transaction and the watch, whatever its outcome is.
        client.watched, client.transaction = WatchedKeys(), None
        if transaction.failed:
            error = "EXECABORT Transaction discarded because of previous errors."
            return self.replies.append(resp.error(error))
        if (denied := self._denied_since(transaction)) is not None:
            return self.replies.append(denied)
        if not (body := transaction.body()):
            return self.replies.append(woven(resp.EMPTY_ARRAY, transaction, client, self._port))
        self._convert = lambda reply: woven(reply, transaction, client, self._port)
        # Reads alone are a query. With a stamp they go through the log all the same: the reply must
        # be kept for a repetition.
        kind = RequestKind.COMMAND if transaction.writes or stamp[0] else RequestKind.QUERY
        return self._submit(kind, body, client.flags | TRANSACTION, 1, stamp)

    def _denied_since(self, transaction: Transaction) -> bytes | None:
        """Return the error if a queued command is not allowed any more."""
        if transaction.access is None or transaction.access is self.client.access:
            return None
        queued = PayloadParser().parse_untrusted(b"".join(transaction.encoded))
        for arguments in [*queued, *(local.arguments for local in transaction.local.values())]:
            spec = resolve(arguments)
            assert spec is not None, "it was resolved when it was queued"
            if (text := self._denied(spec, arguments)) is not None:
                return resp.error(_RULES_CHANGED + text)
        return None

    def _watch(self, spec: CommandSpec, arguments: list[bytes]) -> None:
        client = self.client
        if client.transaction is not None:
            return self.replies.append(resp.error("ERR WATCH inside MULTI is not allowed"))
        if (moved := redirection(self._port, client, spec, arguments)) is not None:
            return self.replies.append(moved)
        keys = client.watched.more(arguments, self._port.run_bytes)
        if not keys:
            return self.replies.append(resp.OK)
        now_ms = self._port.gateway.now_ms()  # now, not at the reply: the query may be parked
        self._convert = lambda reply: client.watched.keep(keys, now_ms, reply)
        return self._submit(RequestKind.QUERY, watch_query(keys), client.flags, 1)
