"""MULTI's queue, EXEC and WATCH, from the command to the request."""

from typing import Final

from ...node.requests.request import UNSTAMPED, RequestKind, Stamp
from ..access.commands import CHANGES
from ..clients.transaction import Transaction
from ..commands.table import CommandSpec, resolve
from ..protocol import resp
from ..protocol.payload import FROZEN, TRANSACTION, PayloadParser, watch_query
from .cluster_view import redirection
from .connection_commands import woven
from .parking import TRY_AGAIN, hold_back
from .permission import LOGINS, denied
from .slot_check import CROSSED, NO_KEYS, misplaced, slot_of, verdict
from .steps import Steps, answer_error

__all__ = ["execute_transaction", "queue", "watch"]

_RULES_CHANGED: Final = (
    b"NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC "
    b"call; nothing was executed. "
)
_CROSSING: Final = 2
"""Slots that are noted of a transaction: two are too many already."""
_NEVER_QUEUED: Final = CHANGES | LOGINS


def queue(
    transaction: Transaction, spec: CommandSpec, arguments: list[bytes], steps: Steps
) -> None:
    """Queue a command behind MULTI."""
    signposts = steps.port.signposts
    slot = NO_KEYS if signposts is None else slot_of(signposts, spec, arguments)
    # Redirected here already: EXEC has no key, so it could not name a slot.
    moved = verdict(steps.port, steps.client, slot)
    if moved is None or moved == FROZEN:  # by EXEC it may be served
        moved = redirection(steps.port, steps.client, spec, arguments)
    if moved is not None:
        return answer_error(steps, moved)
    if spec.name in _NEVER_QUEUED:
        name = spec.name.replace("|", " ").upper()
        return answer_error(steps, resp.error(f"ERR {name} inside MULTI is not allowed"))
    if transaction.access is None:
        transaction.access = steps.client.access
    if slot != NO_KEYS and len(transaction.slots) < _CROSSING:
        transaction.slots.add(slot)
    encoded = resp.pack(tuple(arguments))
    error = transaction.add(spec, arguments, encoded, steps.port.limits.request_bytes)
    return steps.reply(resp.QUEUED) if error is None else answer_error(steps, error)


def execute_transaction(steps: Steps, stamp: Stamp = UNSTAMPED) -> None:
    """Execute EXEC."""
    client, port, transaction = steps.client, steps.port, steps.client.transaction
    if transaction is None:
        return steps.reply(resp.error("ERR EXEC without MULTI"))
    moved = None
    if transaction.slots and not stamp[0] and not transaction.failed:
        slot = CROSSED if len(transaction.slots) > 1 else min(transaction.slots)
        if (moved := verdict(port, client, slot)) == FROZEN:
            if steps.park():
                return None
            moved = TRY_AGAIN
    # EXEC ends the transaction and the watch, whatever its outcome is.
    client.end_transaction()
    if transaction.failed:
        error = "EXECABORT Transaction discarded because of previous errors."
        return steps.reply(resp.error(error))
    if (error_since := _denied_since(transaction, steps)) is not None:
        return steps.reply(error_since)
    if moved is not None:
        return steps.reply(moved)
    if not (body := transaction.body()):
        return steps.reply(woven(resp.EMPTY_ARRAY, transaction, client, port))
    # Reads alone are a query. With a stamp they go through the log all the same: the reply must
    # be kept for a repetition.
    kind = RequestKind.COMMAND if transaction.writes or stamp[0] else RequestKind.QUERY
    flags = client.flags | TRANSACTION
    return steps.submit(
        kind, body, flags, lambda reply: woven(reply, transaction, client, port), stamp
    )


def _denied_since(transaction: Transaction, steps: Steps) -> bytes | None:
    """Return the error if a queued command is not allowed any more."""
    if transaction.access is None or transaction.access is steps.client.access:
        return None
    queued = PayloadParser().parse_untrusted(b"".join(transaction.encoded))
    for arguments in [*queued, *(local.arguments for local in transaction.local.values())]:
        spec = resolve(arguments)
        assert spec is not None, "it was resolved when it was queued"
        if (text := denied(steps, spec, arguments)) is not None:
            return resp.error(_RULES_CHANGED + text)
    return None


def watch(spec: CommandSpec, arguments: list[bytes], steps: Steps) -> None:
    """Execute WATCH."""
    client, port = steps.client, steps.port
    if client.transaction is not None:
        return steps.reply(resp.error("ERR WATCH inside MULTI is not allowed"))
    if (moved := misplaced(port, client, spec, arguments)) is not None:
        return hold_back(steps, moved)
    if (moved := redirection(port, client, spec, arguments)) is not None:
        return steps.reply(moved)
    keys = client.watched.more(arguments, port.run_bytes)
    if not keys:
        return steps.reply(resp.OK)
    now_ms = port.gateway.now_ms()  # now, not at the reply: the query may be parked
    return steps.submit(
        RequestKind.QUERY,
        watch_query(keys),
        client.flags,
        lambda reply: client.watched.keep(keys, now_ms, reply),
    )
