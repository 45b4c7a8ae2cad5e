"""Mutants with wrong rules of a change of the members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.node.configurations import Configurations
from quorate.node.election.context import ElectionContext
from quorate.node.leader.follower_progress import Followers
from quorate.node.leader.lease import Lease
from quorate.node.leader.members.changes import Changes
from quorate.node.leader.members.reconfiguration import Reconfiguration
from quorate.node.protocol.membership import Membership, encode_membership
from quorate.node.protocol.quorum import ANY_STORE, Quorums, VoterId
from quorate.node.state import MemberState
from quorate.storage import Entry, EntryKind
from quorate.storage.log import changes, state

if TYPE_CHECKING:
    import pytest

    from quorate.node.election.transition import Next
    from quorate.storage import MembershipRow
    from quorate.transport import RequestVote


def change_before_the_term_is_open(patch: pytest.MonkeyPatch) -> None:
    """Append a configuration before an entry of one's own term is committed.

    The model (`tests/model/change.py`) finds no harm in it: an old majority is part of each joint
    configuration. The rule keeps changes simple, so it is checked by itself.
    """

    def obstacle(self: Changes) -> str:
        accepting = self._replication.accepting  # pyright: ignore[reportPrivateUsage]
        return "" if accepting and not self.awaited else "in-flight"

    patch.setattr(Changes, "obstacle", property(obstacle))
    patch.setattr(Changes, "_gathers", False)


def decide_by_what_is_committed(patch: pytest.MonkeyPatch) -> None:
    """Let a configuration count once it is known to be committed, not from its append on."""

    def in_force(self: Configurations) -> Membership:
        return self.at(self._store.recorded.last_commit_position)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Configurations, "in_force", property(in_force))


def count_over_the_union(patch: pytest.MonkeyPatch) -> None:
    """Decide by a majority of the voters before and after the change together."""

    def quorums(self: Membership) -> Quorums[VoterId]:
        return Quorums[VoterId].of({*self.voters, *self.outgoing})

    patch.setattr(Membership, "quorums", property(quorums))


def keep_the_configuration_that_is_truncated(patch: pytest.MonkeyPatch) -> None:
    """Truncate the log, and decide by a configuration that was in it."""

    def up_to(rows: tuple[MembershipRow, ...], _position: int) -> tuple[MembershipRow, ...]:
        return rows

    patch.setattr(changes, "up_to", up_to)


def forget_the_configuration_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Decide by one's file after a start."""

    def load(*_arguments: object) -> tuple[MembershipRow, ...]:
        return ()

    patch.setattr(state, "load_memberships", load)


def vote_for_members_only(patch: pytest.MonkeyPatch) -> None:
    """Refuse candidates that have no seat in one's own configuration."""
    on_request_vote = ElectionContext._on_request_vote  # pyright: ignore[reportPrivateUsage]

    async def refuse_strangers(
        self: ElectionContext, sender: int, message: RequestVote
    ) -> Next | None:
        if self.state.membership.seat(sender) is None:
            return None
        return await on_request_vote(self, sender, message)

    patch.setattr(ElectionContext, "_on_request_vote", refuse_strangers)


def end_the_change_at_once(patch: pytest.MonkeyPatch) -> None:
    """Append the final configuration before the joint one is committed."""
    patch.setattr(Changes, "awaited", property(lambda _self: 0))


def count_oneself_in_any_case(patch: pytest.MonkeyPatch) -> None:
    """Lead on after one's own removal, and count oneself as one of the voters."""

    def own(self: MemberState) -> VoterId:
        name = self.names[self.member_id]
        return name if name in self.quorums.voters else min(self.quorums.voters)

    patch.setattr(MemberState, "own", property(own))
    _lead_for_others(patch)


def _lead_for_others(patch: pytest.MonkeyPatch) -> None:
    def must_hand_over(_self: Reconfiguration, _now: Membership) -> bool:
        return False

    async def hand_over_first(_self: Reconfiguration) -> None:
        pass

    patch.setattr(Reconfiguration, "_must_hand_over", must_hand_over)
    patch.setattr(Reconfiguration, "_hand_over_first", hand_over_first)


def count_by_member(patch: pytest.MonkeyPatch) -> None:
    """Count a member whichever store it has, also one in the place of a lost store."""

    def name(self: MemberState, member: int) -> VoterId:
        voters = [each for each in self.quorums.voters if each.member_id == member]
        return max(voters, default=VoterId(member, ANY_STORE))

    patch.setattr(MemberState, "_name", name)


def obey_what_is_below_the_floor(patch: pytest.MonkeyPatch) -> None:
    """Decide by a configuration from before a restore."""

    def last(_self: Configurations, rows: tuple[MembershipRow, ...]) -> MembershipRow | None:
        return rows[-1] if rows else None

    patch.setattr(Configurations, "_last", last)


def name_stores_that_nobody_knows(patch: pytest.MonkeyPatch) -> None:
    """Append configurations without looking whether the voters that answer are enough."""

    def keep_quorum(_self: Followers, _after: Membership) -> bool:
        return True

    patch.setattr(Followers, "keep_quorum", keep_quorum)


def hold_the_lease_of_one_set(patch: pytest.MonkeyPatch) -> None:
    """Hold a lease by the promises of a majority of the new voters alone."""
    left = Lease.left

    def left_by_one(self: Lease, followers: Followers, quorums: Quorums[VoterId]) -> float:
        return left(self, followers, Quorums[VoterId].of(quorums.sets[-1]))

    patch.setattr(Lease, "left", left_by_one)


def save_the_latest_configuration(patch: pytest.MonkeyPatch) -> None:
    """Put the latest configuration into a snapshot, not the one of its position."""

    def payload_at(self: Configurations, position: int) -> str:
        del position
        rows = self._submitted  # pyright: ignore[reportPrivateUsage]
        return rows[-1].payload.decode() if rows else ""

    patch.setattr(Configurations, "payload_at", payload_at)


def send_the_final_one_to_the_dropped(patch: pytest.MonkeyPatch) -> None:
    """Send a member the configuration that takes its vote, before it is committed."""

    def append(self: Changes, after: Membership, _principal: int = 0) -> None:
        self._replication.append(  # pyright: ignore[reportPrivateUsage]
            [Entry(EntryKind.MEMBERSHIP, encode_membership(after))]
        )

    def dropped(_self: Followers) -> frozenset[VoterId]:
        return frozenset()

    patch.setattr(Followers, "_dropped", dropped)
    patch.setattr(Changes, "append", append)
