"""The checker is right: by brute force, on histories of the literature, on planted faults."""

from __future__ import annotations

import pickle
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.errors import HistoryError
from quorate.histories.history import Operation
from quorate.histories.linearizability import Budget, Verdict, check, check_key
from quorate.histories.specification import ANY, Strings, Unnamed
from tests.histories.histories import KEY, NEVER, busy_history, explained, lived, op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.histories.history import Status, Value

MIXES = (
    ("get", "set"),
    ("get", "set", "cas", "del"),
    ("get", "append"),
    ("get", "append", "del"),
    ("get", "incr"),
    ("get", "incr", "set"),
    ("get", "set", "cas", "del", "incr", "append"),
)
WRONG: dict[str, tuple[Value, ...]] = {
    "get": (None, b"1", b"2", b"11", b"12", b"3"),
    "incr": (0, 1, 2, 3, None),
    "append": (1, 2, 3),
    "cas": (0, 1),
    "del": (0, 1),
    "set": (b"OK",),
}


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Small histories with much overlap; about a quarter of them is not linearizable."""
    rng = draw(st.randoms(use_true_random=False))
    names = draw(st.sampled_from(MIXES))
    values = draw(st.sampled_from([[b"1", b"2"], [b"1", b"", b"-1", b"12", b"x"]]))
    planned: list[tuple[float, Operation]] = []
    for client in range(draw(st.integers(1, 7))):
        name = rng.choice(names)
        value, expected = rng.choice(values), rng.choice([None, *values])
        args = {"set": (value,), "append": (value,), "cas": (expected, value)}.get(name, ())
        statuses: list[Status] = ["ok", "unknown", "fail"]
        (status,) = rng.choices(statuses, [8, 3, 1])
        start = rng.randrange(6)
        at = start + rng.randrange(4)
        end = at + rng.randrange(4)
        if status == "unknown":
            at = rng.choice([at, at + rng.randrange(12), NEVER])
        planned.append((at + rng.random(), op(client, (start, end), name, *args, status=status)))
    history = lived(planned)
    which = rng.randrange(len(history))
    if draw(st.booleans()) and history[which].status == "ok":
        wrong = rng.choice(WRONG[history[which].op])
        history[which] = attrs.evolve(history[which], result=wrong)
    rng.shuffle(history)
    return history


@settings(max_examples=300, deadline=None)
@given(histories())
def test_the_checker_agrees_with_brute_force(history: list[Operation]) -> None:
    right = Verdict.LINEARIZABLE if explained(history) else Verdict.VIOLATED
    assert check(history).verdict is right


@settings(max_examples=150, deadline=None)
@given(histories())
def test_the_operations_of_a_window_are_not_linearizable_whatever_the_others_do(
    history: list[Operation],
) -> None:
    (report,) = check(history).keys
    if report.verdict is not Verdict.VIOLATED:
        assert report.window is None
        return
    assert report.window
    shown = report.window.operations
    assert shown
    assert all(one in history for one in shown)
    others = [one for one in history if one not in shown and one.status != "fail"]
    free = [attrs.evolve(one, status="unknown", result=None) for one in others]
    assert not explained([*shown, *free])


# From the literature ----------------------------------------------------------------------------

OVERLAPPING_WRITE = (
    op(0, (0, 100), "set", b"100"),
    op(1, (25, 75), "get", result=b"100"),
    op(2, (30, 60), "get", result=None),
)
"""A read may see a write that is under way while a later one does not, if those two overlap."""

NEW_THEN_OLD = (
    op(0, (0, 100), "set", b"200"),
    op(1, (10, 30), "get", result=b"200"),
    op(2, (40, 90), "get", result=None),
)
"""But once a read has seen it, one that begins later must, too: no new-old inversion."""

TWO_WRITERS = (
    op(0, (0, 10), "set", b"1"),
    op(1, (0, 10), "set", b"2"),
    op(2, (20, 30), "get", result=b"1"),
    op(3, (20, 30), "get", result=b"2"),
)
"""Two readers do not disagree about which of two writes came last."""

SEQUENTIAL_ONLY = (
    op(0, (0, 1), "set", b"1"),
    op(0, (2, 3), "set", b"2"),
    op(1, (4, 5), "get", result=b"1"),
)
"""Sequentially consistent, since no client sees its own order broken; but not linearizable."""


@pytest.mark.parametrize(
    ("history", "right"),
    [
        (OVERLAPPING_WRITE, True),
        (NEW_THEN_OLD, False),
        (TWO_WRITERS, False),
        (TWO_WRITERS[:3], True),
        (SEQUENTIAL_ONLY, False),
    ],
    ids=["overlap", "inversion", "two writers", "one reader", "stale"],
)
def test_examples_of_the_literature(history: Sequence[Operation], right: bool) -> None:  # noqa: FBT001
    assert (check(history).verdict is Verdict.LINEARIZABLE) is right


class Queue:
    """A queue first in, first out, after Herlihy and Wing's examples."""

    initial: tuple[Value, ...] = ()
    overwriters: frozenset[str] = frozenset()

    def apply(
        self, state: tuple[Value, ...], op: str, args: tuple[Value, ...]
    ) -> tuple[tuple[Value, ...], Value]:
        if op == "enqueue":
            return (*state, *args), None
        return (state[1:], state[0]) if state else (state, None)

    def needs(self, op: str, args: tuple[Value, ...], result: Value) -> Unnamed:
        return ANY

    def makes(self, op: str, args: tuple[Value, ...], result: Value, *, known: bool) -> Unnamed:
        return ANY

    def grows(self, state: tuple[Value, ...], into: tuple[Value, ...]) -> bool:
        return True


