"""Log lines as people and programs read them."""

import json
import logging
from collections.abc import Iterator

import pytest

from quorate.log_events import HumanLines, JsonLines, log_event


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records = list[logging.LogRecord]()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, log = Kept(), logging.getLogger("quorate.test")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    yield handler
    log.removeHandler(handler)
    log.propagate = True


LOG = logging.getLogger("quorate.test")


def human(kept: Kept) -> str:
    """The last line, without its time."""
    return HumanLines(3).format(kept.records[-1]).partition(" ")[2]


def test_a_line_has_level_event_sentence_and_the_rest(kept: Kept) -> None:
    words = "member %(member)d: %(bytes)d bytes"
    log_event(LOG, logging.INFO, "disk", words, member=1, bytes=7, what="full up", took=1 / 3)
    assert human(kept) == 'INFO    disk: member 1: 7 bytes what="full up" took=0.333333'


def test_an_object_has_fields_of_their_types(kept: Kept) -> None:
    log_event(LOG, logging.ERROR, "config", "voters %(voters)s", voters=[1, 2], joint=False)
    line = json.loads(JsonLines(3).format(kept.records[-1]))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "ERROR",
        "event": "config",
        "member": 3,
        "voters": [1, 2],
        "joint": False,
        "message": "voters [1, 2]",
        "logger": "quorate.test",
    }


def test_a_line_of_another_library_is_a_note(kept: Kept) -> None:
    LOG.warning("100 %% of %s", "it")
    assert human(kept) == "WARNING note: 100 % of it"
    assert json.loads(JsonLines().format(kept.records[-1]))["event"] == "note"


def test_what_strangers_send_makes_no_line_and_no_escape_sequence(kept: Kept) -> None:
    bad = "x\nERROR disk: full \x1b[2J\u2028"
    log_event(LOG, logging.INFO, "note", "%(why)s", why=bad, more=bad)
    line = human(kept)
    assert line.isprintable()
    assert line.startswith(r"INFO    note: x\nERROR disk: full \x1b[2J\u2028 more=")
    assert "\n" not in JsonLines().format(kept.records[-1])


def test_a_traceback_is_indented_or_a_field(kept: Kept) -> None:
    try:
        int("a\nb")
    except ValueError:
        log_event(LOG, logging.ERROR, "command_failed", "no luck", exc_info=True)
    first, *rest = human(kept).splitlines()
    assert first == "ERROR   command_failed: no luck"
    assert all(line.startswith("    ") for line in rest)
    assert "ValueError: invalid" in json.loads(JsonLines().format(kept.records[-1]))["traceback"]


def test_a_traceback_makes_no_event_and_no_escape_sequence(kept: Kept) -> None:
    def fail() -> None:
        raise ValueError("a\nERROR disk: full\rERROR disk: full\x1b[2J\u2028ERROR disk: full\x85")

    try:
        fail()
    except ValueError:
        log_event(LOG, logging.ERROR, "command_failed", "no luck", exc_info=True)
    _, *rest = human(kept).splitlines()
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert rest[-1] == r"    ERROR disk: full\rERROR disk: full\x1b[2J\u2028ERROR disk: full\x85"


def test_nothing_is_made_of_a_level_that_is_off(kept: Kept) -> None:
    log_event(LOG, logging.DEBUG, "enters", "%(missing)d")
    assert kept.records == []
