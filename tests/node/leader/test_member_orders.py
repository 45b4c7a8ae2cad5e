"""Orders about members: which words are an order, and what is said to the rest."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import RefusedError
from quorate.node.leader.members.orders import (
    Add,
    Demote,
    ListMembers,
    Move,
    Promote,
    Remove,
    parse_member_order_untrusted,
)
from quorate.node.protocol.hosts import MAX_HOST_CHARACTERS
from quorate.node.protocol.membership import MemberRole, Seat

PLACE = "host=h member_port=7000 client_port=6000"
SEAT = Seat(0, "h", 7000, 6000)

ORDERS = {
    "list": ListMembers(),
    f"add {PLACE}": Add(SEAT),
    f"add {PLACE} id=7": Add(SEAT, member_id=7),
    f"add {PLACE} redirect_port=6001 priority=3 role=voter replaces=2 even if_version=4": Add(
        Seat(0, "h", 7000, 6000, 6001, 3, replaces=2, even=True), 4
    ),
    f"add {PLACE} role=standby": Add(Seat(0, "h", 7000, 6000, role=MemberRole.STANDBY)),
    f"add {PLACE} role=spare": Add(Seat(0, "h", 7000, 6000, role=MemberRole.SPARE)),
    "promote 3": Promote(3),
    "promote 3 even if_version=0": Promote(3, even=True, if_version=0),
    "demote 3": Demote(3),
    "demote 3 if_version=7": Demote(3, 7),
    "remove 0": Remove(0),
    "remove 0 if_version=7": Remove(0, 7),
    "move 1 host=other": Move(1, {"host": "other"}),
    "add host=h member_port=7000 tls_port=6443": Add(Seat(0, "h", 7000, 0, tls_port=6443)),
    "move 1 client_port=0 tls_port=6443": Move(1, {"client_port": 0, "tls_port": 6443}),
    "move 1 member_port=1 client_port=2 redirect_port=0 if_version=9": Move(
        1, {"member_port": 1, "client_port": 2, "redirect_port": 0}, 9
    ),
}


@pytest.mark.parametrize("words", ORDERS)
def test_words_are_an_order(words: str) -> None:
    assert parse_member_order_untrusted(words.split()) == ORDERS[words]


REFUSED = {
    "": "expected list, add, promote, demote, remove or move",
    "list all": "expected list",
    "expel 3": "expected list",
    "promote": "expected list",
    "add": "host, member_port, client_port is missing",
    "add host=h member_port=1": "client_port is missing",
    "add host=h tls_port=1": "member_port is missing",
    "add host=h member_port=1 tls_port=70000": "address: .*tls_port",
    "add host=h member_port=1 client_port=0": "address: .*client_port",
    f"add {PLACE} host=g": "once",
    f"add {PLACE} color=red": "'color=red'",
    f"add {PLACE} role=leaving": "role=leaving",
    f"add {PLACE} role=": "'role='",
    f"add {PLACE} even=no": "'even=no'",
    f"add {PLACE} even=": "'even='",
    f"add {PLACE} priority=1001": "priority",
    f"add {PLACE} priority=-1": "'-1'",
    f"add {PLACE} replaces=two": "'two'",
    f"add {PLACE} if_version=": "'if_version='",
    f"add {PLACE} role=standby priority=2": "priority",
    "add host=h member_port=0 client_port=6000": "address: .*member_port",
    "add host=h member_port=65536 client_port=6000": "address: .*member_port",
    "add host=a:b member_port=1 client_port=2": "address: .*host",
    f"add host={'h' * (MAX_HOST_CHARACTERS + 1)} member_port=1 client_port=2": "address: .*host",
    f"add host=::1%{'z' * 40000} member_port=1 client_port=2": "address: .*host",
    "promote x": "'x'",
    "promote +3": r"'\+3'",
    "promote 3 even even": "once",
    "promote 3 host=h": "'host=h'",
    "promote 1000000000000000000": "expected a number",
    "demote 3 even": "'even'",
    "remove 3 4": "'4'",
    "move 1": "expected a new host",
    "move 1 if_version=3": "expected a new host",
    "move 1 priority=3": "'priority=3'",
    "move 1 member_port=x": "'x'",
}


@pytest.mark.parametrize("words", REFUSED)
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(RefusedError, match=REFUSED[words]):
        parse_member_order_untrusted(words.split())


@pytest.mark.parametrize("port", ["0", "65536"])
def test_a_member_moves_to_no_port_that_does_not_exist(port: str) -> None:
    order = parse_member_order_untrusted(["move", "0", f"member_port={port}"])
    assert isinstance(order, Move)
    with pytest.raises(RefusedError, match=r"^address: "):
        order.seat_of(SEAT)


WORDS = st.sampled_from(
    [
        *["list", "add", "promote", "demote", "remove", "move"],
        *PLACE.split(),
        "even",
        "3",
        "if_version=1",
    ]
) | st.text(st.characters(codec="ascii"), max_size=8)


@given(st.lists(WORDS, max_size=7))
def test_any_words_are_an_order_or_refused(words: list[str]) -> None:
    with contextlib.suppress(RefusedError):
        parse_member_order_untrusted(words)
