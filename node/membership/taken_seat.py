"""How a store learns that another one has its member's seat; :mod:`.removal` ends it then.

Two processes may run with the id of one member: its file was copied, or an old disk was put back.
The naive way is that each claims the seat whenever it sees that the other one has it. Then they
take turns, and each turn is an entry of the log and perhaps a change of the voters.

So a store claims the seat of a voter only while it is the voter, or if nobody else can have a claim
(`MemberState.needs_claim`). One that has lost its vote by what is applied ends here. The other one
stays, whichever that is: only an operator knows which machine is the right one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...storage import VotingRight
from ..protocol.membership import UNKNOWN_STORE
from ..protocol.quorum import ANY_STORE, VoterId

if TYPE_CHECKING:
    from ...storage import Store
    from ..configurations import Configurations
    from ..protocol.membership import Membership


def why_lost(store: Store, configurations: Configurations, applied: int) -> str:
    """Return in words that our seat is another store's; empty if it is not.

    Args:
        store: ours.
        configurations: those in our log.
        applied: up to where our service has applied the log.
    """
    own = store.identity
    if store.voting_status.kind is not VotingRight.VOTER:
        return ""
    name = VoterId(own.member_id, own.instance_id)
    # After a restart our service may have applied less than before. Then the entry that gave us the
    # seat is still to come.
    if not all(is_taken(each, name) for each in configurations.since(applied)):
        return ""
    now = configurations.at(applied)
    seat = now.seat(own.member_id)
    assert seat is not None
    # A store that was admitted before configurations had stores is newer than the founder's, and
    # claims its seat. But not again if it had it.
    founder = (own.member_id, seat.instance) in now.founders
    if founder and not any(_had(each, name) for each in configurations.until(applied)):
        return ""
    return (
        f"member {own.member_id}: its seat belongs to the store {seat.instance:016x} by version "
        f"{now.version} of the configuration, and this is the store {own.instance_id:016x}. "
        "Another process runs with this member's id, or did. If that one is right, delete this "
        "directory. If this machine is right, stop the other one, empty this directory except for "
        "node.toml, and type: quorate recover"
    )


def is_taken(membership: Membership, name: VoterId) -> bool:
    """Say whether the seat of a member is another store's, and its own is no voter.

    Args:
        membership: the configuration.
        name: the member, with its own store.
    """
    seat = membership.seat(name.member_id)
    return (
        membership.version > 0
        and seat is not None
        and seat.instance not in {ANY_STORE, UNKNOWN_STORE, name.instance_id}
        and name not in {*membership.voters, *membership.outgoing}
    )


def _had(membership: Membership, name: VoterId) -> bool:
    return any(seat.name == name for seat in membership.seats) or name in membership.voters
