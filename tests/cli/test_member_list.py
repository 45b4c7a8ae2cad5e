"""What a leader answers about the members is read with bounds, and its words are explained."""

import json
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from quorate.local.member_list import (
    MAX_ANSWER_BYTES,
    MEANINGS,
    Listed,
    decode_changed_untrusted,
    decode_list_untrusted,
    joiner_file,
    meaning_of,
)
from quorate.node.config.config import load_config
from quorate.node.protocol.membership import MAX_SEATS, MemberRole

SPEC = (
    *("in-flight", "not-settled", "version", "unknown-member", "removed", "last-voter", "even"),
    *("too-many", "address", "would-lose-quorum", "role", "id"),
    *("not-claimed", "not-ready", "behind", "lagging", "disk-room"),
)


def seat(member_id: int, **changes: object) -> dict[str, object]:
    """One member as a leader lists it."""
    usual: dict[str, object] = {
        "member_id": member_id,
        "role": "voter",
        "state": "voter",
        "instance": f"{member_id + 1:016x}",
        "host": f"10.0.0.{member_id + 1}",
        "member_port": 17000,
        "client_port": 7000,
        "redirect_port": 0,
        "tls_port": 0,
        "priority": 0,
        "replaces": None,
        "live": True,
        "match": 4096,
        "behind": 0,
        "waits": "",
    }
    return usual | changes


def answer(*seats: dict[str, object], **changes: object) -> dict[str, Any]:
    """A leader's list of members."""
    found = seats or tuple(seat(n) for n in range(3))
    usual: dict[str, Any] = {"version": 7, "joint": False, "next_id": 5, "leader": 1, "term": 4}
    return usual | {"members": list(found)} | changes


def listed(*seats: dict[str, object], **changes: object) -> Listed:
    """The same, read."""
    return decode_list_untrusted(json.dumps(answer(*seats, **changes)))


def test_every_word_of_a_leader_has_a_meaning() -> None:
    assert set(MEANINGS) == set(SPEC)
    assert all(text.endswith((".", "`.")) for text in MEANINGS.values())
    assert meaning_of("in-flight: version 8 is not committed yet") == MEANINGS["in-flight"]
    assert meaning_of("nothing known") == ""


def test_a_list_is_read() -> None:
    found = listed(seat(0), seat(3, state="joining", instance="0" * 16, replaces=0, waits="behind"))
    assert (found.version, found.leader, found.term) == (7, 1, 4)
    (first, last) = found.members
    assert (first.is_claimed, last.is_claimed) == (True, False)
    assert first.role is MemberRole.VOTER
    assert found.replacement_of(0) is last
    assert found.member(9) is None


def test_a_change_is_read() -> None:
    found = decode_changed_untrusted(b'{"version": 8, "member": 3, "done": "member 3 has a seat"}')
    assert (found.version, found.member, found.done) == (8, 3, "member 3 has a seat")


@pytest.mark.parametrize(
    "wrong",
    [
        answer(seat(0, host="a\x1b[2J")),
        answer(seat(0, host="h" * 254)),
        answer(seat(0, waits="x" * 33)),
        answer(seat(0, instance="elephant")),
        answer(seat(0, role="king")),
        answer(seat(0, member_port="many")),
        answer(*(seat(n) for n in range(MAX_SEATS + 1))),
        {"members": []},
        [],
        None,
        "words",
    ],
    ids=[
        "control",
        "host",
        "word",
        "store",
        "role",
        "port",
        "seats",
        "keys",
        "list",
        "null",
        "str",
    ],
)
def test_what_no_leader_answers_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="no answer of a leader"):
        decode_list_untrusted(json.dumps(wrong))


@pytest.mark.parametrize("wrong", [b"\xff", "[" * 5000, "x" * (MAX_ANSWER_BYTES + 1), 5, None])
def test_what_is_no_json_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="no answer of a leader"):
        decode_list_untrusted(wrong)
    with pytest.raises(ValueError, match="no answer of a leader"):
        decode_changed_untrusted(wrong)


def test_the_file_of_a_new_member_is_valid(tmp_path: Path) -> None:
    new = seat(4, state="joining", priority=3, redirect_port=7060, instance="0" * 16)
    found = listed(seat(0), seat(1), seat(3, role="standby", state="standby", priority=5), new)
    text = joiner_file("orders", found, 4, Path())
    (tmp_path / "node.toml").write_text(text)
    config = load_config(tmp_path / "node.toml")
    assert (config.cluster, config.member_id, config.join) == ("orders", 4, True)
    assert config.directory == tmp_path
    assert [each.member_id for each in config.members] == [0, 1, 3, 4]
    assert (config.own.priority, config.own.redirect_port) == (3, 7060)
    assert config.voters == (0, 1, 4)
    assert re.match("# Member 4 joins the running cluster 'orders': quorate run", text)


@pytest.mark.parametrize("role", ["witness", "standby", "spare"])
def test_the_file_of_a_new_member_has_its_role(tmp_path: Path, role: str) -> None:
    new = seat(4, role=role, state="joining", priority=3, instance="0" * 16)
    (tmp_path / "node.toml").write_text(joiner_file("orders", listed(seat(0), new), 4, Path()))
    own = load_config(tmp_path / "node.toml").own
    assert (own.witness, own.standby) == (role == "witness", role != "witness")
    assert own.priority == 0


def test_the_file_of_a_new_member_has_those_first_that_can_answer(tmp_path: Path) -> None:
    others = [seat(n, live=n != 2) for n in range(9)]
    found = listed(*others, seat(9, state="joining", replaces=2))
    (tmp_path / "node.toml").write_text(joiner_file("orders", found, 9, Path()))
    config = load_config(tmp_path / "node.toml")
    assert [each.member_id for each in config.members] == [0, 1, 3, 4, 5, 6, 7, 8, 9]


def test_a_member_without_a_seat_has_no_file() -> None:
    with pytest.raises(AssertionError):
        joiner_file("orders", listed(), 9, Path())
    assert attrs.evolve(listed(), members=()).member(0) is None
