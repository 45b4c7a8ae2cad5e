"""Recordings in a real browser: steps, arrows, and the event that breaks an invariant."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .chromium import CHROMIUM, chromium, show_recording, watched

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="needs chromium")]

RECORDING = Path(__file__).parents[1] / "data" / "leader-dies.qtrace"


def press(page: Page, key: str) -> str:
    """Press a key, and return what the page says of the event to which that led."""
    page.keyboard.press(key)
    return page.locator("#player .what").text_content() or ""


def test_a_recording_is_stepped_through_to_its_violation() -> None:
    lines = RECORDING.read_text().splitlines()
    events = [json.loads(line) for line in lines[1:]]
    broken = {"at": events[-1]["at"], "member": -1, "kind": "violation"}
    broken |= {"invariant": "one leader per term", "text": "members 1 and 2 lead term 1"}
    lines.append(json.dumps(broken))
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        wrong = watched(page)
        show_recording(page, "\n".join(lines).encode())
        expect(page.locator("#notice")).to_contain_text("members 1 and 2 lead term 1")
        # Every transition of the file, in its order.
        shown = [press(page, "t") for event in events if event["kind"] == "enters" and event["at"]]
        for event, text in zip(
            (e for e in events if e["kind"] == "enters" and e["at"]), shown, strict=True
        ):
            assert f"member {event['member']} {event['before']} → {event['after']}" in text
        page.keyboard.press("Home")
        first = next(event for event in events if event["kind"] == "sends")
        assert f"member {first['member']} sends {first['type']} to {first['to']}" in press(
            page, "m"
        )
        assert re.search(
            "violation: one leader per term: members 1 and 2 lead term 1", press(page, "v")
        )
        expect(page.locator("#list li.here")).to_have_attribute("data-kind", "violation")
        assert wrong == []
