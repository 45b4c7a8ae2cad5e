"""What bench/README.md shows is what the benches have written."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.lib.measuring import Latencies, read_report
from bench.report import plots, sections

BENCH = Path(__file__).parents[2] / "bench"
README = BENCH / "README.md"
FIGURES = sorted((BENCH / "figures").glob("*.json"))
REPORT = """\
====== SET ======
  30000 requests completed in 0.57 seconds

Latency by percentile distribution:
0.000% <= 0.047 milliseconds (cumulative count 1)
50.000% <= 0.239 milliseconds (cumulative count 15820)
98.438% <= 0.423 milliseconds (cumulative count 29581)
99.219% <= 0.455 milliseconds (cumulative count 29766)
99.902% <= 0.831 milliseconds (cumulative count 29971)
100.000% <= 1.175 milliseconds (cumulative count 30000)

Cumulative distribution of latencies:
99.970% <= 9.103 milliseconds (cumulative count 447)

Summary:
  throughput summary: 52910.05 requests per second
"""


def test_the_tables_are_made_of_the_figures() -> None:
    command = [sys.executable, "-m", "bench.report.tables", "--check"]
    done = subprocess.run(command, cwd=BENCH.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python -m bench.report.tables: {done.stderr}"


@pytest.mark.parametrize("file", FIGURES, ids=lambda file: file.name)
def test_figures_have_one_form(file: Path) -> None:
    results = json.loads(file.read_text())
    assert list(results) == ["bench", "circumstances", "settings", "rows"]
    assert results["bench"] == file.stem
    assert {"quorate", "python", "processors", "load_before"} <= set(results["circumstances"])
    assert results["rows"]


def test_a_report_of_redis_benchmark_is_read() -> None:
    expected = Latencies(rate=52910.05, p50_ms=0.239, p99_ms=0.455, p999_ms=0.831)
    assert read_report(REPORT) == expected


def test_no_table_of_a_document_is_empty() -> None:
    empty: list[str] = []
    for file in [*BENCH.parent.glob("*.md"), *BENCH.parent.glob("docs/*.md"), README]:
        lines = [*file.read_text().splitlines(), ""]
        for rule, below in pairwise(lines):
            if re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", rule) and not below.startswith("|"):
                empty.append(f"{file.name}: {below!r} stands where a row should")
    assert empty == []


def test_every_plot_has_its_table() -> None:
    assert sorted(plots.PLOTS) == sorted(sections.PICTURES)


def test_every_table_has_its_place() -> None:
    places = set(re.findall("<!-- figures: ([a-z-]+) -->", (BENCH / "README.md").read_text()))
    assert places == {"goals", *sections.SECTIONS}
