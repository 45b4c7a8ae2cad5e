"""Recipes with one rule removed; the judge of recipes must find each.

They are hunted in storms over programs, so they have a table of their own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

import anyio
import attrs
import pytest

from quorate.errors import UnknownOutcomeError
from quorate.keyvalue.programs.client import KeyValue
from quorate.recipes import Barrier, Item
from quorate.recipes import line as lines
from quorate.recipes.cache import Copy
from quorate.recipes.lease import Lease
from quorate.simulation import Plan, simulate
from tests.simulation.mutants.hunt import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.keyvalue.programs.encoding import Text
    from quorate.keyvalue.programs.transaction import Transaction
    from quorate.keyvalue.state.changes import Change
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


def go_on_behind_the_end(patch: pytest.MonkeyPatch) -> None:
    """Count a lease as held again that was renewed when its block was being cancelled."""

    def extended(self: Lease, sent_at: float) -> None:
        block, self._block = self._block, None  # pyright: ignore[reportPrivateUsage]
        original(self, sent_at)
        self._block = block  # pyright: ignore[reportPrivateUsage]
        if block is not None:
            block.deadline = self._ends_at  # pyright: ignore[reportPrivateUsage]

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

    def first(permits: int) -> lines.Rule:
        return lines.first(permits + 1)

    module = importlib.import_module("quorate.recipes.semaphore")  # the name is the function's
    patch.setattr(module, "first", first)


def write_while_others_read(patch: pytest.MonkeyPatch) -> None:
    """Let a writer wait for writers only."""

    def writers(older: Sequence[Owned]) -> lines.Obstacle | None:
        return lines.head([each for each in older if b":write:" in each.key])

    patch.setattr(importlib.import_module("quorate.recipes.rw_lock"), "head", writers)


def forget_the_removal(patch: pytest.MonkeyPatch) -> None:
    """End the block of an item without removing it."""

    async def remove_in(self: Item, transaction: Transaction) -> None:
        await self.lease.fence(transaction)

    patch.setattr(Item, "remove_in", remove_in)


def let_too_few_through(patch: pytest.MonkeyPatch) -> None:
    """Open a barrier to the parties whose tickets are there, and forget that one may go."""

    async def open_it(self: Barrier) -> None:
        tickets = (await self._line.tickets())[: self._parties]  # pyright: ignore[reportPrivateUsage]
        if len(tickets) < self._parties:  # pyright: ignore[reportPrivateUsage]
            return
        for index, each in enumerate(tickets):
            place = self._place(each.holder.token)  # pyright: ignore[reportPrivateUsage]
            await self._kv.set(place, str(index), px=600_000)  # pyright: ignore[reportPrivateUsage]
            await self._kv.delete(each.key)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Barrier, "_open", open_it)


def add_again(patch: pytest.MonkeyPatch) -> None:
    """Add once more if the answer is lost."""

    async def add(self: KeyValue, key: Text, by: int = 1) -> int:
        try:
            return await original(self, key, by)
        except UnknownOutcomeError:
            return await original(self, key, by)

    original = KeyValue.increment
    patch.setattr(KeyValue, "increment", add)


def keep_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """Watch no renewals: a member stays in a party for an hour after its last sign of life."""
    patch.setattr(Lease, "_ttl_ms", property(lambda _: 3_600_000))


def copy_what_is_older(patch: pytest.MonkeyPatch) -> None:
    """Take changes into a copy once more, after later ones."""

    def apply(self: Copy, changes: Sequence[Change]) -> None:
        late = taken.setdefault(self, [[], []])
        original(self, [*changes, *late.pop(0)])
        late.append(changes)

    taken: dict[Copy, list[Sequence[Change]]] = {}
    original = Copy._apply  # pyright: ignore[reportPrivateUsage]
    patch.setattr(Copy, "_apply", apply)


RECIPE_MUTANTS: Final = (
    RecipeMutant(take_what_is_taken, 3, ("Untouched",)),
    RecipeMutant(renew_what_is_anothers, 10, ("Untouched", "Inside", "Fence")),
    RecipeMutant(release_what_is_anothers, 5, ("Inside",)),
    RecipeMutant(stay_inside, 20, ("Inside",), first=19),
    RecipeMutant(count_from_the_reply, 10, ("Inside",), first=2),
    RecipeMutant(go_on_behind_the_end, 5, ("Whole",), first=2),
    RecipeMutant(write_without_a_fence, 5, ("Fence",)),
    RecipeMutant(fence_by_what_was, 10, ("Fence",)),
    RecipeMutant(let_one_more_in, 3, ("Most",)),
    RecipeMutant(write_while_others_read, 5, ("Most",)),
    RecipeMutant(forget_the_removal, 5, ("Queue", "Live")),
    RecipeMutant(let_too_few_through, 5, ("Barrier",)),
    RecipeMutant(add_again, 10, ("Sum",)),
    RecipeMutant(keep_what_is_gone, 3, ("Left", "Live")),
    RecipeMutant(copy_what_is_older, 5, ("Copy",)),
)


def hunt_recipe(mutant: RecipeMutant) -> Found | None:
    """Hunt a mutant; None if it survives."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.change(patch)
        for seed in sorted(range(mutant.seeds), key=lambda seed: seed != mutant.first):
            outcome = simulate(Plan(seed, 3, HOURS, "recipes"))
            if outcome.violation is not None:
                return Found(seed, outcome.violation)
    return None
