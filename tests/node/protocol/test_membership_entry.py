"""A configuration is read from its entry as it was written, and nothing else is read as one."""

import json
from typing import Any

import attrs
import pytest

from quorate.errors import WireError
from quorate.node.protocol.hosts import MAX_HOST_CHARACTERS
from quorate.node.protocol.membership import (
    MAX_PAYLOAD_BYTES,
    MAX_SEATS,
    MemberRole,
    Membership,
    Seat,
    decode_membership_untrusted,
    encode_membership,
)
from quorate.storage import LogEnd

SEATS = tuple(
    Seat(n, f"10.0.0.{n}", 17000, 7000, 7060, n, MemberRole.VOTER, n + 10) for n in range(3)
)
LEAVES = attrs.evolve(SEATS[2], role=MemberRole.LEAVING)
NEW = Seat(7, "db7", 17000, 7000, role=MemberRole.WITNESS, replaces=2, even=True)
VALUE = Membership(
    seats=(*SEATS[:2], LEAVES, NEW),
    voters=tuple(seat.name for seat in SEATS[:2]),
    outgoing=tuple(seat.name for seat in SEATS),
    version=5,
    next_id=8,
    founders=((0, 10), (1, 11)),
    floor=LogEnd(3, 4096),
)
BODY: dict[str, Any] = json.loads(encode_membership(VALUE))


def test_it_is_read_as_it_was_written() -> None:
    assert decode_membership_untrusted(encode_membership(VALUE)) == VALUE


def test_the_longest_one_is_read() -> None:
    host = "h" * MAX_HOST_CHARACTERS
    seats = tuple(
        Seat(2**31 - 1 - n, host, 65535, 65534, 65533, 1000, instance=2**64 - 1)
        for n in range(MAX_SEATS)
    )
    names = tuple(seat.name for seat in seats)
    longest = attrs.evolve(VALUE, seats=seats[::-1], voters=names[:9], outgoing=names[9:])
    assert len(encode_membership(longest)) <= MAX_PAYLOAD_BYTES
    assert decode_membership_untrusted(encode_membership(longest)) == longest


def test_an_entry_of_a_version_before_tls_for_clients_is_read_and_written_as_it_was() -> None:
    """Such a version writes no `tls_port`; members of both versions are in one cluster for a while.

    The text is what commit 17e1490d writes for `VALUE`.
    """
    seat = '{{"client_port":7000,"even":false,"host":"10.0.0.{n}","instance":"{i:016x}",'
    seat += '"member_id":{n},"member_port":17000,"priority":{n},"redirect_port":7060,'
    seat += '"replaces":null,"role":"{role}"}}'
    roles = ("voter", "voter", "leaving")
    seats = [seat.format(n=n, i=n + 10, role=role) for n, role in enumerate(roles)]
    seats.append(
        '{"client_port":7000,"even":true,"host":"db7","instance":"0000000000000000","member_id":7,'
        '"member_port":17000,"priority":0,"redirect_port":0,"replaces":2,"role":"witness"}'
    )
    old = '{"floor":[3,4096],"founders":{"0":"000000000000000a","1":"000000000000000b"},'
    old += '"next_id":8,"outgoing":[[0,"000000000000000a"],[1,"000000000000000b"],'
    old += f'[2,"000000000000000c"]],"seats":[{",".join(seats)}],"version":5,'
    old += '"voters":[[0,"000000000000000a"],[1,"000000000000000b"]]}'
    assert decode_membership_untrusted(old.encode()) == VALUE
    assert encode_membership(VALUE) == old.encode()


def test_a_port_for_tls_is_written_where_there_is_one() -> None:
    seats = (attrs.evolve(SEATS[0], tls_port=7443, client_port=0), *VALUE.seats[1:])
    value = attrs.evolve(VALUE, seats=seats)
    written = json.loads(encode_membership(value))["seats"]
    assert [each.get("tls_port") for each in written] == [7443, None, None, None]
    assert decode_membership_untrusted(encode_membership(value)) == value


def test_an_admission_of_an_older_version_is_none() -> None:
    assert decode_membership_untrusted(b'{"member_id": 1, "instance": "0a"}') is None


def of_seat(**changes: object) -> dict[str, object]:
    """The entry with another first seat."""
    return {"seats": [BODY["seats"][0] | changes]}


WRONG: list[dict[str, object]] = [
    {"version": -1},
    {"version": "5"},
    {"version": None},
    {"voters": []},
    {"voters": [[1]]},
    {"voters": [[0, "x"]]},
    {"voters": [*BODY["voters"], [0, "00000000000000ff"]]},
    {"voters": [*BODY["voters"], BODY["voters"][0]]},
    {"voters": [*BODY["voters"], [6, "00000000000000ff"]]},
    {"outgoing": [*BODY["outgoing"], [0, "00000000000000ff"]]},
    {"outgoing": [*BODY["outgoing"], [6, "00000000000000ff"]]},
    {"outgoing": BODY["voters"]},
    {"outgoing": BODY["voters"][::-1]},
    {"floor": [float("inf"), 0]},
    {"floor": [1]},
    {"founders": []},
    {"seats": [5]},
    {"seats": BODY["seats"][::-1]},
    {"seats": BODY["seats"] * 5},
    of_seat(role="king"),
    of_seat(host=""),
    of_seat(host=5),
    of_seat(member_port=1 << 16),
    of_seat(priority=10**30),
    of_seat(tls_port=1 << 16),
    of_seat(tls_port="7443"),
    of_seat(priority=float("nan")),
]


@pytest.mark.parametrize("changes", WRONG, ids=str)
def test_what_is_no_configuration_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(WireError, match="can't be read"):
        decode_membership_untrusted(json.dumps(BODY | changes).encode())


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[]", b"7", b"[" * 32000], ids=range(5))
def test_what_is_no_object_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError, match="can't be read"):
        decode_membership_untrusted(payload)