@pytest.mark.parametrize(
    ("history", "right"),
    [
        # figure 1a: enqueued one after the other by two, dequeued in that order
        (
            [
                op(0, (0, 2), "enqueue", b"x"),
                op(1, (1, 4), "enqueue", b"y"),
                op(1, (5, 6), "dequeue", result=b"x"),
                op(0, (5, 7), "dequeue", result=b"y"),
            ],
            True,
        ),
        # figure 1b: x was there before y came, and y comes out first
        (
            [
                op(0, (0, 1), "enqueue", b"x"),
                op(1, (2, 3), "enqueue", b"y"),
                op(0, (4, 5), "dequeue", result=b"y"),
            ],
            False,
        ),
        # figure 1c: dequeued while its enqueuing is under way
        (
            [op(0, (0, 9), "enqueue", b"x"), op(1, (1, 2), "dequeue", result=b"x")],
            True,
        ),
        # figure 1d: the same element comes out twice
        (
            [
                op(0, (0, 9), "enqueue", b"x"),
                op(1, (0, 9), "enqueue", b"y"),
                op(0, (10, 12), "dequeue", result=b"y"),
                op(1, (10, 13), "dequeue", result=b"y"),
            ],
            False,
        ),
    ],
    ids=["a", "b", "c", "d"],
)
def test_the_queues_of_herlihy_and_wing(history: Sequence[Operation], right: bool) -> None:  # noqa: FBT001
    verdict = check_key(KEY, history, Queue()).verdict
    assert (verdict is Verdict.LINEARIZABLE) is right


# Unknown outcomes -------------------------------------------------------------------------------


def test_an_unknown_write_may_take_effect_long_after_its_client_gave_up() -> None:
    history = [
        op(0, (0, 1), "set", b"new", status="unknown"),
        op(1, (5, 6), "get", result=None),
        op(1, (90, 91), "get", result=b"new"),
    ]
    assert check(history).verdict is Verdict.LINEARIZABLE


def test_an_unknown_write_takes_effect_once() -> None:
    history = [
        op(0, (0, 1), "set", b"new", status="unknown"),
        op(1, (2, 3), "get", result=b"new"),
        op(1, (4, 5), "set", b"other"),
        op(1, (6, 7), "get", result=b"new"),
    ]
    assert check(history).verdict is Verdict.VIOLATED


def test_an_unknown_write_has_no_effect_before_it_began() -> None:
    history = [
        op(1, (0, 3), "get", result=b"new"),
        op(0, (4, 5), "set", b"new", status="unknown"),
    ]
    assert check(history).verdict is Verdict.VIOLATED


def test_a_failed_write_has_no_effect() -> None:
    history = [op(0, (0, 1), "set", b"no", status="fail"), op(1, (2, 3), "get", result=b"no")]
    assert check(history).verdict is Verdict.VIOLATED


def test_hundreds_of_unknown_increments_are_no_trouble() -> None:
    history = [op(n, (n, n + 1), "incr", status="unknown") for n in range(300)]
    history.append(op(999, (1000, 1001), "get", result=b"150"))
    assert check(history).verdict is Verdict.LINEARIZABLE
    history.append(op(999, (1002, 1003), "get", result=b"149"))
    assert check(history).verdict is Verdict.VIOLATED


# Planted faults in long histories ---------------------------------------------------------------


def busy(names: Sequence[str], *, keys: int = 1, seed: int = 1) -> list[Operation]:
    return busy_history(
        Random(seed), operations=900, keys=keys, clients=8, names=names, unknown=0.01
    )


