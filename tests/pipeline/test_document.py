"""The notebook of docs/pipeline.md, cell by cell."""

# pyright: basic, reportMissingTypeStubs=false
# (those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorate.histories.history import HistoryWriter, Operation
from tests.pipeline.pipeline_world import one_each, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
NOTEBOOK = DOCUMENT.partition("## From an empty notebook")[2].partition("\n## ")[0]
CELLS = re.findall(r"```python\n(.*?)```", NOTEBOOK, re.DOTALL)


@pytest.mark.spark
def test_the_notebook_runs_as_printed(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate.pipeline.open_session", lambda: nullcontext(spark))
    for number in range(3):
        count = (60, 60, 40)[number]  # the last member is behind, which is no finding
        commands = [f"SET shop-{i % 7} {i}" for i in range(count)]
        write_log(tmp_path / f"member-{number}", one_each(commands), member_id=number)
    with (tmp_path / "history.jsonl").open("wb") as file:
        HistoryWriter(file).append(Operation(0, "set", b"k", (b"v",), b"OK", 0, 5, "ok"))
    names: dict[str, object] = {}
    for cell in CELLS:
        exec(cell.replace("/tmp/shop", str(tmp_path)), names)
    told = capsys.readouterr().out
    assert "|   0|      SET|   50|" in told  # the last batch is not known to be committed
    assert "Exported(begin=0, end=" in told
    assert "13 batches, 51 entries, 0 findings" in told
    assert "|linearizable|              1|" in told
    assert told.endswith("51\n")
    assert "<svg" in (tmp_path / "page.html").read_text()
