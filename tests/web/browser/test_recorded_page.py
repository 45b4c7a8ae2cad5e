"""Recordings in a real browser: steps, arrows, and the event that breaks an invariant."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from quorate.simulation import Plan, simulate
from tests.simulation.mutants.recording import commit_with_a_minority

from .chromium import CHROMIUM, chromium, show_recording, watched
from .layout import reads_well

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="needs chromium")]

RECORDING = Path(__file__).parents[1] / "data" / "leader-dies.qtrace"


def press(page: Page, key: str) -> str:
    """Press a key, and return what the page says of the event to which that led."""
    page.keyboard.press(key)
    return page.locator("#player .what").text_content() or ""


def events_of(recording: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recording.splitlines()[1:]]


def test_each_transition_and_each_message_is_shown_in_its_order() -> None:
    events = [event for event in events_of(RECORDING.read_text()) if event["at"]]
    steps = [event for event in events if event["kind"] == "enters"]
    messages = [event for event in events if event["kind"] in {"sends", "hears"}]
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        wrong = watched(page)
        show_recording(page, RECORDING.read_bytes())
        for event in steps:
            said = f"member {event['member']} {event['before']} → {event['after']}"
            assert said in press(page, "t")
        page.keyboard.press("Home")
        for event in messages[:20]:
            what = "sends" if event["kind"] == "sends" else "hears"
            assert f"member {event['member']} {what} {event['type']} " in press(page, "m")
        assert wrong == []


def test_a_simulated_violation_is_reached_and_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    commit_with_a_minority(monkeypatch)
    assert simulate(Plan(0, 3, 0.02), file).violation
    broken = next(each for each in events_of(file.getvalue()) if each["kind"] == "violation")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        wrong = watched(page)
        show_recording(page, file.getvalue().encode())
        expect(page.locator("#notice")).to_contain_text(broken["text"])
        # Every transition on the way is shown, and the violation is behind the last of them.
        steps = [each for each in events_of(file.getvalue()) if each["kind"] == "enters"]
        shown = [press(page, "t") for each in steps if each["at"]]
        assert len(set(shown)) == len(shown)
        assert f"violation: {broken['invariant']}: {broken['text']}" in press(page, "v")
        expect(page.locator("#list li.here")).to_have_attribute("data-kind", "violation")
        assert wrong == []


def test_a_member_with_a_large_id_is_shown_on_a_telephone() -> None:
    recording = RECORDING.read_text()
    for name in ('"member":2,', '"id":2,', '"2":{"status"'):
        assert name in recording
        recording = recording.replace(name, name.replace("2", "70000"))
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        wrong = watched(page)
        show_recording(page, recording.encode())
        page.keyboard.press("End")
        expect(page.locator('.row[data-member="70000"] .state')).to_have_text("70000 follows")
        members = json.loads(recording.splitlines()[0])["members"]
        expect(page.locator(".row.member")).to_have_count(len(members))
        assert reads_well(page) == []
        assert wrong == []
