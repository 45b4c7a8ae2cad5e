"""The entry that opens a leadership term: which member leads it, and how it was elected.

The payload of an entry of kind NEW_LEADERSHIP_TERM is a JSON object. So every member's log records
for ever why there was an election and how long its winner took. That time is measured by the
winner's clock, from the moment when it left its former role, or started, to this entry. Failed
ballots are included; the time in which the loss of the leader was not noticed is not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import attrs
import cattrs

from ...errors import WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...storage.rows.term_table import ForcedRow

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
"""Characters of the reason that are recorded. If smaller, reasons are cut off; if larger, the event
may exceed `MAX_EVENT_BYTES`."""
MAX_EVENT_BYTES: Final = 4096
"""The longest payload that is decoded. If smaller, events of newer versions are refused; if larger,
a damaged entry costs more."""

_MAX_ID: Final = 2**31 - 1
_MAX_MS: Final = 2**53


@attrs.frozen
class ForcedQuorum:
    """An operator forced a quorum where the term begins.

    Args:
        timestamp_ms: when, by the clock of the machine, milliseconds since the epoch.
        instance_before: instance id of the store with which the cluster continues, in hexadecimal.
    """

    timestamp_ms: int
    instance_before: str


@attrs.frozen
class TermEvent:
    """What the entry records.

    Args:
        leader_member_id: the leader.
        log_session_id: names its live log.
        term_base_log_position: where the term begins.
        app_version: version of the leader's software.
        reason: why the winner left its role and so began the election, as it logged that; at most
            `MAX_REASON_CHARACTERS`.
        election_ms: from then to this entry, in milliseconds of the winner's monotonic clock.
        ready_members: how many members, the winner included, had the term in their recording log.
        forced: set if an operator forced a quorum at this position.
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
    # Only the first term after it begins just there; later terms are ordinary ones.
    if not forced or forced[-1].position != base:
        return None
    return ForcedQuorum(forced[-1].timestamp_ms, f"{forced[-1].instance_id:016x}")


def encode_term_event(event: TermEvent) -> bytes:
    """Return the payload of the entry; fields that are None are omitted."""
    fields = attrs.asdict(event)
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


def decode_term_event_untrusted(payload: bytes) -> TermEvent:
    """Decode the payload of an entry that opens a term; its texts are safe to print.

    Raises:
        WireError: it is no such payload.
    """
    # Before it is parsed: the bytes may come from a damaged or foreign file.
    if len(payload) > MAX_EVENT_BYTES:
        raise WireError(f"term event: {len(payload)} bytes, at most {MAX_EVENT_BYTES}")
    try:
        event = cattrs.structure(json.loads(payload), TermEvent)
    # All that JSON and its structuring can raise for bytes of any kind, such as a nest of lists.
    except (ValueError, TypeError, OverflowError, RecursionError, cattrs.BaseValidationError) as e:
        raise WireError(f"term event: not decodable: {e}") from e
    if not (
        0 <= event.leader_member_id <= _MAX_ID
        and 0 <= event.election_ms <= _MAX_MS
        and 0 <= event.ready_members <= _MAX_ID
        and len(event.reason) <= MAX_REASON_CHARACTERS
    ):
        raise WireError("term event: a number is out of range, or the reason is too long")
    # The reason is printed on terminals, which control characters could command.
    return attrs.evolve(event, reason="".join(map(_printable, event.reason)))


def _printable(character: str) -> str:
    return character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
