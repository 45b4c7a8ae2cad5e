"""What a member writes for Prometheus, Prometheus' own parsers read."""

import math
import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,  # pyright: ignore[reportUnknownVariableType]
)
from prometheus_client.parser import text_string_to_metric_families as parse

from quorate.metrics import (
    Family,
    Histogram,
    Sample,
    counter,
    exposition,
    gauge,
    labelled,
    wants_openmetrics,
)
from quorate.metrics.family import histogram


def families() -> list[Family]:
    took = Histogram()
    took.observe(2.0**-16, 3)
    took.observe(0.1)
    took.observe(100.0)
    return [
        counter("quorate_reads_total", 'Reads by "way" and \\ so.', labelled("way", {"lease": 2})),
        gauge("quorate_lag_bytes", "How far behind.", (Sample(-1.5, (("peer", 'a"b\\c\nd'),)),)),
        gauge("quorate_expiry_timestamp_seconds", "Never.", math.inf),
        gauge("quorate_is_leader", "1 if it leads.", True),
        histogram("quorate_sync_duration_seconds", "How long a sync takes.", took),
        histogram("quorate_command_duration_seconds", "By kind.", labelled("kind", {"read": took})),
        counter("quorate_reads_total", "Reads again.", labelled("way", {"stale": 4})),
        gauge("quorate_nothing", "Without a sample.", ()),
    ]


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_parser_reads_what_was_written(*, openmetrics: bool) -> None:
    text = exposition(families(), openmetrics=openmetrics)
    assert text.endswith("# EOF\n") == openmetrics
    read = {each.name: each for each in (parse_openmetrics if openmetrics else parse)(text)}
    assert len(read) == 6
    reads = read["quorate_reads"]
    assert reads.type == "counter"
    assert reads.documentation == 'Reads by "way" and \\ so.'
    assert {one.labels["way"]: one.value for one in reads.samples} == {"lease": 2, "stale": 4}
    (lag,) = read["quorate_lag_bytes"].samples
    assert (lag.labels, lag.value) == ({"peer": 'a"b\\c\nd'}, -1.5)
    assert read["quorate_expiry_timestamp_seconds"].samples[0].value == math.inf
    assert read["quorate_is_leader"].samples[0].value == 1
    took = read["quorate_sync_duration_seconds"]
    assert took.type == "histogram"
    buckets = {one.labels["le"]: one.value for one in took.samples if one.name.endswith("_bucket")}
    assert buckets["+Inf"] == 5
    assert list(buckets.values()) == sorted(buckets.values())
    assert {float(le): count for le, count in buckets.items()}[2.0**-16] == 3
    plain = {one.name: one.value for one in took.samples if not one.labels}
    assert plain["quorate_sync_duration_seconds_count"] == 5
    assert plain["quorate_sync_duration_seconds_sum"] == pytest.approx(3 * 2.0**-16 + 100.1)
    assert all(
        one.labels["kind"] == "read" for one in read["quorate_command_duration_seconds"].samples
    )


def test_without_figures_there_is_no_text() -> None:
    assert exposition([]) == ""
    assert exposition([], openmetrics=True) == "# EOF\n"


def test_only_a_scraper_that_names_openmetrics_gets_it() -> None:
    assert wants_openmetrics("application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1")
    assert not wants_openmetrics("text/plain;version=0.0.4;q=0.5,*/*;q=0.1")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong() -> None:
    checked = subprocess.run(
        ["promtool", "check", "metrics"],
        input=exposition(families()[:-2]),
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
