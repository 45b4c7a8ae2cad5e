"""Mutants of whose store may vote: a wiped disk is taken for an empty new member."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.node.core import Core
from quorate.node.leadership import Leadership

if TYPE_CHECKING:
    import pytest

    from quorate.node.followers import Follower


def vote_with_an_empty_disk(patch: pytest.MonkeyPatch) -> None:
    """Vote, stand and be counted although one's store stands in the place of a lost one."""
    patch.setattr(Core, "votes", property(lambda _core: True))


def count_an_empty_disk(patch: pytest.MonkeyPatch) -> None:
    """Have a leader count what a follower reports whose store was not admitted yet."""

    def voters(self: Leadership) -> list[Follower]:
        return [*self.followers.values()]

    patch.setattr(Leadership, "voters", property(voters))
