"""Alert rules, the dashboard and docs/monitoring.md know the figures that members have."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
CONTRIB: Final = ROOT / "contrib"
SOURCES: Final = (
    "node/live/figures.py",
    "node/live/process.py",
    "keyvalue/port/figures.py",
    "keyvalue/programs/figures.py",
    "etcd/port/figures.py",
)
RULES: Final = (CONTRIB / "alerts.yml").read_text(encoding="utf-8")
BOARD: Final[dict[str, Any]] = json.loads((CONTRIB / "grafana.json").read_text(encoding="utf-8"))
PAGE: Final = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")

PROMTOOL: Final = shutil.which("promtool")
with_promtool = pytest.mark.skipif(PROMTOOL is None, reason="needs Prometheus' promtool")


def families() -> dict[str, str]:
    """Name and kind of each family that the code makes."""
    found: dict[str, str] = {}
    for source in SOURCES:
        for node in ast.walk(ast.parse((ROOT / source).read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name("counter" | "gauge" | "histogram" as kind),
                    args=[ast.Constant(str(name)), *_],
                ):
                    found[name] = kind
                case _:
                    pass
    return found


def named(text: str) -> set[str]:
    """The families that expressions name; a histogram has three series."""
    words = set(re.findall(r"\b(?:quorate|process)_[a-z_]+", text))
    kinds = families()
    return {
        re.sub("_(bucket|sum|count)$", "", word)
        if kinds.get(re.sub("_(bucket|sum|count)$", "", word)) == "histogram"
        else word
        for word in words
    }


def expressions() -> list[str]:
    """All queries of the dashboard, with a value for each variable."""
    found = [target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", ())]
    found += [each["expr"] for each in BOARD["annotations"]["list"]]
    return [
        each.replace("$__rate_interval", "1m").replace("$job", "a").replace("$instance", "b")
        for each in found
    ]


def promtool(*words: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], check=False, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@with_promtool
def test_each_rule_fires_when_it_should() -> None:
    assert promtool("check", "rules", str(CONTRIB / "alerts.yml")) == ""
    assert promtool("test", "rules", str(CONTRIB / "alerts.test.yml")) == ""


@with_promtool
def test_prometheus_understands_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"n{at}", "expr": each} for at, each in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    # JSON is YAML, too.
    file.write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}), encoding="utf-8")
    assert promtool("check", "rules", str(file)) == ""


def test_rules_and_dashboard_name_figures_that_members_have() -> None:
    asked = re.sub(r"runbook:.*|alert:.*", "", RULES)
    assert named(asked) - families().keys() == set()
    assert named("\n".join(expressions())) - families().keys() == set()


def test_each_alert_is_tested_and_has_a_section_that_says_what_to_do() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES)
    tested = (CONTRIB / "alerts.test.yml").read_text(encoding="utf-8")
    assert {*re.findall(r"alertname: (\w+)", tested)} == {*alerts}
    anchors = re.findall(r"runbook: docs/monitoring.md#([\w-]+)", RULES)
    assert len(anchors) == len(alerts)
    headings = {
        title.lower().replace(" ", "-") for title in re.findall(r"^###? (.+)$", PAGE, re.MULTILINE)
    }
    assert {*anchors} - headings == set()


def test_the_page_lists_every_figure_and_its_type() -> None:
    listed = dict(re.findall(r"^\| `((?:quorate|process)_[a-z_]+)` \| (\w+) ", PAGE, re.MULTILINE))
    assert listed == families()


def test_the_dashboard_can_be_imported_into_any_grafana() -> None:
    variables = [each["name"] for each in BOARD["templating"]["list"]]
    assert variables == ["datasource", "job", "instance"]
    sources = re.findall(r'"uid": "([^"]+)"', json.dumps(BOARD))
    assert {*sources} == {"quorate", "${datasource}"}
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart or above, (one, other)
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["Cluster", "Elections", "Latency", "Replication", "Disk", "Clients", "Process"]
