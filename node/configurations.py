"""Which configuration of the cluster counts: the last one in the member's own log.

A configuration is in force from its append on, whether it is committed or not; a truncation brings
back the one before (Raft dissertation, section 4.1). The first one is what the founders' files say,
and is no entry of the log. Entries at or below the *floor* mean nothing: they are of the history
before a restore, or before a quorum was forced, and the members of the new history are other ones.

Clients and removed members learn only of what is *applied*, which no new leader can take back.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..errors import StorageError, WireError
from ..storage import LogEnd, Store, VotingRight
from ..transport import Address
from .protocol.membership import MemberRole, Membership, Seat, decode_membership_untrusted
from .protocol.quorum import VoterId

if TYPE_CHECKING:
    from ..storage import MembershipRow, ReadOnlyStore
    from .config.config import MemberConfig, NodeConfig


class Configurations:
    """The configurations of a member's log.

    Args:
        config: of the member; has the first configuration, and further addresses.
        store: the log.

    Attributes:
        first: the configuration before any in the log; version 0.
    """

    def __init__(self, config: NodeConfig, store: Store | ReadOnlyStore) -> None:
        self.first = _first(config)
        self._config = config
        self._store = store

    @property
    def in_force(self) -> Membership:
        """The configuration by which this member decides."""
        return self._value(self._last(self._submitted))

    @property
    def _submitted(self) -> tuple[MembershipRow, ...]:
        store = self._store
        return (store.submitted if isinstance(store, Store) else store.recorded).memberships

    @property
    def before(self) -> Membership:
        """The configuration before the one in force."""
        return self._value(self._last(self._submitted[:-1]))

    @property
    def end(self) -> int:
        """Where the entry of the configuration in force ends; 0 for the first one."""
        row = self._last(self._submitted)
        return 0 if row is None else row.position

    def at(self, position: int) -> Membership:
        """Return the configuration as of a position of the log."""
        return self._value(self._row_at(position))

    def since(self, position: int) -> list[Membership]:
        """Return the configuration as of a position of the log, and all that are behind it."""
        behind = [row for row in self._store.recorded.memberships if row.position > position]
        return [self.at(position), *(self.at(row.position) for row in behind)]

    def until(self, position: int) -> list[Membership]:
        """Return the configurations up to a position, as far as they are still in the log."""
        rows = self._store.recorded.memberships
        return [self.at(row.position) for row in rows if row.position <= position]

    def payload_at(self, position: int) -> str:
        """Return the text of the entry that counts at a position; empty for the first one."""
        row = self._row_at(position)
        return "" if row is None else row.payload.decode()

    def _row_at(self, position: int) -> MembershipRow | None:
        rows = self._store.recorded.memberships
        # Nearly always all rows count. This is asked with each command of some clients.
        if rows and rows[-1].position > position:
            rows = tuple(row for row in rows if row.position <= position)
        return self._last(rows)

    def _last(self, rows: tuple[MembershipRow, ...]) -> MembershipRow | None:
        status = self._store.voting_status
        # The floor is known once the cluster is founded. Before that, the log of a store that is to
        # found it is of the history before: it was restored, or a quorum was forced with it.
        if status.kind is VotingRight.NEW and self.first.has_vote(self._config.member_id):
            return None
        floor = LogEnd(*status.floor)
        for row in reversed(rows):
            if LogEnd(row.term, row.position) <= floor:
                return None
            value = _decoded(row.payload)
            if value is not None and self._is_ours(value):
                return row
        return None

    def _is_ours(self, value: Membership) -> bool:
        """Say whether a configuration is of the history of our store, as far as that knows its own.

        A snapshot may bring one to a position above the floor: that of a member that had no vote
        when it took the snapshot, and so did not know yet which history it belongs to.
        """
        status = self._store.voting_status
        known = status.kind is VotingRight.VOTER
        return not known or (value.founders, value.floor) == (status.founders, status.floor)

    def _value(self, row: MembershipRow | None) -> Membership:
        value = None if row is None else _decoded(row.payload)
        return self.first if value is None else value

    def addresses(self, membership: Membership) -> dict[int, tuple[Address, ...]]:
        """Return where to dial every other member.

        The file serves for more addresses: it may be newer than the log of a member that was down
        while others moved. Members that it has, and that may be newer than the configuration, are
        dialled, too.
        """
        known = {seat.member_id: Address(seat.host, seat.member_port) for seat in membership.seats}
        filed = {
            peer.member_id: Address(peer.host, peer.member_port) for peer in self._config.peers
        }
        # Without a vote, our store does not know its history yet: the configuration in its log may
        # be of the one before.
        votes = self._store.voting_status.kind is VotingRight.VOTER
        newer = {each for each in filed if not (votes and membership.is_removed(each))}
        return {
            member: tuple(dict.fromkeys(a for a in (known.get(member), filed.get(member)) if a))
            for member in sorted({*known, *newer} - {self._config.member_id})
        }


@functools.lru_cache(maxsize=1024)
def _decoded(payload: bytes) -> Membership | None:
    """Return the configuration of an entry of our own log; None if it is of the old kind.

    Raises:
        StorageError: this version can't read it.
    """
    try:
        return decode_membership_untrusted(payload)
    except WireError as error:
        # To go on would be to decide by the wrong voters.
        raise StorageError(
            f"{error}. A newer version may have written it: install that one here"
        ) from error


def _first(config: NodeConfig) -> Membership:
    """Return what a file says of the members; one that joins is none of them yet."""
    members = [each for each in config.members if not (config.join and each is config.own)]
    seats = tuple(map(_seat, members))
    voters = tuple(VoterId(seat.member_id) for seat in seats if seat.is_to_vote)
    return Membership(seats, voters, next_id=1 + max(each.member_id for each in members))


def _seat(member: MemberConfig) -> Seat:
    role = MemberRole.WITNESS if member.witness else MemberRole.VOTER
    return Seat(
        member_id=member.member_id,
        host=member.host,
        member_port=member.member_port,
        client_port=member.client_port,
        redirect_port=member.redirect_port,
        tls_port=member.tls_port,
        priority=member.priority,
        role=MemberRole.STANDBY if member.standby else role,
    )
