"""What a loss of power leaves, in small: the rules that a file system keeps, and no others."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from tests.programs.power.journal import Chance, PowerLoss, Record, Tree

ROOT: Final = 1
OLD: Final = 2
NEW: Final = 3
BEFORE: Final = Tree({".": ROOT, "old": OLD}, {"old": b"before"})


def done(*steps: tuple[str, int, int, int, bytes]) -> list[Record]:
    return [Record(number, *step) for number, step in enumerate(steps)]


def left(
    records: list[Record], *, sector: float = 0.0, name: float = 0.0, seed: int = 0
) -> dict[str, bytes | None]:
    return PowerLoss(BEFORE, records, Chance(Random(seed), sector, name)).tree()


MADE: Final = ("C", NEW, 0, 0, b"new")
WRITTEN: Final = ("W", NEW, 0, 0, b"data")
FILE_SYNCED: Final = ("S", NEW, 2, 0, b"")
NAMES_SYNCED: Final = ("S", ROOT, 2, 0, b"")
RENAMED: Final = ("R", 0, 0, 0, b"new\0old")


@pytest.mark.parametrize(
    ("steps", "tree"),
    [
        ([], {"old": b"before"}),
        ([MADE, WRITTEN], {"old": b"before"}),
        ([MADE, WRITTEN, FILE_SYNCED], {"old": b"before"}),
        ([MADE, WRITTEN, NAMES_SYNCED], {"old": b"before", "new": b""}),
        ([MADE, WRITTEN, FILE_SYNCED, NAMES_SYNCED], {"old": b"before", "new": b"data"}),
        (
            [MADE, WRITTEN, FILE_SYNCED, NAMES_SYNCED, RENAMED],
            {"old": b"before", "new": b"data"},
        ),
        (
            [MADE, WRITTEN, FILE_SYNCED, RENAMED, ("S", ROOT, 4, 0, b"")],
            {"old": b"data"},
        ),
        ([("W", OLD, 2, 0, b"XX")], {"old": b"before"}),
        ([("W", OLD, 2, 0, b"XX"), ("S", OLD, 0, 0, b"")], {"old": b"before"}),
        ([("W", OLD, 2, 0, b"XX"), ("S", OLD, 1, 0, b"")], {"old": b"beXXre"}),
        ([("W", OLD, 2, 1, b"XX"), ("Y", OLD, 0, 0, b"")], {"old": b"beXXre"}),
        ([("W", OLD, 8, 0, b"X"), ("S", OLD, 1, 0, b"")], {"old": b"before\0\0X"}),
        ([("T", OLD, 2, 0, b""), ("S", OLD, 1, 0, b"")], {"old": b"be"}),
        ([("U", 0, 0, 0, b"old")], {"old": b"before"}),
        ([("U", 0, 0, 0, b"old"), ("S", ROOT, 1, 0, b"")], {}),
        (
            [("U", 0, 0, 0, b"old"), ("C", OLD, 0, 0, b"new"), ("W", OLD, 0, 0, b"again")],
            {"old": b"before"},
        ),
        ([("K", NEW, 0, 0, b"dir"), ("C", 4, 0, 0, b"dir/x"), ("S", NEW, 2, 0, b"")], None),
    ],
    ids=str,
)
def test_only_what_was_synced_is_owed(
    steps: list[tuple[str, int, int, int, bytes]], tree: dict[str, bytes | None] | None
) -> None:
    assert left(done(*steps)) == ({"old": b"before"} if tree is None else tree)


def test_what_was_not_synced_may_be_there_as_well() -> None:
    steps = done(MADE, WRITTEN, RENAMED, ("T", NEW, 2, 0, b""))
    assert left(steps, sector=1.0, name=1.0) == {"old": b"da"}


def test_a_write_is_torn_by_sectors_and_never_within_one() -> None:
    big = done(("W", OLD, 256, 0, b"x" * 2048))
    seen = set[bytes]()
    for seed in range(50):
        tree = left(big, sector=0.5, seed=seed)
        seen.add(tree["old"] or b"")
    assert len(seen) > 5
    for data in seen:
        for start, stop in [(256, 512), (512, 1024), (1024, 1536), (1536, 2048), (2048, 2304)]:
            assert data[start:stop] in {b"x" * len(data[start:stop]), bytes(len(data[start:stop]))}


def test_names_come_in_their_order() -> None:
    """A change of a name is there only if those before it in its directory are."""
    steps = done(*[("C", 10 + n, 0, 0, b"f%d" % n) for n in range(5)])
    found = [left(steps, name=0.5, seed=seed) for seed in range(50)]
    names = {tuple(sorted(tree.keys() - {"old"})) for tree in found}
    assert names <= {tuple(f"f{n}" for n in range(count)) for count in range(6)}
    assert len(names) > 3
