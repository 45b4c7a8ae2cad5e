"""What becomes of one command that is not part of a run.

It is checked in this order: known and well-formed, users known, allowed, queued behind MULTI. Then
it is answered here, or sent as a request of its own.
"""

from typing import Final

import trio

from ...errors import RefusedError
from ...node.requests.gateway import OWN_ORDERS
from ...node.requests.request import UNSTAMPED, RequestKind, Stamp
from ..access.commands import CHANGES
from ..access.verifier import BUSY
from ..clients.request_errors import error_text
from ..commands.table import CommandSpec, Kind, fault, resolve
from ..protocol import resp
from ..protocol.payload import PART
from ..protocol.resp import CommandError
from .cluster_view import redirection
from .connection_commands import answer, control_words, must_wait
from .login import WRONG_PASSWORD, begin_login
from .once_command import parse_once_untrusted
from .parking import hold_back
from .permission import denied, must_know_users, refuse_denied
from .request_command import WholeRequest, parse_request_untrusted
from .routes import AT_ONCE, ATTACKS, KINDS
from .slot_check import misplaced
from .steps import Result, Steps, refuse
from .transactions import execute_transaction, queue, watch
from .user_change import change_users
from .watch_command import unwatch_changes, watch_changes

__all__ = ["execute"]

_SPECIAL: Final = frozenset(
    {
        *("watch", "quorate.watch", "quorate.unwatch"),
        *("quorate.control", "quorate.once", "quorate.request"),
    }
)
"""Commands of the connection that send a request, or may be refused."""


def execute(arguments: list[bytes], steps: Steps) -> None:
    """Execute one command: answer it, or send a request."""
    client = steps.client
    problem = fault(arguments)
    spec = resolve(arguments)
    client.last_command = b"" if spec is None else spec.name.encode()
    if problem is not None or spec is None:
        if spec is not None and spec.name == "exec":  # as in Redis, a wrong EXEC ends MULTI
            problem = b"EXECABORT Transaction discarded because of: " + (problem or b"")[4:]
        refuse(steps, arguments, resp.error(problem or b"ERR"))
        if arguments[0].lower() in ATTACKS:
            client.closing = True  # before the body of the HTTP request is taken for commands
    elif must_know_users(steps, spec, arguments):
        steps.wait_for_users()
    elif (text := denied(steps, spec, arguments)) is not None:
        refuse_denied(steps, spec, arguments, text)
    elif client.transaction is not None and spec.name not in AT_ONCE:
        queue(client.transaction, spec, arguments, steps)
    elif spec.kind is Kind.CONNECTION:
        _local(spec, arguments, steps)
    elif spec.name in CHANGES:
        change_users(arguments, steps)
    else:
        _keyed(spec, arguments, steps)


def _local(spec: CommandSpec, arguments: list[bytes], steps: Steps) -> None:
    """Execute a command of kind CONNECTION; some of them send a request."""
    client, port = steps.client, steps.port
    match spec.name:
        case "exec":
            execute_transaction(steps)
        case "auth" | "hello":
            _log_in(arguments, steps)
        case name if name in _SPECIAL:
            try:
                _special(spec, arguments, steps)
            except CommandError as trouble:
                refuse(steps, arguments, trouble.reply)
        # WAIT waits at the leader, which alone knows what each follower has.
        case "wait" if (words := must_wait(arguments, client, port)) is not None:
            steps.submit(RequestKind.CONTROL, words, convert=lambda reply: resp.integer(int(reply)))
        case _:
            steps.reply(answer(spec, arguments, client, port))


def _log_in(arguments: list[bytes], steps: Steps) -> None:
    """Execute AUTH or HELLO."""
    login = begin_login(arguments, steps.client, steps.port)

    def end(reply: bytes) -> None:
        if reply not in (WRONG_PASSWORD, BUSY):
            steps.reply(reply)
            return
        # It waits here, and holds up nobody else.
        seconds = steps.port.access.penalties.failed(steps.client.peer, trio.current_time())
        steps.wait(seconds, lambda _: steps.reply(reply))

    if isinstance(login, bytes):
        end(login)
    else:
        steps.offload(login.work, lambda result: end(login.finish(result)))


