"""The audit finds configurations of the members that do not follow from each other."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from quorate.node.protocol.membership import (
    MemberRole,
    Membership,
    Seat,
    completed,
    encode_membership,
    promoted,
    with_seat,
    without_vote,
)
from quorate.node.protocol.quorum import VoterId
from quorate.pipeline.jobs.audit import audit
from quorate.pipeline.jobs.configurations import Configured, decode, wrong_configurations
from quorate.pipeline.source.columns import TABLES, arrow_schema
from quorate.pipeline.source.decode import decode as decode_table
from quorate.storage import EntryKind, LogEnd, decode_header_untrusted
from tests.pipeline.pipeline_world import BEGAN_MS, Batch, encoded, pipeline, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SEATS = tuple(Seat(n, f"10.0.0.{n + 1}", 17000, 7000, instance=n + 10) for n in range(3))
ZERO = Membership(SEATS, tuple(seat.name for seat in SEATS), next_id=3)
NEW = Seat(3, "10.0.0.4", 17000, 7000, replaces=2)

# A member is added, its store claims the seat, it takes the place of member 2. Then 0 is demoted.
ADDED = with_seat(ZERO, NEW)
CLAIMED = with_seat(ADDED, attrs.evolve(NEW, instance=13))
JOINT = promoted(CLAIMED, {3})
REPLACED = completed(JOINT)
LEAVING = without_vote(REPLACED, 0, role=MemberRole.STANDBY)
DEMOTED = completed(LEAVING)
GOOD = (ADDED, CLAIMED, JOINT, REPLACED, LEAVING, DEMOTED)
ADMISSION = json.dumps({"member_id": 1, "instance": "ab", "founders": {}}).encode()


def found(*log: Membership | None, start: int = 0) -> list[tuple[str, int, str]]:
    placed = [Configured(0, 100 * at, one) for at, one in enumerate(log, 1)]
    return [(one.kind, one.position, one.text) for one in wrong_configurations(placed, start=start)]


def test_members_that_change_as_they_should_are_no_finding() -> None:
    assert found(*GOOD) == []
    assert found() == []


def test_a_log_with_a_pruned_beginning_is_compared_from_its_first_configuration_on() -> None:
    for begin in range(1, len(GOOD)):
        assert found(*GOOD[begin:], start=64) == []
        assert [kind for kind, _, _ in found(*GOOD[begin:])] == ["configuration"]


def test_a_missing_version_is_found() -> None:
    assert found(CLAIMED, JOINT) == [("configuration", 100, "its version is 2, expected 1")]
    assert found(*GOOD[:2], *GOOD[3:])[0] == (
        "configuration",
        300,
        "its version is 4, expected 3",
    )
    assert [one[1] for one in found(*GOOD[:2], *GOOD[1:])] == [300]


def test_voters_that_change_without_a_joint_configuration_are_found() -> None:
    voters = (*CLAIMED.voters[:2], VoterId(3, 13))
    wrong = attrs.evolve(CLAIMED, voters=voters, version=3)
    ((kind, position, text),) = found(ADDED, CLAIMED, wrong)
    assert (kind, position) == ("quorum", 300)
    assert text.startswith("the voters 0/000000000000000a 1/000000000000000b 2/")
    assert text.endswith(
        "become 0/000000000000000a 1/000000000000000b 3/000000000000000d, without "
        "a joint configuration"
    )


def test_another_store_of_the_same_member_is_another_voter() -> None:
    voters = (*CLAIMED.voters[:2], VoterId(2, 99))
    wrong = attrs.evolve(CLAIMED, voters=voters, version=3)
    assert [kind for kind, _, _ in found(ADDED, CLAIMED, wrong)] == ["quorum"]


def test_a_joint_configuration_with_another_set_than_before_is_found() -> None:
    wrong = attrs.evolve(JOINT, outgoing=JOINT.outgoing[:2])
    ((kind, position, text),) = found(ADDED, CLAIMED, wrong)
    assert (kind, position) == ("quorum", 300)
    assert text.startswith("its outgoing voters are 0/000000000000000a 1/000000000000000b, before")


def test_a_change_that_ends_with_another_set_is_found() -> None:
    wrong = attrs.evolve(REPLACED, voters=REPLACED.voters[:2])
    ((kind, position, text),) = found(ADDED, CLAIMED, JOINT, wrong)
    assert (kind, position) == ("quorum", 400)
    assert text.endswith("another set than was joint")


def test_a_second_change_during_the_first_is_found() -> None:
    wrong = attrs.evolve(LEAVING, version=4)
    assert found(ADDED, CLAIMED, JOINT, wrong) == [
        ("quorum", 400, "it begins a change of the voters while another one is under way")
    ]


def test_an_entry_that_cannot_be_read_is_found_and_hides_nothing_else() -> None:
    assert found(ADDED, None, JOINT, attrs.evolve(REPLACED, version=9)) == [
        ("configuration", 200, "its entry of membership can't be read"),
        ("configuration", 400, "its version is 9, expected 4"),
    ]


def test_a_restored_cluster_begins_anew_above_its_floor() -> None:
    """Positions 100 to 300 are of the old cluster, whose members were others."""
    floor = LogEnd(0, 350)
    new = [attrs.evolve(each, floor=floor) for each in GOOD]
    others = [attrs.evolve(each, voters=(VoterId(7, 7),), outgoing=()) for each in GOOD[:3]]
    assert found(*others, *new) == []
    assert found(*others, *new[1:]) == [("configuration", 400, "its version is 2, expected 1")]
    assert found(*new[1:], start=360) == []


def test_admissions_of_older_versions_are_left_out() -> None:
    payloads = (ADMISSION, encode_membership(ADDED), b"nonsense")
    log = list(decode((4, 100 * at, payload) for at, payload in enumerate(payloads)))
    assert log == [Configured(4, 100, ADDED), Configured(4, 200, None)]


# --- the table ------------------------------------------------------------------------------------


def batches(*log: bytes) -> list[Batch]:
    """Batches of commands, with entries of membership between them."""
    made = [Batch((pipeline("SET k v"),), BEGAN_MS)]
    for payload in log:
        made.append(Batch((payload,), BEGAN_MS, kind=EntryKind.MEMBERSHIP))
        made.append(Batch((pipeline("SET k v"),), BEGAN_MS))
    return made


def test_configurations_are_rows() -> None:
    log = encoded(batches(ADMISSION, *map(encode_membership, GOOD), b"nonsense"))
    rows: list[dict[str, Any]] = decode_table(log, "configurations", member_id=4).to_pylist()
    assert [row["version"] for row in rows] == [1, 2, 3, 4, 5, 6, None]
    assert [row["joint"] for row in rows] == [False, False, True, False, True, False, None]
    joint, nonsense = rows[2], rows[6]
    assert [one["member_id"] for one in joint["voters"]] == [0, 1, 3]
    assert [one["instance"] for one in joint["outgoing"]] == [f"{n:016x}" for n in (10, 11, 12)]
    assert [one["role"] for one in joint["seats"]] == ["voter", "voter", "leaving", "voter"]
    assert joint["seats"][0]["host"] == "10.0.0.1"
    assert (joint["next_id"], joint["member"]) == (4, 4)
    assert rows[0]["seats"][3]["replaces"] == 2
    assert nonsense["position"] == decode_header_untrusted(log[-2]).position
    assert nonsense["voters"] is None


@pytest.mark.parametrize("name", [column.name for column in TABLES["configurations"]])
def test_each_column_can_be_had_alone(name: str) -> None:
    log = encoded(batches(*map(encode_membership, GOOD)))
    whole = decode_table(log, "configurations")
    assert whole.schema == arrow_schema("configurations")
    alone = decode_table(log, "configurations", names=[name])
    assert alone.column(0).equals(whole.column(name))


@pytest.mark.spark
def test_configurations_are_a_table_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path, batches(*map(encode_membership, GOOD)))
    frame = spark.read.format("quorate").option("table", "configurations").load(str(tmp_path))
    rows = frame.orderBy("version").collect()
    assert [row["version"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [one.member_id for one in rows[-1]["voters"]] == [1, 3]
    assert [one.role for one in rows[-1]["seats"]] == ["standby", "voter", "voter"]
    some = frame.where("joint").selectExpr("voters.member_id", "size(outgoing)").collect()
    assert [(sorted(row[0]), row[1]) for row in some] == [([0, 1, 3], 3), ([1, 3], 3)]


@pytest.mark.spark
def test_the_audit_checks_the_configurations_of_each_member(
    spark: SparkSession, tmp_path: Path
) -> None:
    good = batches(*map(encode_membership, GOOD))
    wrong = batches(*map(encode_membership, (ADDED, CLAIMED, REPLACED)))
    for member, log in enumerate((good, good)):
        write_log(tmp_path / str(member), log, member_id=member)
    assert audit(spark, [tmp_path / "0", tmp_path / "1"]).findings == ()
    write_log(tmp_path / "2", wrong, member_id=2)
    found_ = {(one.kind, one.member) for one in audit(spark, [tmp_path / "2"]).findings}
    assert found_ == {("configuration", 2), ("quorum", 2)}