@pytest.mark.parametrize("names", [("get", "set"), ("get", "incr"), ("get", "append")], ids=str)
def test_a_busy_history_is_linearizable(names: Sequence[str]) -> None:
    for seed in range(4):
        report = check(busy(names, keys=4, seed=seed))
        assert report.verdict is Verdict.LINEARIZABLE
        assert report.operations == 900
        assert report.trouble == []


def test_a_stale_read_is_found_and_shown() -> None:
    history = busy(("get", "set"))
    reads = [i for i, one in enumerate(history) if one.op == "get" and one.status == "ok"]
    old = history[reads[200]]
    later = next(i for i in reads if i > reads[200] and history[i].start_ns > old.end_ns + 5000)
    history[later] = attrs.evolve(history[later], result=old.result)
    (trouble,) = check(history).trouble
    assert trouble.window
    assert history[later] in trouble.window.operations
    assert len(trouble.window.operations) <= 6
    assert trouble.states < 20_000
    assert str(trouble).startswith("b'k0': not linearizable\n  no order explains these; the ")


def test_a_lost_update_is_found_and_shown() -> None:
    """Two increments that read the same number."""
    history = busy(("incr",))
    known = [i for i, one in enumerate(history) if one.status == "ok"]
    first, second = known[400], known[401]
    history[second] = attrs.evolve(history[second], result=history[first].result)
    (trouble,) = check(history).trouble
    assert trouble.window
    shown = set(trouble.window.operations)
    assert {history[first], history[second]} & shown
    assert len(shown) <= 3


def test_a_lost_append_is_found() -> None:
    history = busy(("get", "append"))
    reads = [i for i, one in enumerate(history) if one.op == "get" and one.status == "ok"]
    which = reads[-1]
    whole = history[which].result
    assert isinstance(whole, bytes)
    history[which] = attrs.evolve(history[which], result=whole[:60] + whole[63:])
    assert check(history).verdict is Verdict.VIOLATED


def test_a_phantom_is_shown_alone() -> None:
    history = [*busy(("get", "set")), op(9, (10**6, 10**6 + 1), "get", result=b"phantom")]
    history[-1] = attrs.evolve(history[-1], key=b"k0")
    (trouble,) = check(history).trouble
    assert trouble.window
    assert trouble.window.operations == (history[-1],)


def test_only_the_key_that_is_wrong_is_named() -> None:
    history = busy(("get", "set"), keys=5)
    wrong = Operation(0, "get", b"k3", (), b"phantom", 0, 1, "ok")
    report = check([*history, wrong])
    assert [one.key for one in report.trouble] == [b"k3"]
    assert len(report.keys) == 5


# Bounds -----------------------------------------------------------------------------------------


def test_what_takes_too_many_states_is_undecided() -> None:
    report = check(busy(("get", "set")), Budget(states=100))
    assert report.verdict is Verdict.UNDECIDED
    assert str(report.keys[0]) == "b'k0': undecided: 900 operations, gave up after 101 states"


def test_what_takes_too_long_is_undecided() -> None:
    times = iter(range(100))
    budget = Budget(clock=lambda: float(next(times)), deadline=1.0)
    names = ("get", "set", "append", "del")
    (report,) = check(busy(names), budget).keys
    assert report.verdict is Verdict.UNDECIDED
    assert next(times) == 2
    assert report.states == 2048


def test_a_violation_outweighs_what_is_undecided() -> None:
    wrong = Operation(0, "get", b"other", (), b"phantom", 0, 1, "ok")
    report = check([*busy(("get", "set")), wrong], Budget(states=100))
    assert report.verdict is Verdict.VIOLATED
    assert [one.verdict for one in report.keys] == [Verdict.UNDECIDED, Verdict.VIOLATED]


def test_an_operation_that_no_string_has_is_refused() -> None:
    with pytest.raises(HistoryError, match="no such operation on a string: push with "):
        check([op(0, (0, 1), "push", b"x")])
    with pytest.raises(HistoryError, match=r"no such operation on a string: set with \(1,\)"):
        check([op(0, (0, 1), "set", 1)])


def test_a_key_can_be_checked_in_another_process() -> None:
    history = [*NEW_THEN_OLD]
    job = pickle.loads(pickle.dumps((KEY, history, Strings(), Budget())))
    report = check_key(*job)
    assert pickle.loads(pickle.dumps(report)) == check_key(KEY, history, Strings())


def test_nothing_is_linearizable() -> None:
    assert check([]).verdict is Verdict.LINEARIZABLE
    assert check([op(0, (0, 1), "set", b"x", status="unknown")]).verdict is Verdict.LINEARIZABLE
