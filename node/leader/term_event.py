"""What the entry says that opens a leadership term: who leads it, and of the election before it.

The payload of an entry of kind NEW_LEADERSHIP_TERM is a JSON object. So every member's log tells
for ever why there was an election, and how long its winner took, by the winner's own clock: from
when it left the role that it had before, or from its start, to this entry. Failed ballots are in
that time; the time in which nobody had noticed yet that the leader was lost is not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs
import cattrs

from ...errors import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...storage.log.term_table import ForcedRow

__all__ = [
    "APP_VERSION",
    "MAX_EVENT_BYTES",
    "MAX_REASON_CHARACTERS",
    "ForcedQuorum",
    "TermEvent",
    "decode_term_event_untrusted",
    "encode_term_event",
    "forced_at",
]

APP_VERSION: Final = 1
"""The version of the leader's software, as its terms record it."""

MAX_REASON_CHARACTERS: Final = 200
MAX_EVENT_BYTES: Final = 4096

_MAX_ID: Final = 2**31 - 1
_MAX_MS: Final = 2**53


@attrs.frozen
class ForcedQuorum:
    """An operator has forced a quorum where the term begins.

    Args:
        timestamp_ms: when, by the clock of the machine.
        instance_before: instance id of the store that the cluster goes on with, in hexadecimal.
    """

    timestamp_ms: int
    instance_before: str


@attrs.frozen
class TermEvent:
    """What the entry says.

    Args:
        leader_member_id: who leads.
        log_session_id: of its publication of the log.
        term_base_log_position: where the term begins.
        app_version: of the leader's software.
        reason: why the winner has left its role, and so begun the election; in the words that it
            logged then, at most `MAX_REASON_CHARACTERS` of them.
        election_ms: from then to this entry, by the winner's monotonic clock.
        ready_members: how many members had the term in their recording log, the winner included.
        forced: set if an operator has forced a quorum just there.
    """

    leader_member_id: int
    log_session_id: int
    term_base_log_position: int
    app_version: int
    reason: str
    election_ms: int
    ready_members: int
    forced: ForcedQuorum | None = None


def forced_at(forced: Sequence[ForcedRow], base: int) -> ForcedQuorum | None:
    """Return the forced quorum with which a term begins at `base`, None if there is none.

    Args:
        forced: all that the log has, in its order.
        base: where the term begins.
    """
    if not forced or forced[-1].position != base:
        return None
    return ForcedQuorum(forced[-1].timestamp_ms, f"{forced[-1].instance_id:016x}")


def encode_term_event(event: TermEvent) -> bytes:
    """Return the payload of the entry; what it does not have to say is left out."""
    fields = attrs.asdict(event)
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def decode_term_event_untrusted(payload: bytes) -> TermEvent:
    """Decode the payload of an entry that opens a term; its words can be printed as they are.

    Raises:
        WireError: it is none.
    """
    if len(payload) > MAX_EVENT_BYTES:
        raise WireError(f"term event: {len(payload)} bytes, at most {MAX_EVENT_BYTES}")
    try:
        event = cattrs.structure(json.loads(payload), TermEvent)
    except (ValueError, TypeError, OverflowError, RecursionError, cattrs.BaseValidationError) as e:
        raise WireError(f"term event: it makes no sense: {e}") from e
    if not (
        0 <= event.leader_member_id <= _MAX_ID
        and 0 <= event.election_ms <= _MAX_MS
        and 0 <= event.ready_members <= _MAX_ID
        and len(event.reason) <= MAX_REASON_CHARACTERS
    ):
        raise WireError("term event: a number is out of range, or the reason is too long")
    return attrs.evolve(event, reason="".join(map(_printable, event.reason)))


def _printable(character: str) -> str:
    return character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
