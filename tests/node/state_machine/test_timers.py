"""Timers are due once, in order, and the same whether a member has been restarted or not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import StorageError
from quorate.node.state_machine.timers import Timer, Timers

IDS = st.sampled_from([b"", b"a", b"b", b"c" * 300])
STEPS = st.one_of(
    st.tuples(st.just("schedule"), IDS, st.integers(1, 50), st.binary(max_size=5)),
    st.tuples(st.just("cancel"), IDS),
    st.tuples(st.just("pass"), st.integers(0, 9), st.integers(1, 3)),
    st.tuples(st.just("restart")),
)


@given(st.lists(STEPS, max_size=80))
def test_timers_are_a_sorted_dictionary(steps: list[tuple[Any, ...]]) -> None:
    timers, model, now = Timers(), dict[bytes, Timer](), 0
    for step in steps:
        match step:
            case ("schedule", bytes(key), int(deadline), bytes(payload)):
                timers.schedule(key, deadline, payload)
                model[key] = Timer(key, deadline, payload)
            case ("cancel", bytes(key)):
                assert timers.cancel(key) == (model.pop(key, None) is not None)
            case ("pass", int(passed), int(limit)):
                now += passed
                in_order = sorted(
                    model.values(), key=lambda each: (each.deadline_ms, each.timer_id)
                )
                due = [each for each in in_order if each.deadline_ms <= now][:limit]
                assert timers.due(now, limit) == due
                for each in due:
                    del model[each.timer_id]
            case _:
                timers = Timers.load_untrusted(iter(list(timers.save())))
        assert len(timers) == len(model)
        assert timers.get(b"a") == model.get(b"a")
        first = min((each.deadline_ms for each in model.values()), default=None)
        assert timers.next_deadline_ms() == first


def test_what_is_replaced_again_and_again_takes_no_room_and_none_of_the_limit() -> None:
    timers = Timers()
    for deadline in range(1, 10_001):
        timers.schedule(b"often", deadline)
    timers.schedule(b"x", 5)
    timers.schedule(b"y", 6)
    assert timers.due(9999, 2) == [Timer(b"x", 5), Timer(b"y", 6)]
    assert timers.due(9999) == []
    assert timers.due(10_000) == [Timer(b"often", 10_000)]


def test_pieces_are_of_the_moment_and_of_bounded_size() -> None:
    timers = Timers()
    for i in range(100):
        timers.schedule(b"%d" % i, 1 + i, bytes(50_000))
    pieces = timers.save()
    timers.cancel(b"7")
    found = list(pieces)
    assert max(map(len, found)) < 2 << 20
    assert len(Timers.load_untrusted(iter(found))) == 100
    assert b"".join(found) == b"".join(Timers.load_untrusted(iter(found)).save())


@pytest.mark.parametrize("wrong", [b"x", bytes(16), b"\xff" * 16, b"\1" + bytes(14)])
def test_nonsense_is_refused(wrong: bytes) -> None:
    with pytest.raises(StorageError, match="timer"):
        Timers.load_untrusted(iter([wrong]))


@pytest.mark.parametrize("deadline", [0, -1])
def test_a_deadline_is_positive(deadline: int) -> None:
    with pytest.raises(ValueError, match="deadline"):
        Timers().schedule(b"a", deadline)
