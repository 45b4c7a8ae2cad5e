"""The checks of the torture with partitions find what they are there for; no process runs here."""

from __future__ import annotations

import io

import msgspec
import pytest

from quorate.histories.history import HistoryWriter
from quorate.keyvalue.slots.cluster_map import ClusterMap, Machine, Move
from quorate.partitions.balance import first_map
from quorate.partitions.slots_state import SlotsState
from quorate.torture.partitions.checks import unfinished
from quorate.torture.partitions.clients import Load
from quorate.torture.partitions.numbers import BALLAST, Numbers, ballast

HALVES = "0-8191", "8192-16383"
UNCHANGED = dict(map(ballast, range(BALLAST)))


def numbers() -> Numbers:
    counted = Numbers(Load([], HistoryWriter(io.BytesIO()), 1, print))
    for item in (b"1,", b"2,"):
        counted.sends(b"a", item)
        counted.answered(b"a", counted.expected(b"a"))
    counted.sends(b"a", b"3,")  # which has no answer
    return counted


@pytest.mark.parametrize("held", [b"1,2,", b"1,2,3,"])
def test_a_number_without_an_answer_may_be_there_or_not(held: bytes) -> None:
    assert numbers().check({b"a": held} | UNCHANGED) == []


@pytest.mark.parametrize("held", [b"", b"1,", b"2,1,", b"1,2,2,", b"1,2,3,3,"])
def test_a_number_that_is_lost_or_there_twice_is_found(held: bytes) -> None:
    (wrong,) = numbers().check({b"a": held} | UNCHANGED)
    assert wrong.startswith("b'a' ends with")


def test_a_reply_that_tells_of_another_number_is_found() -> None:
    counted = numbers()
    counted.answered(b"a", 7)
    (wrong,) = counted.load.violations
    assert "was answered with length 7, expected 6" in wrong


def test_a_key_that_is_lost_in_a_move_is_found() -> None:
    key, _ = ballast(7)
    values = {b"a": b"1,2,"} | UNCHANGED
    del values[key]
    (wrong,) = numbers().check(values)
    assert wrong == "b'ballast-7', which was never changed, is None"


def halves() -> ClusterMap:
    machines = [Machine(i, "127.0.0.1", 7000 + 100 * i, 17000 + 100 * i) for i in range(3)]
    cluster_map = first_map("local", machines, 2, 3)
    assert [each.slots for each in cluster_map.partitions] == list(HALVES)
    return cluster_map


def state(slots: str, *, importing: str = "", stale: str = "") -> SlotsState:
    spans = [{"slots": importing, "move": 3}] if importing else []
    facts = {"founded": True, "stale": stale, "owned": [{"slots": slots}], "importing": spans}
    return msgspec.convert(facts, SlotsState)


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ((state(HALVES[0]), state(HALVES[1])), []),
        (
            (state("0-8190"), state(HALVES[1])),
            ["the map is wrong about slots 8191 of partition 0", "nobody owns slots 8191"],
        ),
        (
            (state(HALVES[0]), state(HALVES[1], importing="7", stale="7")),
            ["partition 1 has frozen [] and imports [3]", "partition 1 has stale slots 7"],
        ),
    ],
)
def test_what_is_not_at_its_end_in_the_calm_is_found(
    states: tuple[SlotsState, ...], found: list[str]
) -> None:
    cluster_map = halves()
    assert unfinished(cluster_map, dict(enumerate(states))) == found


def test_a_slot_with_two_owners_and_a_move_without_end_are_found() -> None:
    cluster_map = halves()
    moving = msgspec.structs.replace(cluster_map, moves=(Move(5, "8191", 0, 1),))
    found = unfinished(moving, {0: state(HALVES[0]), 1: state("8191-16383")})
    assert found[0] == "move 5 of slots 8191 is copying, attempt 0"
    assert "partition 1 owns slots of another one: 8191" in found
