"""docs/logs.md names every event of the code, with its levels and fields, and no other one."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from quorate.recordings import KINDS

ROOT = Path(__file__).parent.parent.parent
ROOMS = (
    "storage",
    "transport",
    "node",
    "keyvalue",
    "etcd",
    "partitions",
    "recordings",
    "web",
    "quorate",
)
PAGE = (ROOT / "docs/logs.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([A-Z, ]+) \| (.*?)\|.* \|$", re.MULTILINE)

MORE = {"address", "leader", "members", "outgoing", "position"}
"""Fields that lines have in addition to those that a recording has of the same event."""

Events = dict[str, tuple[set[str], set[str]]]


def sources() -> list[Path]:
    found = [file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py"))]
    return [file for file in found if not any(parent.is_symlink() for parent in file.parents)]


def levels_in(item: ast.AST) -> set[str]:
    return {
        node.attr
        for node in ast.walk(item)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "logging"
        and node.attr.isupper()
    }


def events_of(tree: ast.Module) -> Events:
    """The events that a file logs: the levels and the fields of each."""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "log_event"
    ]
    direct = set[str]().union(*(levels_in(call.args[1]) for call in calls), set())
    found: Events = defaultdict(lambda: (set[str](), set[str]()))
    for call in calls:
        assert isinstance(call.args[2], ast.Constant)
        levels, fields = found[str(call.args[2].value)]
        # A level that is computed: one of those that the file names elsewhere.
        levels |= levels_in(call.args[1]) or levels_in(tree) - (direct & {"INFO"})
        # All lines have the member.
        fields |= {str(word.arg) for word in call.keywords} - {"exc_info", "member"}
    return found


def events_of_code() -> Events:
    found: Events = defaultdict(lambda: (set[str](), set[str]()))
    for file in sources():
        if "log_event(" not in (text := file.read_text()):
            continue
        for name, (levels, fields) in events_of(ast.parse(text)).items():
            found[name][0].update(levels)
            found[name][1].update(fields)
    found["log_lines_dropped"] = ({"WARNING"}, {"count"})  # by the handler itself
    return found


def events_of_page() -> Events:
    return {
        name: (set(levels.split(", ")), set(re.findall(r"`(\w+)`", fields)))
        for name, levels, fields in ROW.findall(PAGE)
    }


def test_the_page_has_every_event_with_its_levels_and_fields() -> None:
    assert events_of_page() == events_of_code()


def test_no_line_is_logged_without_an_event() -> None:
    plain = re.compile(r"\b_?(log|LOG|log_)\.(debug|info|warning|error|exception|critical|log)\(")
    direct = [str(file) for file in sources() if plain.search(file.read_text())]
    direct.remove(str(ROOT / "quorate/log_events.py"))
    assert direct == []


@pytest.mark.parametrize("name", [name for name in events_of_code() if name in KINDS])
def test_an_event_of_recordings_has_the_same_fields_here(name: str) -> None:
    more = MORE.copy()
    if name == "starts":
        more |= {"cluster", "version", "pid"}
    if name == "stops":
        more |= {"why"}
    assert events_of_code()[name][1] <= {*KINDS[name], *more}


def test_no_field_hides_what_each_json_line_has() -> None:
    for _, fields in events_of_code().values():
        assert not fields & {"time", "level", "event", "message", "logger", "traceback"}
