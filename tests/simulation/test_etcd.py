"""etcd's keyspace under storms: it keeps its promises, and with one rule removed it does not.

`make mutants` hunts all mutants: that takes minutes.
"""

from __future__ import annotations

import pytest

from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.simulation import Plan, simulate
from quorate.simulation.etcd.book import Book
from quorate.simulation.etcd.followed import Followed
from quorate.simulation.etcd.logins import Logins
from tests.simulation.mutants.etcd import ETCD_MUTANTS, EtcdMutant, hunt_etcd

HOURS = 0.003
CHEAP = (
    "end_leases_by_ones_own_clock",
    "let_elections_eat_leases",
    "forget_the_gaps_at_a_start",
    "skip_a_revision_at_a_load",
    "compare_after_the_writes",
    "lose_a_revision_after_history",
    "split_a_revision",
    "swap_the_replies_of_joined_puts",
    "give_tokens_for_one_member",
)


def test_clients_of_etcd_pass_in_storms_and_a_seed_is_one_run() -> None:
    outcome, again = (simulate(Plan(0, 3, HOURS, "etcd")) for _ in range(2))
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 50
    assert outcome.faults
    assert again.digest == outcome.digest


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 16))
def test_clients_of_etcd_pass_in_long_storms(seed: int) -> None:
    outcome = simulate(Plan(seed, 3, 0.02, "etcd"))
    assert outcome.violation is None, outcome.story


@pytest.mark.parametrize(
    "mutant",
    [each for each in ETCD_MUTANTS if each.name in CHEAP],
    ids=[each.name for each in ETCD_MUTANTS if each.name in CHEAP],
)
def test_a_mutant_is_found(mutant: EtcdMutant) -> None:
    found = hunt_etcd(mutant)
    assert found is not None
    assert any(rule in found.violation for rule in mutant.by)


# --- the judge of watches


def three_puts() -> Book:
    """Return the history of a key that was put at the revisions 2, 3 and 4."""
    book = Book()
    for value in (b"1", b"2", b"3"):
        book.model.apply(rpc.PutRequest(key=b"k", value=value))
    return book


def response(book: Book, *revisions: int, revision: int = 4) -> bytes:
    """Return a response with the events of revisions."""
    events = [rpc.Event(kv=book.model.states[each][b"k"]) for each in revisions]
    header = rpc.ResponseHeader(revision=revision)
    return rpc.WatchResponse(header=header, events=events).SerializeToString()


@pytest.mark.parametrize("seen", [(2, 3, 4), (3, 4)])
def test_a_watch_may_see_everything_in_order(seen: tuple[int, ...]) -> None:
    book = three_puts()
    watch = Followed(book, b"k", b"", next_revision=seen[0])
    watch.broken = False
    assert watch.behind
    watch.take(response(book, *seen))
    assert not book.trouble
    assert not watch.behind


@pytest.mark.parametrize("seen", [(2, 4), (3,), (2, 2), (3, 2)])
def test_a_watch_must_not_skip_repeat_or_turn_round(seen: tuple[int, ...]) -> None:
    book = three_puts()
    watch = Followed(book, b"k", b"", next_revision=2)
    watch.take(response(book, *seen))
    assert book.trouble


def test_progress_must_not_pass_an_event() -> None:
    book = three_puts()
    watch = Followed(book, b"k", b"", next_revision=4)
    watch.take(response(book, revision=3))
    assert not book.trouble
    watch.take(response(book, revision=4))
    assert book.trouble


def test_a_lease_must_not_end_before_its_client_was_told() -> None:
    book = Book()
    book.true_clocks = lambda: True
    book.ended[7] = 10.0
    book.lives(7, 10.0)
    assert not book.trouble
    book.lives(7, 10.5)
    assert book.trouble


# --- the judge of tokens


@pytest.mark.parametrize(
    ("name", "now", "good"),
    [
        pytest.param(b"anna", 299.0, True, id="taken"),
        pytest.param(None, 299.0, False, id="refused"),
        pytest.param(b"bert", 299.0, False, id="of another user"),
        pytest.param(None, 301.0, True, id="over"),
        pytest.param(b"anna", 361.0, False, id="taken when it was over"),
    ],
)
def test_a_token_is_good_at_every_member_for_its_life(
    name: bytes | None, now: float, *, good: bool
) -> None:
    book = Book()
    book.true_clocks = lambda: True
    logins = Logins(book)
    logins.give("token", b"anna", 0.0, 0.5)
    logins.judge("token", name, now)
    assert (not book.trouble) is good


def test_a_token_that_was_given_to_nobody_is_good_nowhere() -> None:
    book = Book()
    logins = Logins(book)
    logins.judge("made up", None, 1.0)
    assert not book.trouble
    logins.judge("made up", b"anna", 1.0)
    assert book.trouble
