"""Whether the logs of partitions agree on who owned which slot."""

import random

import pytest

from quorate.keyvalue.slots.history import PartitionLog, wrong_moves


class Cluster:
    """Logs of some partitions; an entry takes a hundred bytes and a second."""

    def __init__(self, count: int = 2) -> None:
        self.logs = [PartitionLog(at) for at in range(count)]
        self.now = 0
        self.ends = [0] * count
        self.do(0, "FOUND 0-99")
        for at in range(1, count):
            self.do(at, "FOUND ")

    def do(self, partition: int, line: str) -> int:
        """Apply a command; return its position plus one, which is its revision without a shift."""
        words = [b"QUORATE.SLOTS", *(word.encode() for word in line.split(" "))]
        position = self.ends[partition]
        self.logs[partition].apply_untrusted(words, position, 0, self.now)
        self.ends[partition] += 100
        self.now += 1000
        return position + 1

    def kinds(self) -> list[str]:
        return [wrong.kind for wrong in wrong_moves(self.logs)]


def moved(cluster: Cluster, move: int, source: int, target: int, epoch: int) -> None:
    slots = "5-9"
    cluster.do(target, f"IMPORT {move} {slots}")
    cluster.do(source, f"FREEZE {move} {slots} {target}")
    revision = cluster.logs[source].steps[-1].revision
    cluster.do(target, f"OWN {move} {revision} 1 {epoch}")
    cluster.do(source, f"RELEASE {move} {target} 0")


def test_moves_back_and_forth_are_sound() -> None:
    cluster, rng = Cluster(3), random.Random(1)
    owner = 0
    for move in range(1, 20):
        target = rng.choice([at for at in range(3) if at != owner])
        if rng.random() < 0.3:  # an attempt that is given up, with late and repeated commands
            cluster.do(target, f"IMPORT {100 + move} 5-9")
            cluster.do(owner, f"FREEZE {100 + move} 5-9 1")
            cluster.do(target, f"DROP {100 + move}")
            cluster.do(target, f"OWN {100 + move} 7 1 {move}")
            cluster.do(owner, f"THAW {100 + move}")
            cluster.do(owner, f"RELEASE {100 + move} {target} 0")
        moved(cluster, move, owner, target, move)
        cluster.do(owner, f"RELEASE {move} {target} 0")
        owner = target
    assert cluster.kinds() == []


def test_a_slot_that_is_served_in_two_places_is_found() -> None:
    cluster = Cluster()
    cluster.do(1, "IMPORT 7 5")
    revision = cluster.do(0, "FREEZE 7 5 1")
    cluster.do(1, f"OWN 7 {revision} 1 1")
    assert cluster.kinds() == []  # the move is under way
    cluster.do(0, "THAW 7")
    assert cluster.kinds() == ["two-owners", "thaw-of-owned"]


@pytest.mark.parametrize("line", ["OWN 7 {more} 1 1", "OWN 7 {right} 1 2"])
def test_a_target_that_takes_over_at_another_place_is_found(line: str) -> None:
    cluster = Cluster()
    cluster.do(1, "IMPORT 7 5")
    right = cluster.do(0, "FREEZE 7 5 1")
    cluster.do(1, line.format(right=right, more=right + 1))
    (wrong,) = wrong_moves(cluster.logs)
    assert wrong.kind == "own-without-freeze"
    assert wrong.text.startswith("5: no partition froze them in move 7 at revision")


def test_a_slot_that_is_given_up_too_early_is_found() -> None:
    cluster = Cluster()
    cluster.do(1, "IMPORT 7 5")
    cluster.do(0, "FREEZE 7 5 1")
    cluster.do(0, "RELEASE 7 1 0")
    assert cluster.kinds() == ["release-without-own"]


def test_two_owners_at_one_epoch_are_found() -> None:
    cluster = Cluster(3)
    for target in (1, 2):
        cluster.do(target, "IMPORT 7 5")
    revision = cluster.do(0, "FREEZE 7 5 1")
    for target in (1, 2):
        cluster.do(target, f"OWN 7 {revision} 1 1")
    (wrong,) = wrong_moves(cluster.logs)
    assert wrong.text == "5: partitions 1 and 2 both took them over at epoch 2"


def test_a_log_that_ends_earlier_misses_nothing() -> None:
    cluster = Cluster()
    moved(cluster, 7, 0, 1, 1)
    late = PartitionLog(1)
    late.until_ms = 2000.0
    assert wrong_moves([cluster.logs[0], late]) == []
    late.until_ms = float(cluster.now)
    assert [wrong.kind for wrong in wrong_moves([cluster.logs[0], late])] == ["release-without-own"]


def test_a_log_may_begin_with_a_snapshot() -> None:
    cluster = Cluster()
    moved(cluster, 7, 0, 1, 1)
    cluster.do(1, "FREEZE 8 5 0")
    owned = {"slots": "5-9", "epoch": 2, "since": 201}
    revision = cluster.logs[1].steps[-1].revision
    frozen = {"move": 8, "slots": "5", "target": 0, "revision": revision, "epoch": 2}
    facts = {"founded": True, "shift": 0, "now_ms": 0, "owned": [owned], "frozen": [frozen]}
    later = PartitionLog(1, facts | {"importing": [], "ended": [{"move": 7, "word": "owned"}]})
    cluster.logs[1] = later
    assert cluster.kinds() == []
    cluster.do(0, "IMPORT 8 5")
    cluster.do(0, f"OWN 8 {frozen['revision']} 1 2")
    assert cluster.kinds() == []
    cluster.do(1, "THAW 8")
    assert cluster.kinds() == ["two-owners", "thaw-of-owned"]


def test_malformed_commands_change_nothing() -> None:
    cluster = Cluster()
    for line in (
        "FREEZE x 5 1",
        "FREEZE 7 5-1 1",
        "FREEZE 7",
        "OWN 1 2 3 4",
        "NOTHING 1",
        "FREEZE 7 200 1",
    ):
        cluster.do(0, line)
    cluster.logs[0].apply_untrusted([b"SET", b"a", b"b"], 0)
    cluster.logs[0].apply_untrusted([], 0)
    assert [step.kind for step in cluster.logs[0].steps] == ["found"]
