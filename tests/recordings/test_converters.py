"""The forms of ShiViz and Perfetto, read back as those tools read them."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from quorate.recordings.perfetto import perfetto_lines
from quorate.recordings.reading import Recording, open_recording_untrusted
from quorate.recordings.shiviz import shiviz_lines

from .example import EXAMPLE

# As ShiViz has it by default.
PATTERN = re.compile(r"(?P<event>.*)\n(?P<host>\S*) (?P<clock>{.*})")


@contextmanager
def example() -> Generator[Recording]:
    with open_recording_untrusted(EXAMPLE) as read:
        yield read


def kinds() -> Counter[str]:
    with example() as read:
        return Counter(each.kind for each in read.events)


def test_shiviz_finds_events_with_clocks_that_grow_and_know_what_was_heard() -> None:
    with example() as read:
        text = "\n".join(shiviz_lines(read.events))
    found = list(PATTERN.finditer(text))
    skipped = ("keyframe", "positions")
    assert len(found) == kinds().total() - sum(kinds()[each] for each in skipped)
    clocks: dict[str, dict[str, int]] = {}
    heard = 0
    for match in found:
        host, clock = match["host"], json.loads(match["clock"])
        before = clocks.get(host, {})
        # ShiViz refuses a log in which the own entry does not grow by one.
        assert clock[host] == before.get(host, 0) + 1
        assert all(clock[name] >= count for name, count in before.items())
        if (sender := re.search(r" hears sender=(\d)", match["event"])) is not None:
            own = f"m{sender[1]}"
            assert clock[own] > before.get(own, 0) or kinds()["hears"] > heard
            heard += 1
        clocks[host] = clock
    assert heard == kinds()["hears"]
    assert {"m0", "m1", "m2", "outside"} == clocks.keys()


def test_perfetto_finds_states_that_follow_each_other_and_an_arrow_for_each_message() -> None:
    with example() as read:
        trace = json.loads("\n".join(perfetto_lines(read.head, read.events)))
    entries = trace["traceEvents"]
    phases = Counter(each["ph"] for each in entries)
    assert phases["s"] == kinds()["sends"]
    assert phases["f"] == kinds()["hears"]
    assert phases["C"] == kinds()["positions"]
    begun = {each["id"]: each["ts"] for each in entries if each["ph"] == "s"}
    assert all(begun[each["id"]] <= each["ts"] for each in entries if each["ph"] == "f")
    for pid in (2, 3, 4):
        states = [
            each for each in entries if (each["ph"], each["pid"], each.get("tid")) == ("X", pid, 1)
        ]
        assert len(states) > 5
        for one, following in itertools.pairwise(states):
            assert one["ts"] + one["dur"] <= following["ts"] + 0.01
    names = {each["args"]["name"] for each in entries if each["ph"] == "M"}
    assert {"member 0", "outside", "states", "messages", "events"} <= names
