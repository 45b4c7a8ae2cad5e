"""Mutants of whose store may vote, and for whom, after something of it was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quorate.node.leader.leadership import Leadership
from quorate.node.membership.admission import Founders
from quorate.node.protocol import rules
from quorate.node.state import Core
from quorate.storage import EMPTY_LOG, LogEnd, VotingRight

if TYPE_CHECKING:
    import pytest

    from quorate.node.leader.follower_progress import Follower
    from quorate.node.protocol.rules import BallotDecision
    from quorate.transport import RequestVote


def vote_with_an_empty_disk(patch: pytest.MonkeyPatch) -> None:
    """Vote, stand and be counted although one's store stands in the place of a lost one."""
    patch.setattr(Core, "votes", property(lambda _core: True))


def count_an_empty_disk(patch: pytest.MonkeyPatch) -> None:
    """Have a leader count what a follower reports whose store was not admitted yet."""

    def voters(self: Leadership) -> list[Follower]:
        return [*self.followers.values()]

    patch.setattr(Leadership, "voters", property(voters))


def vote_across_an_admission(patch: pytest.MonkeyPatch) -> None:
    """Vote for a log that is behind, as an operator asks, also if one's own admits a new store."""
    consider = rules.consider

    def consider_blindly(
        request: RequestVote, *, admission: LogEnd = EMPTY_LOG, **more: object
    ) -> BallotDecision:
        del admission
        return consider(request, **more)  # type: ignore[arg-type]

    patch.setattr(rules, "consider", consider_blindly)


def forget_a_damaged_end(patch: pytest.MonkeyPatch) -> None:
    """Vote and stand with a log whose end was damaged as if it had never been longer."""

    def floor(core: Core) -> LogEnd:
        return core.store.voting_status.floor

    patch.setattr(Core, "floor", property(floor))


def answer_each_founder(patch: pytest.MonkeyPatch) -> None:
    """Tell all of one's fresh store whenever one of them has told of its own."""

    async def found(self: Founders) -> None:
        core = self._core  # pyright: ignore[reportPrivateUsage]
        while core.store.voting_status.kind is VotingRight.NEW:
            if (stores := self._complete()) is not None:  # pyright: ignore[reportPrivateUsage]
                await core.store.save_voting_status(stores)
                return
            known = self._stores()  # pyright: ignore[reportPrivateUsage]
            core.broadcast(self._founding(known, core.log_end, founded=False))  # pyright: ignore[reportPrivateUsage]
            await self._changed.wait(trio.current_time() + 0.05)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Founders, "found", found)
