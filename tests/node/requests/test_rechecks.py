"""Requests that wait are checked again before they are sent, where their sender wants that."""

from __future__ import annotations

from collections.abc import Sequence

from quorate.node.requests.request import COMMAND, Request, still_allowed


def request() -> Request:
    return Request(COMMAND, b"", 0, lambda _result: None)


class Shared:
    """A check that stays with each request that it lets pass."""

    def __init__(self) -> None:
        self.looks = 0
        self.allows = True

    def __call__(self, request: Request) -> Sequence[Request]:
        self.looks += 1
        if not self.allows:
            return ()
        request.recheck = self
        return (request,)


def test_a_check_that_stays_is_asked_once_for_all_that_share_it() -> None:
    one, other, waiting = Shared(), Shared(), [request() for _ in range(6)]
    for each in waiting[:3]:
        each.recheck = one
    for each in waiting[4:]:
        each.recheck = other
    for count in (1, 2):
        assert [*still_allowed(waiting)] == waiting
        assert (one.looks, other.looks) == (count, count)
    one.allows = False
    assert [*still_allowed(waiting)] == waiting[3:]
    assert one.looks == 5


def test_a_check_that_does_not_stay_is_asked_for_each_request() -> None:
    asked: list[Request] = []

    def check(request: Request) -> Sequence[Request]:
        asked.append(request)
        return (request,)

    waiting = [request() for _ in range(3)]
    for each in waiting:
        each.recheck = check
    assert [*still_allowed(waiting)] == waiting
    assert [*still_allowed(waiting)] == waiting
    assert asked == waiting
