"""What an operator's order changes: the next configuration, or nothing if it is fulfilled already.

Pure functions of the configuration and the order. Whether the leader may append that configuration
now is for :mod:`.reconfiguration` to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ....errors import RefusedError
from ...protocol.membership import MemberRole, with_seat, without_seat, without_vote
from .orders import Add, Demote, Move, Promote, Remove

if TYPE_CHECKING:
    from ...protocol.membership import Membership, Seat
    from .orders import MemberOrder


@attrs.frozen
class Plan:
    """What an order changes.

    Args:
        after: the next configuration; None if the order is fulfilled already.
        member: the id of the member that it is about.
        words: what is done, for people.
    """

    after: Membership | None
    member: int
    words: str


def plan(now: Membership, order: MemberOrder) -> Plan:
    """Return what an order changes in a configuration whose voters are named with their stores.

    Raises:
        RefusedError: it can't be done; begins with a word for the reason, and a colon.
    """
    if order.if_version not in {None, now.version}:
        wanted = f"not {order.if_version}"
        raise RefusedError(f"version: the configuration is version {now.version}, {wanted}")
    match order:
        case Add(seat=seat, member_id=named):
            return _add(now, seat, named)
        case Move():
            return _move(now, order)
        case Promote():
            return _promote(now, order)
        case Demote(member_id=member):
            return _demote(now, member)
        case Remove(member_id=member):
            return _remove(now, member)


def _seat(now: Membership, member: int) -> Seat:
    """Return the seat of a member; refuse an order about one that has none."""
    seat = now.seat(member)
    if seat is None:
        known = ", ".join(map(str, now.ids))
        word = "removed" if now.is_removed(member) else "unknown-member"
        raise RefusedError(f"{word}: member {member}: expected one of members {known}")
    return seat


def _add(now: Membership, wanted: Seat, named: int | None) -> Plan:
    # Among all seats before anything is refused: a repeated order must find its own seat.
    for seat in now.seats:
        if (seat.host, seat.ports, seat.role) == (wanted.host, wanted.ports, wanted.role):
            return _add_again(now, seat, wanted)
    _check_replaced(now, wanted)
    # An id that is named may be one that was used: where ids are those of machines, a machine may
    # come back. Votes count by the store's instance, so its former store is not taken for the new.
    member = now.next_id if named is None else named
    if now.seat(member) is not None:
        raise RefusedError(f"id: member {member} has a seat at another address")
    after = with_seat(now, attrs.evolve(wanted, member_id=member))
    return Plan(after, member, f"member {member} has a seat, and joins when it is started")


def _add_again(now: Membership, seat: Seat, wanted: Seat) -> Plan:
    """Return what is left of an order for a member that has its seat already."""
    member = seat.member_id
    words = f"member {member} has a seat"
    # The member to replace may be gone: this one has taken its place.
    replaced = None if wanted.replaces is None else now.seat(wanted.replaces)
    if replaced is None or seat.replaces == replaced.member_id:
        return Plan(None, member, words)
    if seat.name in now.voters or seat.replaces is not None:
        raise RefusedError(
            f"address: member {member} at {seat.host}:{seat.member_port} has a part already; "
            f"expected a new one to replace member {replaced.member_id}"
        )
    _check_replaced(now, wanted)
    after = with_seat(now, attrs.evolve(seat, replaces=replaced.member_id))
    return Plan(after, member, f"{words}, and replaces member {replaced.member_id}")


def _check_replaced(now: Membership, wanted: Seat) -> None:
    """Refuse that a seat replaces a member without a vote, or one that is being replaced."""
    if wanted.replaces is None:
        return
    if not _seat(now, wanted.replaces).is_to_vote:
        raise RefusedError(f"role: member {wanted.replaces} has no vote to take over")
    for seat in now.seats:
        if seat.replaces == wanted.replaces:
            words = f"member {seat.member_id} is to replace member {seat.replaces}"
            raise RefusedError(f"in-flight: {words}")


def _move(now: Membership, order: Move) -> Plan:
    seat = _seat(now, order.member_id)
    moved = order.seat_of(seat)
    words = f"member {seat.member_id} is at {moved.host}:{moved.member_port}"
    return Plan(None if moved == seat else with_seat(now, moved), seat.member_id, words)


def _promote(now: Membership, order: Promote) -> Plan:
    """Note that a member is to become a voter; the leader makes it one once it is caught up."""
    seat = _seat(now, order.member_id)
    member = seat.member_id
    if seat.name in now.voters:
        return Plan(None, member, f"member {member} is a voter")
    role = seat.role if seat.is_to_vote else MemberRole.VOTER
    meant = attrs.evolve(seat, role=role, even=seat.even or order.even)
    words = f"member {member} becomes a voter once it is caught up"
    return Plan(None if meant == seat else with_seat(now, meant), member, words)


def _demote(now: Membership, member: int) -> Plan:
    seat = _seat(now, member)
    if seat.role is MemberRole.WITNESS:
        raise RefusedError(
            f"role: member {member} is a witness, and has no tables to serve as a standby: remove "
            "it, and add another member"
        )
    if now.has_vote(member):
        after = without_vote(now, member, role=MemberRole.STANDBY)
    elif seat.role is not MemberRole.STANDBY:  # one that joins, or a spare
        standby = attrs.evolve(seat, role=MemberRole.STANDBY, priority=0, replaces=None)
        after = with_seat(now, standby)
    else:
        return Plan(None, member, f"member {member} is a standby")
    words = f"member {member} is a standby now"
    return Plan(after, member, words + _of_successor(now, member, "still replaces it"))


def _of_successor(now: Membership, member: int, what: str) -> str:
    """Say what becomes of the member that is to replace one; nothing if none is."""
    found = [seat.member_id for seat in now.seats if seat.replaces == member]
    return f"; member {found[0]} {what}" if found else ""


def _remove(now: Membership, member: int) -> Plan:
    words = f"member {member} is removed"
    if now.is_removed(member):
        return Plan(None, member, words)
    _seat(now, member)
    words += _of_successor(now, member, "was to replace it, and joins all the same")
    if now.has_vote(member):
        return Plan(without_vote(now, member, role=MemberRole.LEAVING), member, words)
    return Plan(without_seat(now, member), member, words)
