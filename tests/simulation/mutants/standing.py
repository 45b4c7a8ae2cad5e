"""Mutants with wrong rules of voting after a store was lost or damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from quorate.node.leader.follower_progress import Followers
from quorate.node.membership.founding import Founders
from quorate.node.protocol import ballots
from quorate.node.state import MemberState
from quorate.storage import EMPTY_LOG, LogEnd, VotingRight

if TYPE_CHECKING:
    import pytest

    from quorate.node.leader.follower_progress import Follower
    from quorate.node.protocol.ballots import BallotDecision, VoterView
    from quorate.transport import RequestVote


def vote_with_an_empty_disk(patch: pytest.MonkeyPatch) -> None:
    """Vote, become a candidate, and count, although the store replaces a lost one."""
    patch.setattr(MemberState, "votes", property(lambda _state: True))


def count_an_empty_disk(patch: pytest.MonkeyPatch) -> None:
    """Let a leader count the reports of a follower whose store was not admitted yet."""

    def voters(self: Followers) -> list[Follower]:
        return [*self.values()]

    patch.setattr(Followers, "voters", property(voters))


def vote_across_an_admission(patch: pytest.MonkeyPatch) -> None:
    """Vote for a log that is behind, on an operator's request, even if one's own admits a store."""
    consider = ballots.consider

    def consider_blindly(request: RequestVote, voter: VoterView, **more: object) -> BallotDecision:
        return consider(request, attrs.evolve(voter, admission=EMPTY_LOG), **more)  # type: ignore[arg-type]

    patch.setattr(ballots, "consider", consider_blindly)


def forget_a_damaged_end(patch: pytest.MonkeyPatch) -> None:
    """Vote and become a candidate with a damaged end of the log, as if it had never been longer."""

    def floor(state: MemberState) -> LogEnd:
        return LogEnd(*state._store.voting_status.floor)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(MemberState, "floor", property(floor))


def answer_each_founder(patch: pytest.MonkeyPatch) -> None:
    """Announce the new store to all members after each announcement of another member."""

    async def found(self: Founders) -> None:
        state = self._state  # pyright: ignore[reportPrivateUsage]
        store = self._store  # pyright: ignore[reportPrivateUsage]
        while store.voting_status.kind is VotingRight.NEW:
            if (stores := self._complete()) is not None:  # pyright: ignore[reportPrivateUsage]
                await store.save_voting_status(stores)
                return
            known = self._stores()  # pyright: ignore[reportPrivateUsage]
            news = self._founding(known, state.log_end, founded=False)  # pyright: ignore[reportPrivateUsage]
            self._links.broadcast(news)  # pyright: ignore[reportPrivateUsage]
            await self._changed.wait(trio.current_time() + 0.05)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Founders, "found", found)
