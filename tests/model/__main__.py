"""``python -m tests.model``: explores the large models, and prints their numbers of states."""

from __future__ import annotations

import time

from tests.model.elector import Elector, explore

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


def main() -> None:
    """Explore all large models."""
    for words, elector in LARGE.items():
        began = time.perf_counter()
        states = explore(elector, elector.start())
        took = time.perf_counter() - began
        print(f"{words}: {states:,} states, {took:.0f} s", flush=True)  # noqa: T201 - a program


if __name__ == "__main__":
    main()
