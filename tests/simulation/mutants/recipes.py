"""Recipes with one rule removed; the judge of recipes must find each.

They are hunted in storms over programs, so they have a table of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
import attrs
import pytest

from quorate.keyvalue.programs.client import KeyValue
from quorate.recipes import line as lines
from quorate.recipes.lease import Lease
from quorate.simulation import Plan, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.keyvalue.programs.client import Text
    from quorate.recipes.waiting import Owned

HOURS: Final = 0.01


@attrs.frozen
class RecipeMutant:
    """A recipe with one rule removed.

    Args:
        change: removes the rule.
        seeds: it must be found within this many seeds, from 0 on.
        first: the seed that is tried first: that which found it last.
        by: the rule of the judge that finds it.
    """

    change: Callable[[pytest.MonkeyPatch], None]
    seeds: int
    by: Sequence[str]
    first: int = 0

    @property
    def name(self) -> str:
        """Return its name."""
        return self.change.__name__


def take_what_is_taken(patch: pytest.MonkeyPatch) -> None:
    """Take a key whoever has it."""

    async def take(
        self: KeyValue, key: Text, expected: Text | None, new: Text | None, *, px: int | None = None
    ) -> int:
        if expected is None:
            expected = await self.get(key)
        return await original(self, key, expected, new, px=px)

    original = KeyValue.compare_and_set
    patch.setattr(KeyValue, "compare_and_set", take)


def renew_what_is_anothers(patch: pytest.MonkeyPatch) -> None:
    """Renew a lease without a look at whose it is."""

    async def renew(
        self: KeyValue, key: Text, expected: Text | None, new: Text | None, *, px: int | None = None
    ) -> int:
        done = await original(self, key, expected, new, px=px)
        if done or expected is None or new is None:
            return done
        await self.set(key, new, px=px)
        return 1

    original = KeyValue.compare_and_set
    patch.setattr(KeyValue, "compare_and_set", renew)


def release_what_is_anothers(patch: pytest.MonkeyPatch) -> None:
    """Give back a key without a look at whose it is."""

    async def release(
        self: KeyValue, key: Text, expected: Text | None, new: Text | None, *, px: int | None = None
    ) -> int:
        done = await original(self, key, expected, new, px=px)
        return done if new is not None else await self.delete(key)

    original = KeyValue.compare_and_set
    patch.setattr(KeyValue, "compare_and_set", release)


def stay_inside(patch: pytest.MonkeyPatch) -> None:
    """Leave a block running although its lease is lost."""

    def extended(self: Lease, sent_at: float) -> None:
        self._ends_at = float("inf")  # pyright: ignore[reportPrivateUsage]
        self._renew_at = sent_at + self.ttl_s / 3  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Lease, "_extended", extended)


def count_from_the_reply(patch: pytest.MonkeyPatch) -> None:
    """Count the time of a lease from the reply on, and not from before the request."""

    def extended(self: Lease, _sent_at: float) -> None:
        original(self, anyio.current_time())

    original = Lease._extended  # pyright: ignore[reportPrivateUsage]
    patch.setattr(Lease, "_extended", extended)


def write_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """Let a transaction commit whether the lease is held or not."""

    async def fence(self: Lease, transaction: object) -> None:
        del self, transaction
        await anyio.lowlevel.checkpoint()

    patch.setattr(Lease, "fence", fence)


def fence_by_what_was(patch: pytest.MonkeyPatch) -> None:
    """Look at the lease, but let the transaction commit although it ends in between."""

    async def fence(self: Lease, transaction: object) -> None:
        del transaction
        async with self.kv.transaction() as another:
            await original(self, another)

    original = Lease.fence
    patch.setattr(Lease, "fence", fence)


def let_one_more_in(patch: pytest.MonkeyPatch) -> None:
    """Give one permit more than there are."""
    patch.setattr("quorate.recipes.semaphore.first", lambda permits: lines.first(permits + 1))


def write_while_others_read(patch: pytest.MonkeyPatch) -> None:
    """Let a writer wait for writers only."""

    def writers(older: Sequence[Owned]) -> lines.Obstacle | None:
        return lines.head([each for each in older if b":write:" in each.key])

    patch.setattr("quorate.recipes.rw_lock.head", writers)


RECIPE_MUTANTS: Final = (
    RecipeMutant(take_what_is_taken, 3, ("Untouched",)),
    RecipeMutant(renew_what_is_anothers, 20, ("Untouched",)),
    RecipeMutant(release_what_is_anothers, 5, ("Inside",)),
    RecipeMutant(stay_inside, 5, ("Inside",)),
    RecipeMutant(count_from_the_reply, 20, ("Inside",)),
    RecipeMutant(write_without_a_fence, 5, ("Fence",)),
    RecipeMutant(fence_by_what_was, 10, ("Fence",)),
    RecipeMutant(let_one_more_in, 3, ("Most",)),
    RecipeMutant(write_while_others_read, 5, ("Most",)),
)


def hunt_recipe(mutant: RecipeMutant) -> tuple[int, str] | None:
    """Hunt a mutant; return the seed and the violation, None if it survives."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.change(patch)
        for seed in sorted(range(mutant.seeds), key=lambda seed: seed != mutant.first):
            outcome = simulate(Plan(seed, 3, HOURS, "recipes"))
            if outcome.violation is not None:
                return seed, outcome.violation
    return None
