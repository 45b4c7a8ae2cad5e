"""The configurations in a recording are shown as lines for people."""

from collections.abc import Sequence
from pathlib import Path

import attrs

from quorate.local.configurations import is_witness, lines_of
from quorate.node.config.config import MemberConfig, NodeConfig
from quorate.node.protocol.membership import (
    MemberRole,
    Membership,
    Seat,
    completed,
    encode_membership,
    named,
    promoted,
    with_seat,
    without_seat,
)
from quorate.node.protocol.quorum import VoterId
from quorate.storage.tools.describe import DescribedConfiguration


def seat_of(member: int, **changes: object) -> Seat:
    usual = Seat(member, f"10.0.0.{member + 1}", 17000, 7000)
    return attrs.evolve(usual, **changes)  # type: ignore[arg-type]


def rows(*values: Membership) -> list[DescribedConfiguration]:
    return [
        DescribedConfiguration(3, 100 * (n + 1), encode_membership(value).decode())
        for n, value in enumerate(values)
    ]


def steps() -> Sequence[Membership]:
    """Three voters; 3 replaces 2, is claimed, and takes its place; then 4 comes, moves and goes."""
    first = Membership(tuple(map(seat_of, range(3))), tuple(map(VoterId, range(3))), next_id=3)
    start = named(first, {0: 10, 1: 11, 2: 12})
    found = [with_seat(start, seat_of(3, replaces=2))]
    found.append(with_seat(found[-1], seat_of(3, replaces=2, instance=13)))
    found.append(promoted(found[-1], {3}))
    found.append(completed(found[-1]))
    found.append(with_seat(found[-1], seat_of(4, role=MemberRole.SPARE)))
    found.append(with_seat(found[-1], seat_of(4, role=MemberRole.STANDBY, host="db4")))
    found.append(without_seat(found[-1], 4))
    return found


def test_each_configuration_is_a_line_with_its_voters_and_what_has_changed() -> None:
    assert list(lines_of(rows(*steps()), 0)) == [
        (
            "Configuration 1, up to 100 in term 3: voters 0, 1, 2; member 3 joins as a voter at "
            "10.0.0.4:17000 in the place of member 2"
        ),
        (
            "Configuration 2, up to 200 in term 3: voters 0, 1, 2; member 3 has the store "
            "000000000000000d"
        ),
        "Configuration 3, up to 300 in term 3: the voters change from 0, 1, 2 to 0, 1, 3",
        "Configuration 4, up to 400 in term 3: voters 0, 1, 3; member 2 is removed",
        (
            "Configuration 5, up to 500 in term 3: voters 0, 1, 3; member 4 is a spare at "
            "10.0.0.5:17000"
        ),
        (
            "Configuration 6, up to 600 in term 3: voters 0, 1, 3; member 4 has moved to "
            "db4:17000; member 4 is to be a standby"
        ),
        "Configuration 7, up to 700 in term 3: voters 0, 1, 3; member 4 is removed",
    ]


def test_configurations_of_the_history_before_are_said_to_be_that() -> None:
    before, _, _, after, *_ = steps()
    first, second = lines_of(rows(before, after), 100)
    assert first.startswith("Configuration 1, up to 100 in term 3, of the history before: voters 0")
    # What it has is not compared with what another history had.
    assert second == "Configuration 4, up to 200 in term 3: voters 0, 1, 3"


def test_what_cannot_be_read_is_said_to_be_that() -> None:
    old = DescribedConfiguration(0, 64, '{"instance": 7, "member_id": 1}')
    wrong = DescribedConfiguration(0, 128, "{}")
    first, second = lines_of([old, wrong], 0)
    assert first.startswith("Configuration up to 64 in term 0: a store was admitted")
    assert second.startswith("Configuration up to 128 in term 0: can't be read (")


def test_a_witness_is_one_by_its_log_or_by_its_file(tmp_path: Path) -> None:
    assert not is_witness(tmp_path, [], 2)
    members = tuple(MemberConfig(n, "h", 100 + n, 200 + n, witness=n == 2) for n in range(3))
    (tmp_path / "node.toml").write_text(NodeConfig("orders", 2, Path(), members).to_toml())
    assert is_witness(tmp_path, [], 2)
    found = rows(with_seat(steps()[0], seat_of(2, role=MemberRole.WITNESS)))
    assert is_witness(tmp_path / "elsewhere", found, 2)
    assert not is_witness(tmp_path, found, 1)
