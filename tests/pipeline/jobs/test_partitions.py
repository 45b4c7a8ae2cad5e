"""The logs of a cluster with partitions, side by side."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pytest

from quorate.cli.pipeline_show import show_groups
from quorate.errors import StoreMismatchError
from quorate.local.show import make_console
from quorate.pipeline.jobs.audit import Audit
from quorate.pipeline.jobs.partitions import audit_groups
from quorate.pipeline.source.groups import by_group, recordings_in
from quorate.pipeline.source.logs import open_log
from quorate.storage import decode_header_untrusted
from tests.pipeline.pipeline_world import BEGAN_MS, Batch, encoded, pipeline, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def batches(*lines: str) -> list[Batch]:
    """One batch for each command, a second apart."""
    return [Batch((pipeline(line),), BEGAN_MS + 1000 * at) for at, line in enumerate(lines)]


def write_cluster(directory: Path, *, released: bool = True) -> None:
    """Write the logs of two partitions and the metadata group on two machines, after a move."""
    source = batches("QUORATE.SLOTS FOUND 0-99", "SET a 1", "QUORATE.SLOTS FREEZE 7 5-9 1")
    frozen = decode_header_untrusted(encoded(source)[-1]).position + 1
    last = "RELEASE 7 1 0" if released else "THAW 7"
    end = "SET x 1"  # so that what comes before is known to be committed
    logs = {
        "meta": batches("SET quorate/map x", end),
        "p0": source + batches(*[end] * 3, f"QUORATE.SLOTS {last}", end)[3:],
        "p1": batches(
            "QUORATE.SLOTS FOUND 100-200",
            "QUORATE.SLOTS IMPORT 7 5-9",
            "QUORATE.SLOTS CHUNK 7 1 k v 0 5 1",
            f"QUORATE.SLOTS OWN 7 {frozen} 1 1",
            end,
        ),
    }
    for machine in range(2):
        for name, log in logs.items():
            place = directory / f"machine-{machine}" / name.replace("p", "partition-")
            write_log(place, log, member_id=machine, cluster=f"orders.{name}")


def test_the_recordings_of_machines_are_found_by_group(tmp_path: Path) -> None:
    write_cluster(tmp_path)
    groups = by_group([tmp_path])
    assert [*groups] == ["orders.meta", "orders.p0", "orders.p1"]
    assert groups["orders.p1"] == [tmp_path / f"machine-{at}" / "partition-1" for at in range(2)]
    one = tmp_path / "machine-0"
    assert recordings_in(one) == [one / "meta", one / "partition-0", one / "partition-1"]
    assert recordings_in(one / "meta") == [one / "meta"]
    (tmp_path / "none").mkdir()
    with pytest.raises(StoreMismatchError, match="a folder with those of machines"):
        recordings_in(tmp_path / "none")


def test_a_move_after_which_two_partitions_serve_a_slot_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.pipeline.jobs.partitions.audit", nothing_found)
    write_cluster(tmp_path / "sound")
    write_cluster(tmp_path / "wrong", released=False)
    sound = audit_groups(cast("SparkSession", None), by_group([tmp_path / "sound"]))
    assert (sound.findings, sound.unchecked) == ((), ())
    assert [len(each.members) for each in sound.groups.values()] == [2, 2, 2]
    found = audit_groups(cast("SparkSession", None), by_group([tmp_path / "wrong"]))
    assert [(each.kind, each.member) for each in found.findings] == [
        ("thaw-of-owned", 0),
        ("two-owners", 1),
    ]


def test_the_audit_of_all_groups_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quorate.pipeline.jobs.partitions.audit", nothing_found)
    write_cluster(tmp_path, released=False)
    found = audit_groups(cast("SparkSession", None), by_group([tmp_path]))
    show_groups(make_console(), found, as_json=False)
    text = capsys.readouterr().out
    assert "\norders.p1\nmember 0: 0 to " in text
    assert "THAW-OF-OWNED: partition 0, position " in text
    assert "5-9: partitions 0 and 1 both serve them in the end" in text
    show_groups(make_console(), found, as_json=True)
    plain = json.loads(capsys.readouterr().out)
    assert [*plain["groups"]] == ["orders.meta", "orders.p0", "orders.p1"]
    assert len(plain["moves"]) == 2


def nothing_found(_spark: SparkSession, origins: list[Path]) -> Audit:
    facts = []
    for origin in origins:
        with open_log(origin) as log:
            facts.append(log.facts)
    return Audit(tuple(facts), 1, 1, (), None)
