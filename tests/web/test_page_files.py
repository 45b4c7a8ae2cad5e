"""The page's files fit the code: its states, its kinds of events, and nothing from elsewhere."""

import re
from pathlib import Path

import pytest

from quorate.node.protocol.states import EDGES, State
from quorate.recordings import KINDS

PAGE = Path(__file__).parents[2] / "web" / "page"
TEXTS = {
    file.name: file.read_text() for file in PAGE.iterdir() if not file.name.startswith("uPlot")
}


@pytest.mark.parametrize("drawing", ["states.svg", "states-tall.svg"])
def test_the_drawing_has_the_states_and_edges_of_the_table(drawing: str) -> None:
    """After a change of the table: `python -m tests.web.layout_states`."""
    drawn = re.findall(r'data-from="(\w+)" data-to="(\w+)"', TEXTS[drawing])
    table = {
        (before.name, after.name) for before, following in EDGES.items() for after in following
    }
    assert set(drawn) == table
    assert len(drawn) == len(table)
    assert re.findall(r'data-state="(\w+)"', TEXTS[drawing]) == [state.name for state in State]


def test_the_page_knows_every_kind_of_event_and_says_what_each_state_is() -> None:
    kinds = re.search(r"KINDS = \[(.*?)\]", TEXTS["kinds.js"], re.DOTALL)
    assert kinds
    assert re.findall(r'"(\w+)"', kinds[1]) == list(KINDS)
    meaning = re.search(r"MEANING = \{(.*?)\n\}", TEXTS["kinds.js"], re.DOTALL)
    assert meaning
    assert re.findall(r"^  (\w+): ", meaning[1], re.MULTILINE) == [state.name for state in State]


def test_nothing_comes_from_elsewhere_and_nothing_is_inline() -> None:
    addresses = {
        (name, found)
        for name, text in TEXTS.items()
        for found in re.findall(r"https?://[^\s\"']+", text)
    }
    assert {found for _, found in addresses} <= {"http://www.w3.org/2000/svg"}
    page = TEXTS["index.html"]
    assert re.findall(r"<script(?![^>]* src=)|<style| style=| on\w+=", page) == []
    assert not re.search(r"\.innerHTML\s*=|insertAdjacentHTML|eval\(", "".join(TEXTS.values()))
    asked = re.findall(r'(?:src|href)="static/([^"]+)"', page)
    asked += re.findall(r'from "\./([^"]+)"', "".join(TEXTS.values()))
    assert [name for name in asked if not (PAGE / name).is_file()] == []


def test_uplot_comes_with_its_licence() -> None:
    assert "MIT License" in (PAGE / "uPlot.LICENSE.txt").read_text()
    assert "(v1.6" in (PAGE / "uPlot.iife.min.js").read_text()[:200]
