"""The configurations in a recording, each in one line for people.

In the log a configuration is the whole list of the members, as JSON of some kilobytes. An operator
asks two things of it: who votes, and what has changed since the one before.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ..errors import QuorateError, WireError
from ..node.config.config import load_config
from ..node.protocol.membership import (
    MemberRole,
    Membership,
    Seat,
    decode_membership_untrusted,
)
from ..node.protocol.quorum import VoterId
from ..transport import Address

__all__ = ["Recorded", "is_witness", "lines_of"]


class Recorded(Protocol):
    """A configuration as `quorate.storage.tools.describe` returns it."""

    @property
    def term(self) -> int:
        """The term of its batch."""
        ...

    @property
    def position(self) -> int:
        """The end of its batch."""
        ...

    @property
    def text(self) -> str:
        """Its payload."""
        ...


def lines_of(rows: Sequence[Recorded], floor: int) -> Iterator[str]:
    """Yield a line for each configuration.

    Args:
        rows: ascending.
        floor: configurations up to this position are of the history before a restore, or before a
            quorum was forced; 0 without either.
    """
    before: Membership | None = None
    was_old = False
    for row in rows:
        where = f"up to {row.position:,} in term {row.term}"
        if row.position <= floor:
            where += ", of the history before"
        elif was_old:
            before, was_old = None, False
        now, words = _decoded(row.text)
        if now is None:
            yield f"Configuration {where}: {words}"
            continue
        changes = "".join(f"; {change}" for change in _changes(before, now))
        yield f"Configuration {now.version}, {where}: {_voters(before, now)}{changes}"
        before, was_old = now, row.position <= floor


def _decoded(text: str) -> tuple[Membership | None, str]:
    try:
        found = decode_membership_untrusted(text.encode())
    except WireError as error:
        return None, f"can't be read ({error})"
    return found, "a store was admitted, by a version of quorate that changes no members"


def _voters(before: Membership | None, now: Membership) -> str:
    """Say which members vote, and which ones did."""
    voters = _ids(now.voters)
    if now.joint:
        return f"the voters change from {_ids(now.outgoing)} to {voters}"
    were = "" if before is None or before.joint else _ids(before.voters)
    return f"voters {voters}" + (f" (were {were})" if were not in {"", voters} else "")


def _ids(voters: Iterable[VoterId]) -> str:
    return ", ".join(str(voter.member_id) for voter in voters)


def _changes(before: Membership | None, now: Membership) -> Iterator[str]:
    """Yield what has changed; without a configuration before, what else there is."""
    for seat in now.seats:
        old = None if before is None else before.seat(seat.member_id)
        yield from _changes_of(seat, old, now, is_first=before is None)
    if before is not None:
        for gone in sorted({*before.ids} - {*now.ids}):
            yield f"member {gone} is removed"


def _changes_of(seat: Seat, old: Seat | None, now: Membership, *, is_first: bool) -> Iterator[str]:
    name, at = f"member {seat.member_id}", str(Address(seat.host, seat.member_port))
    if old is None:
        if is_first and seat.name in now.voters:
            return  # it is in the list of voters already
        what = "joins as" if seat.is_to_vote else "is"
        yield f"{name} {what} a {seat.role.value} at {at}{_replaces(seat)}"
        return
    if (seat.host, seat.ports) != (old.host, old.ports):
        yield f"{name} has moved to {at}"
    if seat.instance != old.instance:
        yield f"{name} has the store {seat.instance:016x}"
    if seat.role is not old.role and seat.role is not MemberRole.LEAVING:
        yield f"{name} is to be a {seat.role.value}{_replaces(seat)}"


def _replaces(seat: Seat) -> str:
    return "" if seat.replaces is None else f" in the place of member {seat.replaces}"


def is_witness(directory: Path, rows: Sequence[Recorded], member_id: int) -> bool:
    """Say whether the member in a directory is a witness.

    Args:
        directory: of the member.
        rows: the configurations in its log.
        member_id: its id.
    """
    if rows:
        newest = _decoded(rows[-1].text)[0]
        if newest is not None and (seat := newest.seat(member_id)) is not None:
            return seat.role is MemberRole.WITNESS
    try:  # a founder is one by its file
        return load_config(directory / "node.toml").own.witness
    except (OSError, QuorateError):
        return False
