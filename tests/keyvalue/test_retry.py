"""The policy by which clients repeat requests, and the window of a session."""

import math
from random import Random

import pytest

from quorate.keyvalue.limits import KEPT_REPLIES, KEPT_REPLY_BYTES
from quorate.keyvalue.retry import (
    SESSION_WINDOW,
    Fate,
    Retry,
    SessionWindow,
    Turns,
    fate_of_code,
    has_no_answer,
)


def test_pauses_double_up_to_the_longest() -> None:
    retry = Retry(lambda: 0.0, math.inf)
    assert [retry.pause_s() for _ in range(8)] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]


def test_clients_that_failed_together_do_not_return_together() -> None:
    pauses = [Retry(lambda: 0.0, math.inf, rng=Random(n)).pause_s() for n in range(20)]
    assert len(set(pauses)) == 20
    assert all(pause is not None and 0.01 <= pause <= 0.02 for pause in pauses)
    retry = Retry(lambda: 0.0, math.inf, rng=Random(1))
    last = [retry.pause_s() for _ in range(20)][-1]
    assert last is not None
    assert 0.5 <= last <= 1.0


def test_no_attempt_begins_after_the_deadline() -> None:
    now = 10.0
    retry = Retry(lambda: now, 10.05)
    assert retry.pause_s() == 0.02
    now = 10.02
    assert retry.pause_s() is None, "10.02 + 0.04 is too late"
    now = 9.0
    assert retry.pause_s() == 0.04, "a pause that was not given does not count"


def test_the_fate_of_an_attempt_follows_from_the_code_of_its_error() -> None:
    found = {code: fate_of_code(code) for code in ("CLUSTERDOWN", "MOVED", "REFUSED", "WRONGPASS")}
    assert set(found.values()) == {Fate.NOT_DONE}
    assert fate_of_code("UNKNOWN") is Fate.UNKNOWN
    assert {fate_of_code(code) for code in ("ERR", "NOSESSION", "NOPERM")} == {Fate.ANSWERED}
    later = [code for code in ("UNKNOWN", *found, "ERR", "NOPERM") if has_no_answer(code)]
    assert later == ["UNKNOWN", "CLUSTERDOWN", "MOVED"]


def test_members_take_turns() -> None:
    turns = Turns(["a", "b"])
    seen = [turns.current]
    for _ in range(3):
        turns.advance()
        seen.append(turns.current)
    assert seen == ["a", "b", "a", "b"]


def test_a_window_is_full_while_an_old_number_is_not_answered() -> None:
    window = SessionWindow(7)
    assert window.session_id == 7
    assert window.begin() == 1
    for number in range(2, SESSION_WINDOW + 2):
        assert not window.is_full
        assert window.begin() == number
        window.end(number)
    assert window.is_full
    window.end(1)
    assert not window.is_full
    with pytest.raises(KeyError):
        window.end(1)


def test_a_window_is_full_once_long_replies_could_push_out_the_one_that_is_missing() -> None:
    window, full_batch = SessionWindow(7), 10 << 10
    for _ in range(3):
        window.begin()
    window.end(2, full_batch)
    assert window.is_full
    assert 3 * full_batch < KEPT_REPLY_BYTES, "those of 1 and 3 are still to come"
    window.end(1, full_batch)
    assert not window.is_full, "only what came after the oldest one counts"
    window.end(3, full_batch)
    assert not window.is_full


def test_members_keep_more_replies_than_a_window_has_numbers() -> None:
    assert SESSION_WINDOW < KEPT_REPLIES
