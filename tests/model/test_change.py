"""Every state of one change of the voters; each rule that is left out is found, or is not needed.

``make model`` explores larger ones.
"""

from __future__ import annotations

import pytest

from tests.model.change import Change, explore
from tests.model.cluster import ViolationError

ABC = frozenset({0, 1, 2})
REPLACED = ABC, frozenset({0, 1, 3})
REMOVED = ABC, frozenset({0, 1})
REMOVED_OTHER = frozenset({0, 2})
REMOVED_OF_FOUR = frozenset({0, 1, 2, 3}), ABC
TWO_ADDED = frozenset({0}), ABC
TWO_REMOVED = ABC, frozenset({0})


SAFE = {
    "replace one of 3, 2 terms": (Change(*REPLACED, 2), 28388),
    "remove one of 3, 2 terms": (Change(*REMOVED, 2), 1280),
    "remove one of 4, 2 terms": (Change(*REMOVED_OF_FOUR, 2), 5493),
    "add two to 1, 2 terms": (Change(*TWO_ADDED, 2), 1977),
    "remove two of 3, 2 terms": (Change(*TWO_REMOVED, 2), 1259),
    "remove one of 3 or another, 2 terms": (Change(*REMOVED, 2, rival=REMOVED_OTHER), 4151),
    "remove one of 3 and add it again, 2 terms": (Change(*REMOVED, 2, after=ABC), 2345),
    "remove one of 3, 2 terms, patient": (Change(*REMOVED, 2, patient=True), 4997),
    "remove one of 3, 2 terms, more entries": (Change(*REMOVED, 2, more=True), 4576),
}


@pytest.mark.parametrize("words", SAFE)
def test_every_state_of_a_change_is_safe(words: str) -> None:
    change, states = SAFE[words]
    assert explore(change) == states


def test_a_patient_model_finds_the_same_fault() -> None:
    change = Change(*TWO_REMOVED, 2, frozenset({"union"}), patient=True)
    with pytest.raises(ViolationError, match="is committed, a newer leader has"):
        explore(change, 100_000)


UNSAFE = {
    "apply": (REPLACED, "second one that wins"),
    "union": (TWO_REMOVED, "is committed, a newer leader has"),
    "joint commit": (TWO_REMOVED, "both committed"),
    "counts itself": (REPLACED, "committed is"),
}


@pytest.mark.parametrize("planted", UNSAFE)
def test_a_wrong_rule_that_loses_a_commit_is_found(planted: str) -> None:
    (old, new), words = UNSAFE[planted]
    change = Change(old, new, 2, frozenset({planted}), live=False)
    with pytest.raises(ViolationError, match=words):
        explore(change, 100_000)


STUCK = {
    "joiners wait": REPLACED,
    "kept": REMOVED,
    "strangers refused": REPLACED,
    "dropped": REMOVED_OF_FOUR,
    "outsider": REMOVED_OF_FOUR,
}


@pytest.mark.parametrize("planted", STUCK)
def test_a_wrong_rule_that_leaves_nobody_to_lead_is_found(planted: str) -> None:
    change = Change(*STUCK[planted], 2, frozenset({planted}))
    with pytest.raises(ViolationError, match="elect nobody"):
        explore(change, 100_000)


NOT_NEEDED = {
    "own term": (REMOVED, 2656),
    "joint commit": (REMOVED, 1651),
    "union": (REMOVED_OF_FOUR, 5493),
    "anybody stands": (REMOVED_OF_FOUR, 5743),
}


@pytest.mark.parametrize("planted", [("own term",), ("one at a time",)])
def test_changes_of_two_leaders_do_not_pass_each_other(planted: tuple[str, ...]) -> None:
    rivals = Change(*REMOVED, 2, frozenset(planted), rival=REMOVED_OTHER)
    after = Change(*REMOVED, 2, frozenset(planted), after=ABC)
    assert explore(rivals) > 4000
    assert explore(after) > 2345


@pytest.mark.parametrize("planted", NOT_NEEDED)
def test_a_rule_that_a_single_change_does_not_need(planted: str) -> None:
    shape, states = NOT_NEEDED[planted]
    assert explore(Change(*shape, 2, frozenset({planted}))) == states


def test_the_dropped_may_have_it_if_they_may_stand() -> None:
    planted = frozenset({"dropped", "anybody stands"})
    assert explore(Change(*REMOVED_OF_FOUR, 2, planted)) > 0
