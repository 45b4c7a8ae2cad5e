"""Checks the configurations of the members that a log holds, one after the other.

They are few, so they are checked here and not by a query. Two rules hold between a configuration
and the next one:

- Its version is the next number. The first one of a cluster has version 1.
- Each quorum of one shares a voter with each quorum of the other, so no two decisions pass each
  other. The voters therefore change only through a joint configuration. It has the set before as
  `outgoing` and the set after as `voters`, and a majority of each decides.

A restored cluster has the log of an older one below its *floor*, with configurations that mean
nothing any more. In a log whose beginning is pruned, the first configuration has nothing to be
compared with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...errors import WireError
from ...node.protocol.membership import decode_membership_untrusted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ...node.protocol.membership import Membership
    from ...node.protocol.quorum import VoterId

__all__ = ["Configured", "Wrong", "decode", "wrong_configurations"]


@attrs.frozen
class Configured:
    """A configuration, and where its batch begins; None if the entry can't be read."""

    term: int
    position: int
    membership: Membership | None


@attrs.frozen
class Wrong:
    """What is wrong with a configuration, in words; `kind` is that of a finding."""

    kind: str
    term: int
    position: int
    text: str


def decode(entries: Iterable[tuple[int, int, bytes]]) -> Iterator[Configured]:
    """Decode entries of membership, given as term, position and payload.

    Admissions, as older versions made them, are left out.
    """
    for term, position, payload in entries:
        try:
            found = decode_membership_untrusted(payload)
        except WireError:
            yield Configured(term, position, None)
        else:
            if found is not None:
                yield Configured(term, position, found)


def wrong_configurations(log: Sequence[Configured], *, start: int) -> Iterator[Wrong]:
    """Check the configurations of one log.

    Args:
        log: ascending by position.
        start: first position of the log that is kept.

    Yields:
        Violations of kind "configuration" (an entry or its version) and "quorum".
    """
    before: Membership | None = None
    at, known_from = 0, start
    for one in log:
        now = one.membership
        if now is None:
            yield _wrong(one, "configuration", "its entry of membership can't be read")
            before, known_from = None, one.position + 1
            continue
        if at < now.floor.position:
            before = None
        # Without the log from the floor on, an earlier configuration may be missing.
        first = 1 if known_from <= now.floor.position else now.version
        expected = first if before is None else before.version + 1
        if now.version != expected:
            text = f"its version is {now.version}, expected {expected}"
            yield _wrong(one, "configuration", text)
        if before is not None and (words := _apart(before, now)):
            yield _wrong(one, "quorum", words)
        before, at = now, one.position


def _apart(before: Membership, now: Membership) -> str:
    """Return how the quorums of two configurations may miss each other; empty if they can't."""
    if before.joint and now.joint:
        return "it begins a change of the voters while another one is under way"
    if now.joint:
        if set(now.outgoing) != set(before.voters):
            return f"its outgoing voters are {_named(now.outgoing)}, before they were " + _named(
                before.voters
            )
        return ""
    if set(now.voters) == set(before.voters):
        return ""
    how = "another set than was joint" if before.joint else "without a joint configuration"
    return f"the voters {_named(before.voters)} become {_named(now.voters)}, {how}"


def _named(voters: Iterable[VoterId]) -> str:
    return " ".join(f"{member}/{instance:016x}" for member, instance in sorted(voters)) or "none"


def _wrong(one: Configured, kind: str, text: str) -> Wrong:
    return Wrong(kind, one.term, one.position, text)
