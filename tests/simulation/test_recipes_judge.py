"""The judge of recipes: it finds each violation that is planted, and nothing that is in order."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest

from quorate.keyvalue.state.changes import Change, ChangeKind
from quorate.simulation.recipes.blocks import Block, Blocks
from quorate.simulation.recipes.judge import judge
from quorate.simulation.recipes.tenures import Tenures

if TYPE_CHECKING:
    from collections.abc import Callable

KEY, OTHER, FENCE = b"quorate:lock:{a}:owner", b"quorate:lock:{a}:other", b"fenced:a"
ANN, BOB = b"%016x ann" % 1, b"%016x bob" % 2


@attrs.define
class Person:
    number: int
    now: float = 0.0
    unit: float = 1.0
    rng: Random = attrs.field(factory=Random)

    def awake(self) -> float:
        return self.now


@attrs.define
class Case:
    """Two programs, and a log of which each entry is a batch; it has position n at n seconds."""

    blocks: Blocks = attrs.field(factory=Blocks)
    tenures: Tenures = attrs.field(factory=Tenures)
    people: tuple[Person, Person] = attrs.field(factory=lambda: (Person(1), Person(2)))

    def set(self, at: int, key: bytes, value: bytes, expires_at: int = 0) -> None:
        self._note(Change(at, ChangeKind.SET, key, value, 1000 * expires_at))

    def end(self, at: int, key: bytes, kind: ChangeKind = ChangeKind.DELETED) -> None:
        self._note(Change(at, kind, key))

    def _note(self, change: Change) -> None:
        self.tenures.note([change], 1000 * change.position, float(change.position))

    def enter(self, token: int, *, who: int = 0, key: bytes = KEY, most: int = 1) -> Block:
        person = self.people[who]
        person.now = token + 0.5
        return self.blocks.enter(person, "lock", key, token, most=most)

    def mark(self, block: Block, at: float) -> None:
        self.people[block.program.number - 1].now = at
        block.mark()

    def judge(self) -> list[str]:
        return list(judge(self.blocks, self.tenures, [FENCE]))


def one_after_the_other(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN, 10)
    block = case.enter(1)
    case.set(2, KEY, b"1 " + ANN, 12)
    case.set(3, FENCE, block.next_write())
    case.mark(block, 4.5)
    case.end(5, KEY)
    case.set(6, KEY, b"0 " + BOB, 10)
    case.set(7, FENCE, case.enter(6, who=1).next_write())
    case.end(12, KEY, ChangeKind.EXPIRED)


def taken_after_the_expiry(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN, 4)
    case.enter(1)
    case.set(5, KEY, b"0 " + BOB, 10)  # nothing has removed the expired key before
    case.enter(5, who=1)


def many_readers(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    case.set(2, OTHER, b"0 " + BOB)
    case.enter(1, most=0)
    case.enter(2, who=1, key=OTHER, most=0)


def cut_short_with_an_error(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    case.enter(1)
    case.end(2, KEY)
    case.set(3, KEY, b"0 " + ANN)
    case.enter(3).ran = True
    case.blocks.left(KEY, 3)


def late_write_that_failed(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    case.enter(1).next_write()
    case.end(2, KEY)


@pytest.mark.parametrize(
    "course",
    [
        one_after_the_other,
        taken_after_the_expiry,
        many_readers,
        cut_short_with_an_error,
        late_write_that_failed,
    ],
)
def test_what_is_in_order_is_not_found(course: Callable[[Case], None]) -> None:
    case = Case()
    course(case)
    assert case.judge() == []


def a_token_of_nobody(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    case.enter(2)


def one_token_for_two(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    case.enter(1)
    case.enter(1, who=1)


def overwritten(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN, 10)
    case.enter(1)
    case.set(2, KEY, b"0 " + BOB, 10)


def inside_after_the_expiry(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN, 4)
    block = case.enter(1)
    case.end(4, KEY, ChangeKind.EXPIRED)
    case.mark(block, 4.1)


def inside_after_all_was_flushed(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    block = case.enter(1)
    case.end(2, b"", ChangeKind.FLUSHED)
    case.mark(block, 3)


def written_after_the_end(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    block = case.enter(1)
    case.end(2, KEY)
    case.set(3, FENCE, block.next_write())


def cut_short_in_silence(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    case.enter(1)
    case.end(2, KEY)
    case.blocks.left(KEY, 1)


def two_at_once(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    case.enter(1)
    case.set(2, OTHER, b"0 " + BOB)
    case.enter(2, who=1, key=OTHER)


def a_reader_and_a_writer(case: Case) -> None:
    case.set(1, KEY, b"0 " + ANN)
    case.enter(1, most=0)
    case.set(2, OTHER, b"0 " + BOB)
    case.enter(2, who=1, key=OTHER)


def one_more_than_there_may_be(case: Case) -> None:
    for n in range(3):
        case.set(1 + n, b"%b-%d" % (KEY, n), b"0 " + ANN)
        case.enter(1 + n, key=b"%b-%d" % (KEY, n), most=2)


@pytest.mark.parametrize(
    ("rule", "course"),
    [
        ("Token", a_token_of_nobody),
        ("Token", one_token_for_two),
        ("Untouched", overwritten),
        ("Inside", inside_after_the_expiry),
        ("Inside", inside_after_all_was_flushed),
        ("Fence", written_after_the_end),
        ("Whole", cut_short_in_silence),
        ("Most", two_at_once),
        ("Most", a_reader_and_a_writer),
        ("Most", one_more_than_there_may_be),
    ],
)
def test_a_broken_promise_is_found(rule: str, course: Callable[[Case], None]) -> None:
    case = Case()
    course(case)
    assert case.judge()[0].startswith(f"Recipes.{rule}: ")


def test_all_broken_promises_are_found() -> None:
    case = Case()
    a_token_of_nobody(case)
    case.set(3, OTHER, b"0 " + BOB)
    block = case.enter(3, key=OTHER)
    case.end(4, OTHER)
    case.mark(block, 5)
    assert [each.split(":")[0] for each in case.judge()] == ["Recipes.Token", "Recipes.Inside"]


def test_the_present_holder_is_known_until_its_lease_is_over() -> None:
    case = Case()
    case.set(1, KEY, b"0 " + ANN, 4)
    case.set(2, OTHER, b"plain")
    assert case.tenures.held(b"quorate:") == [OTHER, KEY]
    case.set(4, FENCE, b"x")
    assert case.tenures.held(b"quorate:") == [OTHER]
