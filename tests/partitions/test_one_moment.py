"""Positions of all groups belong together, and no group stays suspended."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from quorate.errors import NoLeaderError, RefusedError, UnknownOutcomeError
from quorate.partitions.groups import Group
from quorate.partitions.one_moment import NoMomentError, one_moment

SECONDS = 0.01


class Suspendable:
    """A group whose log grows while it takes writes, and fails as it is told."""

    def __init__(self, done: list[str]) -> None:
        self.done = done
        self.suspended = False
        self.term, self.position = 1, 100
        self.fails: dict[str, Exception] = {}

    async def execute(self, *words: object) -> Any:
        raise AssertionError(words)

    async def status(self) -> Mapping[str, Any]:
        await trio.sleep(SECONDS)
        return {"suspended": self.suspended, "member_id": 0, "term": self.term}

    async def control(self, words: str) -> str:
        await trio.sleep(SECONDS)
        error = self.fails.pop(words, None)
        if isinstance(error, UnknownOutcomeError):
            self.suspended = words == "suspend"
        if error is not None:
            raise error
        if self.suspended is (words == "suspend"):
            raise RefusedError(f"the cluster is {'' if self.suspended else 'not '}suspended")
        self.done.append(words)
        self.suspended = words == "suspend"
        self.position += 32
        return f"{words}ed at {self.position}" if self.suspended else f"resumed at {self.position}"


class Some:
    def __init__(self, count: int) -> None:
        self.done: list[str] = []
        self.all = [Suspendable(self.done) for _ in range(count)]

    def group(self, partition: int) -> Group:
        return self.all[partition]

    @property
    def are_well(self) -> bool:
        return not any(each.suspended for each in self.all)


async def test_positions_are_those_of_the_resumes(autojump_clock: object) -> None:
    del autojump_clock
    groups = Some(3)
    moment = await one_moment(groups, range(3))
    assert moment.positions == {0: 164, 1: 164, 2: 164}
    assert groups.done == ["suspend"] * 3 + ["resume"] * 3
    assert groups.are_well
    assert moment.pause_s == pytest.approx(2 * SECONDS)


@pytest.mark.parametrize(
    "error", [NoLeaderError("none"), RefusedError("no"), UnknownOutcomeError("lost")]
)
@pytest.mark.parametrize("words", ["suspend", "resume"])
async def test_all_take_writes_again_after_a_failure(
    autojump_clock: object, words: str, error: Exception
) -> None:
    del autojump_clock
    groups = Some(3)
    groups.all[1].fails[words] = error
    if isinstance(error, NoLeaderError) and words == "resume":
        await one_moment(groups, range(3))  # it was asked again
    else:
        with pytest.raises(NoMomentError, match="partition 1"):
            await one_moment(groups, range(3))
    if words == "suspend" or not isinstance(error, RefusedError):
        assert groups.are_well


async def test_a_group_that_an_operator_has_suspended_stays_so(autojump_clock: object) -> None:
    del autojump_clock
    groups = Some(2)
    groups.all[0].suspended = True
    with pytest.raises(NoMomentError, match="partition 0 is suspended: resume it first"):
        await one_moment(groups, range(2))
    assert groups.all[0].suspended
    assert not groups.all[1].suspended


async def test_a_cancelled_backup_leaves_nothing_suspended(autojump_clock: object) -> None:
    del autojump_clock
    groups = Some(3)
    with trio.move_on_after(1.5 * SECONDS):
        await one_moment(groups, range(3))
    assert groups.are_well


async def test_another_leader_in_between_is_no_moment(autojump_clock: object) -> None:
    del autojump_clock
    groups = Some(2)

    async def elect() -> None:
        await trio.sleep(1.5 * SECONDS)
        groups.all[1].term = 2

    async with trio.open_nursery() as nursery:
        nursery.start_soon(elect)
        with pytest.raises(NoMomentError, match="partition 1 has another leader"):
            await one_moment(groups, range(2))
    assert groups.are_well
