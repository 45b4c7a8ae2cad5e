"""The report's page and the pictures can be read: on any screen, by light and in the dark."""

# pyright: basic, reportMissingTypeStubs=false
# (those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from pyspark.sql import Row

from quorate.pipeline.jobs.drawing import DARK, INK, STYLE, dark_css, drawing
from quorate.pipeline.jobs.page import _SHAPES, _Buckets, _days, _plots
from quorate.pipeline.jobs.picture import Bar, draw
from quorate.pipeline.source.columns import TABLES

BEGAN = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WIDTH_OF_A_POINT = 0.01


def plots(width: str = "on-wide") -> list[ET.Element]:
    """The plots of a log of ten minutes, of which five are idle; it has two terms."""
    minutes = [0, 1, 2, 3, 9]
    times = [BEGAN + timedelta(minutes=minute) for minute in minutes]
    load = [Row(time=time, bytes=500, end=1000 * at + 5500) for at, time in enumerate(times)]
    written = [Row(time=time, commands=600) for time in times]
    terms = [
        Row(began=times[0], ended=times[2], leader=8),
        Row(began=times[3], ended=times[4], leader=None),
    ]
    parts = _plots(written, load, 60, terms)
    found = [ET.fromstring(part) for part in parts if part.startswith("<section")]
    return [one[0] for whole in found for one in whole.iter("div") if one.get("class") == width]


def texts(svg: ET.Element) -> dict[str, str]:
    """What stands in a picture, and where it begins or is centred."""
    return {
        one.text: one.get("x", one.get("transform", ""))
        for one in svg.iter("{http://www.w3.org/2000/svg}text")
        if one.text
    }


@pytest.mark.parametrize("width", ["on-wide", "on-narrow"])
def test_plots_share_their_axis_begin_at_zero_and_have_a_legend(width: str) -> None:
    load, length = map(texts, plots(width))
    moments = {text for text in load if re.fullmatch(r"\d\d:\d\d", text)}
    assert len(moments) >= 3
    assert {text: load[text] for text in moments} == {text: length[text] for text in moments}
    for legend in ({"commands a second"}, {"log position (KiB)"}):
        shown = load if legend & load.keys() else length
        assert shown.keys() >= legend | {"a new term begins", "0", "time (UTC)"}
    assert "member 8 leads" in load


def test_idle_time_is_drawn_as_idle() -> None:
    load, length = plots()
    steps = points(load)
    floor = max(y for _, y in steps)
    at_rest = [x for x, y in steps if abs(y - floor) < WIDTH_OF_A_POINT]
    span = max(x for x, _ in steps) - min(x for x, _ in steps)
    # five of ten minutes, along the floor; a bucket that is missing would be drawn over
    assert any(
        abs(after - before - span / 2) < 1
        for before in at_rest
        for after in at_rest
        if after > before
    )
    line = points(length)
    flat = [b[0] - a[0] for a, b in pairwise(line) if abs(a[1] - b[1]) < WIDTH_OF_A_POINT]
    assert sum(flat) == pytest.approx(span / 2, abs=1)


def points(svg: ET.Element) -> list[tuple[float, float]]:
    """The points of what is drawn in ink, without the legend."""
    paths = [
        one.get("d", "")
        for one in svg.iter("{http://www.w3.org/2000/svg}path")
        if INK in one.get("style", "")
    ]
    longest = max(paths, key=len)
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", longest)]


def test_all_that_is_drawn_is_known_in_the_dark() -> None:
    bars = [Bar(0, 0, 5, "a", True), Bar(1, 1, 6, "b", False), Bar(2, 2, None, "c", False)]
    pictures = [draw([(b"k", bars)]), *(ET.tostring(one, "unicode") for one in plots())]
    for picture in pictures:
        drawn = picture.replace(dark_css(), "")
        assert {*re.findall(r"(?:fill|stroke): (#[0-9a-f]+)", drawn)} <= {*DARK}
    for light, dark in DARK.items():
        assert f'[style*="fill: {light}"]{{fill:{dark} !important}}' in dark_css()
    assert dark_css() in pictures[0]


def test_type_is_that_of_the_live_page() -> None:
    sans = " ".join(STYLE.split("--sans:")[1].split(";")[0].split()).replace('"', "'")
    for picture in (draw([(b"k", [Bar(0, 0, 5, "a", True)])]), ET.tostring(plots()[0], "unicode")):
        assert {*re.findall(r"font-family: ([^;\"]*)", picture)} == {sans}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seconds", [1, 7, 90, 119 * 60, 150 * 60, 47 * 3600, 60 * 86400])
def test_an_axis_of_any_length_names_moments(seconds: int) -> None:
    for shape in _SHAPES:
        edges = [BEGAN, BEGAN + timedelta(seconds=seconds)]
        buckets = _Buckets(edges[:1], [_days(one) for one in edges], [], [], shape)
        with drawing():
            figure, axes = buckets.axes()
            axes.plot(buckets.edges, [0, 1], label="x")
            shown = buckets.svg(figure, axes)
        assert len(axes.get_xticks()) >= 2, shown


def test_no_column_is_hidden_by_what_rows_can_do() -> None:
    names = {column.name for table in TABLES.values() for column in table}
    assert [name for name in names if hasattr(Row, name)] == []
