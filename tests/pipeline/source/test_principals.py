"""Who sent an entry, as columns and names, without Spark."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.pipeline.source.decode import decode
from quorate.pipeline.source.logs import open_log
from quorate.pipeline.source.principals import principals_table
from tests.pipeline.pipeline_world import BEGAN_MS, Batch, encoded, pipeline, shorten_log, write_log

if TYPE_CHECKING:
    from pathlib import Path

SET = pipeline("SET k v")
MOST = 2**32 - 1
LOG = [
    Batch((pipeline("ACL SETUSER alice on"), pipeline("ACL SETUSER bob on")), BEGAN_MS),
    Batch((SET,) * 3, BEGAN_MS + 1, stamps=((0, 0, 1), (0, 0, 2), (0, 0, MOST))),
    Batch((pipeline("ACL DELUSER bob"), pipeline("ACL SETUSER carol on")), BEGAN_MS + 2),
    Batch((SET,), BEGAN_MS + 3),  # the last batch is not known to be committed
]


@pytest.mark.parametrize("table", ["commands", "entries"])
def test_each_row_has_its_principal(table: str) -> None:
    rows = decode(encoded(LOG), table)
    assert rows.column("principal").to_pylist() == [0, 0, 0, 1, 2, MOST, 0, 0, 0]


def test_names_come_from_the_snapshot_and_the_log_behind_it(tmp_path: Path) -> None:
    write_log(tmp_path, LOG)
    expected = {
        "principal": [0, 1, 2, 3],
        "name": ["default", "alice", "bob", "carol"],
        "member": [0] * 4,
    }
    with open_log(tmp_path) as log:
        assert principals_table(log, [*expected]).to_pydict() == expected
    shorten_log(tmp_path, LOG, 2)
    with open_log(tmp_path) as log:
        assert log.facts.start > 0
        assert principals_table(log, [*expected]).to_pydict() == expected
