"""``python -m tests.model``: explores the large models, and prints their numbers of states."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from tests.model import change
from tests.model.change import Change
from tests.model.elector import Elector, explore

if TYPE_CHECKING:
    from collections.abc import Callable

ABC = frozenset({0, 1, 2})
ONE_OF_THREE = frozenset({0}), frozenset({0, 1, 2})
ONE_REPLACED = frozenset({0, 1, 2}), frozenset({1, 2, 3})

LARGE = {
    "3 members, 2 terms": Elector(3, 2),
    "3 members, 2 terms, transfers, no scouting": Elector(3, 2, transfers=True, scouting=False),
    "3 members, 2 terms, one loses its disk, no scouting": Elector(
        3, 2, scouting=False, wipes=True
    ),
    "4 members, 1 term": Elector(4, 1),
    "5 members, 1 term, no scouting": Elector(5, 1, scouting=False),
    "3 members, 3 terms, no scouting": Elector(3, 3, scouting=False),
    "3 members, 2 of them steady, 4 terms": Elector(3, 4, steady=frozenset({0, 1})),
    "5 members, 3 of them steady, 3 terms": Elector(5, 3, steady=frozenset({0, 1, 2})),
    "1 and 3 voters, 2 terms, no scouting, one of them alone": Elector(
        3, 2, scouting=False, sets=ONE_OF_THREE, alone=frozenset({0})
    ),
    "3 and 3 voters, 1 term, no scouting, one of them alone": Elector(
        4, 1, scouting=False, sets=ONE_REPLACED, alone=frozenset({0})
    ),
}

CHANGES = {
    "replace one of 3, 2 terms, more entries": Change(ABC, frozenset({0, 1, 3}), 2, more=True),
    "replace one of 3, 2 terms, patient": Change(ABC, frozenset({0, 1, 3}), 2, patient=True),
    "replace one of 3, 3 terms, the one leads term 1": Change(
        ABC, frozenset({0, 1, 3}), 3, leader=2
    ),
    "replace one of 3, 3 terms": Change(ABC, frozenset({0, 1, 3}), 3),
    "remove one of 4, 3 terms": Change(frozenset({0, 1, 2, 3}), ABC, 3),
    "remove one of 3 or another, 3 terms": Change(
        ABC, frozenset({0, 1}), 3, rival=frozenset({0, 2})
    ),
    "remove one of 3 and add it again, 3 terms": Change(ABC, frozenset({0, 1}), 3, after=ABC),
    "replace one of 1 and again, 3 terms": Change(
        frozenset({0}), frozenset({1}), 3, after=frozenset({2})
    ),
}


def main() -> None:
    """Explore all large models."""
    for words, elector in LARGE.items():
        _report(words, functools.partial(explore, elector, elector.start()))
    for words, each in CHANGES.items():
        _report(words, functools.partial(change.explore, each))


def _report(words: str, explored: Callable[[], int]) -> None:
    began = time.perf_counter()
    states = explored()
    took = time.perf_counter() - began
    print(f"{words}: {states:,} states, {took:.0f} s", flush=True)  # noqa: T201 - a program


if __name__ == "__main__":
    main()
