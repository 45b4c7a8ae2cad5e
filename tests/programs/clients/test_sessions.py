"""SessionRedis: redis-py's client, and every write is done exactly once whoever dies."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import threading
from collections.abc import Iterator
from typing import cast

import pytest
import redis

from quorate.client.session_redis import SessionLostError, SessionRedis
from quorate.node import Limits
from tests.support.real import RealCluster


def members(cluster: RealCluster) -> list[tuple[str, int]]:
    return [("127.0.0.1", port) for port in cluster.ports]


@pytest.fixture
def client(whole: RealCluster) -> Iterator[SessionRedis]:
    with SessionRedis(members(whole)) as client:
        yield client


def test_increments_through_kills_of_the_leader_count_exactly(whole: RealCluster) -> None:
    """Some writers at once, and the leader is killed twice meanwhile."""
    each, writers, kills = 60, 3, 2
    done = [0] * writers
    errors: list[BaseException] = []
    with SessionRedis(members(whole)) as client:

        def count(writer: int) -> None:
            try:
                for _ in range(each):
                    client.incr("counter")
                    client.append(f"list-{writer}", f"{done[writer]},")
                    done[writer] += 1
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=count, args=(n,)) for n in range(writers)]
        for thread in threads:
            thread.start()
        for kill in range(1, kills + 1):
            while sum(done) < kill * each * writers // (kills + 1) and not errors:
                threads[0].join(0.01)
            whole.kill(whole.leader)
            whole.restart_dead()
            whole.wait_until_agreed()
        for thread in threads:
            thread.join()
        assert errors == []
        assert client.get("counter") == b"%d" % (each * writers)
        expected = "".join(f"{n}," for n in range(each)).encode()
        assert client.mget([f"list-{n}" for n in range(writers)]) == [expected] * writers


def test_a_cluster_that_was_killed_as_a_whole_remembers_every_reply(whole: RealCluster) -> None:
    with redis.Redis(port=whole.leader_port) as client:
        session = cast("int", client.execute_command("QUORATE.SESSION", "OPEN"))
        for sequence in (1, 2, 3):
            once = ("QUORATE.ONCE", session, sequence, "INCR", "a")
            assert client.execute_command(*once) == sequence
    for member in range(3):
        whole.kill(member)
    whole.restart_dead()
    with redis.Redis(port=whole.follower_port) as client:
        for sequence in (1, 2, 3):
            once = ("QUORATE.ONCE", session, sequence, "INCR", "a")
            assert client.execute_command(*once) == sequence
        assert client.get("a") == b"3"
    whole.wait_until_agreed()


def test_a_quorum_that_is_away_for_longer_than_requests_are_parked(whole: RealCluster) -> None:
    """The write that waits for it is done once, and so is one that was on its way to the leader."""
    done: list[int] = []
    back = threading.Event()
    with SessionRedis(members(whole)) as client:

        def count() -> None:
            while not back.is_set():
                client.incr("counter")
                done.append(1)

        thread = threading.Thread(target=count)
        thread.start()
        while not done and thread.is_alive():
            thread.join(0.01)
        leader = whole.leader
        whole.kill(leader)
        whole.kill((leader + 1) % 3)
        thread.join(1.0)
        before = len(done)
        thread.join(Limits().park_seconds + 1.0)
        assert thread.is_alive()
        assert len(done) == before > 0
        back.set()
        whole.restart_dead()
        thread.join(30)
        assert len(done) == before + 1
        assert client.get("counter") == b"%d" % len(done)
    whole.wait_until_agreed()  # a member that still starts could not end in order


def test_it_has_the_methods_and_replies_of_redis_py(client: SessionRedis) -> None:
    assert client.set("a", 5, ex=100) is True
    assert client.set("a", 6, nx=True) is None
    assert client.incrbyfloat("a", 0.5) == 5.5
    assert client.getdel("a") == b"5.5"
    assert client.get("a") is None
    assert client.delete("a") == 0
    assert client.execute_command("incr", b"b") == 1
    assert client.ping()
    with pytest.raises(redis.ResponseError, match="not an integer"):
        client.incrby("b", 2**70)
    assert client.keys("*") == [b"b"]


def test_a_session_that_has_ended_is_replaced(whole: RealCluster, client: SessionRedis) -> None:
    assert client.session_id is None
    assert client.incr("a") == 1
    first = client.session_id
    with redis.Redis(port=whole.follower_port) as other:
        assert other.execute_command("QUORATE.SESSION", "CLOSE", first) == b"OK"
    assert client.incr("a") == 2
    assert client.session_id != first
    client.close()
    with redis.Redis(port=whole.follower_port) as other, pytest.raises(redis.ResponseError):
        other.execute_command("QUORATE.SESSION", "KEEPALIVE", first)


def test_an_unknown_outcome_in_a_session_that_has_ended_is_told(
    client: SessionRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.incr("a")
    sent: list[object] = []
    attempt = SessionRedis._attempt  # pyright: ignore[reportPrivateUsage]

    def lose_the_first(self: SessionRedis, arguments: tuple[object, ...], *rest: object) -> object:
        sent.append(arguments)
        if len(sent) > 1:
            return attempt(self, arguments, *rest)
        attempt(self, ("QUORATE.SESSION", "CLOSE", client.session_id), "", {})
        raise redis.ConnectionError("lost")

    monkeypatch.setattr(SessionRedis, "_attempt", lose_the_first)
    with pytest.raises(SessionLostError, match="NOSESSION"):
        client.incr("a")
    assert len(set(sent)) == 1
    assert client.incr("a") == 2


def test_what_would_not_be_stamped_is_refused(client: SessionRedis) -> None:
    with pytest.raises(NotImplementedError):
        client.pipeline()
    with pytest.raises(NotImplementedError):
        client.transaction(print)
