"""What partitions say that they own is compared with the map, and with each other."""

import msgspec

from quorate.keyvalue.slots.cluster_map import META, ClusterMap, Move
from quorate.keyvalue.slots.ranges import parse_slots_untrusted
from quorate.local.survey import Survey
from quorate.machine.partition_survey import GroupSeen, owners_seen
from quorate.partitions.balance import first_map
from tests.support.partitions_world import machines

FIRST = first_map("orders", machines(3), 2, 3)


def seen(*slots: str, frozen: str = "") -> list[GroupSeen]:
    """The metadata group, and a partition for each text; an empty one does not answer."""
    groups = [GroupSeen(META, Survey(()), "")]
    for number, each in enumerate(slots):
        said = parse_slots_untrusted(frozen) if number == 0 else 0
        groups.append(GroupSeen(number, Survey(()), each, founded=bool(each), frozen=said))
    return groups


def with_move(slots: str) -> ClusterMap:
    move = Move(1, slots, 0, 1)
    return msgspec.structs.replace(FIRST, moves=(move,))


def test_an_agreement_needs_no_words() -> None:
    assert owners_seen(FIRST, seen("0-8191", "8192-16383")) == ([], [])


def test_slots_with_two_owners_or_none_are_named() -> None:
    problems, warnings = owners_seen(FIRST, seen("0-8191", "100-200,8192-16383"))
    assert problems == ["slots 100-200 are owned by several partitions"]
    assert warnings == ["partition 1 owns slots 100-200, which is not so in map 1: look again"]
    problems, warnings = owners_seen(FIRST, seen("0-8191", "8193-16383"))
    assert (problems, warnings) == (["slots 8192 are owned by nobody"], [])


def test_a_partition_that_does_not_answer_may_own_anything() -> None:
    assert owners_seen(FIRST, seen("0-8191", "")) == ([], [])


def test_slots_on_the_move_are_left_out() -> None:
    moving = seen("0-8191", "100-200,8192-16383")
    assert owners_seen(with_move("100-200"), moving) == ([], [])
    frozen = seen("0-8191", "100-200,8192-16383", frozen="100-200")
    assert owners_seen(FIRST, frozen) == ([], [])
