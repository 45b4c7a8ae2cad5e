"""SessionRedis: what it makes of each answer, with a scripted member and a fake clock."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

import os
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import redis
from redis._parsers import _HiredisParser, _RESP2Parser
from redis.exceptions import ClusterDownError

from quorate.client.session_redis import (
    OutcomeUnknownError,
    SessionLostError,
    SessionRedis,
    WritesSuspendedError,
)
from tests.support.scripted import LOST, ScriptedMember, scripted

PATIENCE = 60.0
OPENED, ONE = b":417\r\n", b":1\r\n"
DOWN = b"-CLUSTERDOWN no leader was found in time; nothing was done\r\n"
UNKNOWN = b"-UNKNOWN the outcome of this request is not known: it was sent\r\n"
DENIED = b"-NOPERM User app has no permissions to run the 'incrby' command\r\n"
FORGOTTEN = b"-FORGOTTEN 1 is below the window of session 417; nothing was done now\r\n"
REFUSED = b"-REFUSED suspended at 64\r\n"
NOSESSION = b"-NOSESSION there is no session 417; nothing was done now\r\n"
PARKED = 4.0
"""How long a member parks a request before it says that there is no leader."""


class Clock:
    """Stands still but for the client's pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("quorate.client.session_redis.time", clock)
    return clock


@pytest.fixture(params=[_HiredisParser, _RESP2Parser])
def parser(request: pytest.FixtureRequest) -> object:
    """Each of redis-py's parsers; it takes the one for RESP3 in place of that for RESP2."""
    return request.param


@contextmanager
def connected(member: ScriptedMember, parser: object = _HiredisParser) -> Generator[SessionRedis]:
    """Give a client of a cluster of which each member answers by the same script."""
    with SessionRedis([member.address] * 3, patience_s=PATIENCE) as client:
        for pool in client._pools:
            pool.connection_kwargs["parser_class"] = parser
        yield client
        client._session = None  # there is no reply for its end


def increments(sequence: int, times: int) -> list[list[bytes]]:
    """What is sent when one INCR is sent so often."""
    return [[b"QUORATE.ONCE", b"417", b"%d" % sequence, b"INCRBY", b"a", b"1"]] * times


def test_a_quorum_that_is_gone_for_longer_than_requests_are_parked(
    parser: object, clock: Clock
) -> None:
    with scripted(OPENED, *[DOWN] * 12, ONE) as member, connected(member, parser) as client:
        assert client.incr("a") == 1
        assert member.asked[1:] == increments(1, 13)
    assert PARKED < clock.now < PATIENCE


def test_a_quorum_that_is_gone_for_good_did_nothing(parser: object, clock: Clock) -> None:
    with (
        scripted(OPENED, *[DOWN] * 99) as member,
        connected(member, parser) as client,
        pytest.raises(ClusterDownError, match="nothing was done"),
    ):
        client.incr("a")
    assert PATIENCE - 1 <= clock.now <= PATIENCE


@pytest.mark.parametrize("refusal", [DOWN, REFUSED, DENIED])
@pytest.mark.parametrize(
    ("first", "error"), [(LOST, redis.ConnectionError), (UNKNOWN, OutcomeUnknownError)]
)
def test_that_nothing_was_done_is_never_said_of_an_attempt_before(
    parser: object, first: bytes | None, error: type[redis.RedisError], refusal: bytes
) -> None:
    with scripted(OPENED, first, *[refusal] * 99) as member, connected(member, parser) as client:
        with pytest.raises(error) as caught:
            client.incr("a")
        assert not isinstance(caught.value, ClusterDownError | WritesSuspendedError)


@pytest.mark.parametrize("trouble", [LOST, UNKNOWN, DOWN])
def test_the_same_number_is_sent_until_it_is_answered(parser: object, trouble: bytes) -> None:
    with scripted(OPENED, trouble, trouble, ONE, ONE) as member:
        with connected(member, parser) as client:
            assert client.incr("a") == 1
            client.incr("a")
        assert member.asked[1:] == increments(1, 3) + increments(2, 1)


def test_a_suspended_cluster_refuses_at_once(parser: object, clock: Clock) -> None:
    with (
        scripted(OPENED, DOWN, REFUSED) as member,
        connected(member, parser) as client,
        pytest.raises(WritesSuspendedError, match="suspended at 64"),
    ):
        client.incr("a")
    assert clock.now < 1


def test_a_reply_that_is_kept_no_more_is_an_unknown_outcome(parser: object, clock: Clock) -> None:
    with (
        scripted(OPENED, LOST, FORGOTTEN) as member,
        connected(member, parser) as client,
        pytest.raises(OutcomeUnknownError, match="below the window"),
    ):
        client.incr("a")
    assert clock.now < 1


@pytest.mark.parametrize("trouble", [LOST, UNKNOWN])
def test_a_session_that_ends_under_a_write_that_may_be_done(parser: object, trouble: bytes) -> None:
    with (
        scripted(OPENED, trouble, NOSESSION) as member,
        connected(member, parser) as client,
        pytest.raises(SessionLostError, match="it may be done or not"),
    ):
        client.incr("a")


@pytest.mark.parametrize("trouble", [[], [DOWN], [DOWN, DOWN]])
def test_a_session_that_ends_before_a_write_can_be_done_is_replaced(
    parser: object, trouble: list[bytes]
) -> None:
    replies = (OPENED, *trouble, NOSESSION, b":418\r\n", ONE)
    with scripted(*replies) as member, connected(member, parser) as client:
        assert client.incr("a") == 1
        assert client.session_id == 418


def test_a_member_that_is_not_there_was_sent_nothing(clock: Clock) -> None:
    with scripted() as gone:
        nobody = gone.address
    with (
        scripted(OPENED, NOSESSION, b":418\r\n", *[DOWN] * 99) as member,
        SessionRedis([nobody, member.address], patience_s=PATIENCE) as client,
    ):
        with pytest.raises(ClusterDownError):
            client.incr("a")
        client._session = None
    assert clock.now >= PATIENCE - 1


def test_what_redis_py_says_in_one_word_is_a_write_too(parser: object) -> None:
    with scripted(OPENED, LOST, ONE) as member, connected(member, parser) as client:
        assert client.execute_command("incrby a", 1) == 1
        assert (
            member.asked[1:]
            == [
                [b"QUORATE.ONCE", b"417", b"1", b"incrby", b"a", b"1"],
            ]
            * 2
        )


def test_an_error_of_the_command_is_its_reply(parser: object) -> None:
    wrong = b"-ERR value is not an integer or out of range\r\n"
    with (
        scripted(OPENED, wrong) as member,
        connected(member, parser) as client,
        pytest.raises(redis.ResponseError, match="value is not an integer"),
    ):
        client.incr("a")


def test_a_forked_process_has_a_session_of_its_own(
    parser: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(OPENED, ONE, b":418\r\n", ONE) as member:
        with connected(member, parser) as client:
            client.incr("a")
            monkeypatch.setattr(os, "getpid", lambda: 1)  # so redis-py makes new connections, too
            client.incr("a")
            assert client.session_id == 418
        numbers = [words[1:3] for words in member.asked if words[0] == b"QUORATE.ONCE"]
        assert numbers == [[b"417", b"1"], [b"418", b"1"]]


def test_a_child_does_not_end_its_parents_session(
    parser: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(OPENED, ONE) as member, connected(member, parser) as client:
        client.incr("a")
        monkeypatch.setattr(os, "getpid", lambda: 1)
        client.close()
        assert len(member.asked) == 2