def _special(spec: CommandSpec, arguments: list[bytes], steps: Steps) -> None:
    """Execute one of `_SPECIAL`.

    Raises:
        CommandError: before anything was sent.
    """
    if spec.name == "watch":
        watch(spec, arguments, steps)
    elif spec.name == "quorate.watch":
        watch_changes(arguments, steps)
    elif spec.name == "quorate.unwatch":
        unwatch_changes(arguments, steps)
    elif spec.name == "quorate.control":
        _control(control_words(arguments, steps.client), steps)
    elif spec.name == "quorate.request":
        _request(arguments, steps)
    else:
        once = parse_once_untrusted(arguments, steps.client.transaction)
        # The user needs both: QUORATE.ONCE, and the command that it carries.
        if (text := denied(steps, once.spec, once.arguments)) is not None:
            raise CommandError(resp.error(text))
        if once.is_exec:
            execute_transaction(steps, once.stamp)
        else:
            _keyed(once.spec, once.arguments, steps, once.stamp)


def _request(arguments: list[bytes], steps: Steps) -> None:
    """Execute QUORATE.REQUEST.

    Raises:
        CommandError: before anything was sent.
    """
    client, port, gateway = steps.client, steps.port, steps.port.gateway
    if client.transaction is not None:
        raise CommandError(resp.error("ERR QUORATE.REQUEST inside MULTI is not allowed"))
    request = parse_request_untrusted(arguments)
    for spec, words in () if client.access.open else request.specs():
        if must_know_users(steps, spec, words):
            return steps.wait_for_users()
        if (text := denied(steps, spec, words)) is not None:
            raise CommandError(resp.error(text))
    for words in request.commands if client.watched.absent else ():
        client.watched.touch(words)
    port.counters.count_commands(request.commands)
    flags, convert = client.flags | request.flags, request.convert()
    elsewhere = client.cluster_aware and not gateway.topology.is_leader
    if elsewhere and (reply := _answer_elsewhere(request, flags, steps)) is not None:
        return steps.reply(reply)
    return steps.submit(request.kind, request.payload, flags, convert, request.stamp)


def _answer_elsewhere(request: WholeRequest, flags: int, steps: Steps) -> bytes | None:
    """Return what a member that does not lead replies to a request; None if it passes it on."""
    client, port = steps.client, steps.port
    if client.read_only and request.kind is RequestKind.QUERY:
        stale = port.gateway.stale_query(request.payload, flags)
        if not stale.startswith(PART):  # else a slot is frozen, and the leader knows more
            port.counters.stale_reads += len(request.commands)
            return request.convert()(stale)
    for spec, words in request.specs():
        if (moved := redirection(port, client, spec, words)) is not None:
            return moved
    return None


def _control(words: bytes, steps: Steps) -> None:
    """Send an operator's request, or do it here."""
    # Shown again and again by those who wait for a change: it is no change itself.
    looks = words == b"member list"
    done = None if looks else steps.port.access.audit.operator(steps.client, words)

    def end(result: Result) -> None:
        text = error_text(result) if not isinstance(result, bytes) else ""
        if done is not None:
            done(text or "ok")
        # What was done is plain text.
        steps.reply(resp.simple(result) if isinstance(result, bytes) else resp.error(text))

    if words.split()[:1] == [OWN_ORDERS.encode()]:
        try:
            end(steps.port.gateway.own_order(words))
        except RefusedError as refusal:
            end(refusal)
    else:
        steps.send(RequestKind.CONTROL, words, end)


def _keyed(
    spec: CommandSpec, arguments: list[bytes], steps: Steps, stamp: Stamp = UNSTAMPED
) -> None:
    """Execute one read or write, or redirect the client to the leader."""
    client, port, gateway = steps.client, steps.port, steps.port.gateway
    if not stamp[0] and (moved := misplaced(port, client, spec, arguments)) is not None:
        return hold_back(steps, moved)
    encoded, convert = resp.pack(tuple(arguments)), None
    # A stamped command cannot ask about absent keys: its reply is kept, and a repetition
    # through another connection must get the same one. So these keys count as changed.
    if stamp[0]:
        client.watched.touch(arguments)
    elif client.watched.absent:
        encoded, convert = client.watched.ask_along(spec, arguments, encoded)
    if client.cluster_aware and not gateway.topology.is_leader:
        if client.read_only and spec.kind is Kind.READ:
            port.counters.stale_reads += 1
            reply = gateway.stale_query(encoded, client.flags)
            return steps.reply(convert(reply) if convert else reply)
        if (moved := redirection(port, client, spec, arguments)) is not None:
            return steps.reply(moved)
    return steps.submit(KINDS[spec.kind], encoded, client.flags, convert, stamp)
