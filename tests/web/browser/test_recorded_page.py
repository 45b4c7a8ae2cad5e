"""Recordings in a real browser: steps, arrows, and the event that breaks an invariant."""

import io
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from playwright.sync_api import Page, expect

from quorate.cli.watch.model import Cluster
from quorate.recordings import Event
from quorate.simulation import Plan, simulate
from tests.cli.test_status_command import status_of
from tests.simulation.mutants.recording import commit_with_a_minority

from .chromium import CHROMIUM, show_recording
from .layout import reads_well

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="needs chromium")]

RECORDING = Path(__file__).parents[1] / "data" / "leader-dies.qtrace"

COMMON = {"at", "member", "kind"}
"""Fields that every event has."""

FOLD = """async ([head, events, times]) => {
    const {Model, lagOf} = await import("./static/model.js");
    const {EventLog} = await import("./static/log.js");
    const live = head.source === "live", log = new EventLog();
    if (!live) for (const each of events) log.push(each, each.at, each.at);
    const model = new Model(head, live, log);
    let next = 0;
    return times.map((t) => {
        while (live && events[next]?.at <= t) model.add(events[next++], events[next - 1].at);
        const {leaders, margin, voters, members} = model.picture(t);
        const rows = members.map((each) => {
            const old = each.stale || Boolean(each.dead);
            const {append, commit, applied} = each.positions;
            const lag = old ? null : lagOf(each, members).lag;
            const steps = model.lane(each.id).steps.filter((one) => one.before && one.at <= t);
            const last = steps.slice(-2).map((one) => [one.before, one.state, one.reason]);
            const state = old ? "" : each.step.state;
            return [each.id, state, each.term, append, commit, applied, lag, last];
        });
        return {leaders: leaders.map((each) => each.id), margin, voters, members: rows};
    });
}"""
"""What the page's model says at these times."""


PAUSED = """async ([recording, times]) => {
    const {recorded} = await import("./static/sources.js");
    const model = recorded(new TextEncoder().encode(recording));
    return times.map((t) => model.picture(t).members.find((each) => each.id === 0).paused);
}"""
"""Whether the member 0 is said to stand still at these times."""

LOST = """async ([recording, at, to]) => {
    const [{recorded}, {Messages}] = await Promise.all(
        ["sources", "messages"].map((each) => import(`./static/${each}.js`)));
    const messages = new Messages(recorded(new TextEncoder().encode(recording)));
    const flight = messages.between(at, at + 1).find((each) => each.sent === at && each.to === to);
    return Number.isNaN(flight.heard) && messages.lost(flight);
}"""
"""Whether the message that was sent then to this member is said to be lost."""

PRESSES = """([key, count]) => Array.from({length: count}, () => {
    dispatchEvent(new KeyboardEvent("keydown", {key}));
    return document.querySelector("#player .what").textContent;
})"""

FITS = """mark => {
    const [shape, text] = [mark.querySelector(".shape"), mark.querySelector("text")];
    return text.getBBox().width <= shape.getBBox().width;
}"""


def press(page: Page, key: str) -> str:
    """Press a key, and return what the page says of the event to which that led."""
    page.keyboard.press(key)
    return page.locator("#player .what").text_content() or ""


def presses(page: Page, key: str, count: int) -> list[str]:
    """Press a key many times in one go, and return what the page says after each."""
    found: list[str] = page.evaluate(PRESSES, [key, count])
    return found


def events_of(recording: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recording.splitlines()[1:]]


def test_each_transition_and_each_message_is_shown_in_its_order(page: Page) -> None:
    events = [event for event in events_of(RECORDING.read_text()) if event["at"]]
    steps = [event for event in events if event["kind"] == "enters"]
    messages = [event for event in events if event["kind"] in {"sends", "hears"}]
    show_recording(page, RECORDING.read_bytes())
    shown = [press(page, "t"), *presses(page, "t", len(steps) - 1)]
    for event in steps:
        said = f"member {event['member']} {event['before']} → {event['after']}"
        assert said in shown.pop(0)
    page.keyboard.press("Home")
    shown = presses(page, "m", 20)
    for event in messages[:20]:
        what = "sends" if event["kind"] == "sends" else "hears"
        assert f"member {event['member']} {what} {event['type']} " in shown.pop(0)


def test_what_a_member_heard_is_known_from_its_own_messages(page: Page) -> None:
    """Of the members of a recording one may have no messages: nothing says what was lost."""
    head, *lines = RECORDING.read_text().splitlines()
    live = json.dumps({**json.loads(head), "source": "live"})
    events = [json.loads(line) for line in lines]
    sends = next(each for each in events if each["kind"] == "sends")

    def lost(kept: list[dict[str, Any]]) -> bool:
        text = "\n".join([live, *map(json.dumps, kept)])
        found: bool = page.evaluate(LOST, [text, sends["at"], sends["to"]])
        return found

    show_recording(page, RECORDING.read_bytes())
    unheard = [each for each in events if each["kind"] != "hears"]
    assert lost(unheard)
    assert not lost([each for each in unheard if each["member"] != sends["to"]])


@pytest.mark.parametrize("end", ["resumes", "killed", "starts"])
def test_a_pause_has_an_end(page: Page, end: str) -> None:
    """A member may be paused twice, and be killed while it stands still."""
    head = RECORDING.read_text().splitlines()[0]
    told = [(1.0, "starts"), (2.0, "pauses"), (3.0, "pauses"), (4.0, end), (5.0, "note")]
    events = [json.dumps({"at": at, "member": 0, "kind": kind}) for at, kind in told]
    show_recording(page, RECORDING.read_bytes())
    paused = page.evaluate(PAUSED, ["\n".join([head, *events]), [1.5, 2.5, 3.5, 4.5]])
    assert paused == [False, True, True, False]


def test_a_simulated_violation_is_reached_and_explained(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    commit_with_a_minority(monkeypatch)
    assert simulate(Plan(0, 3, 0.02), file).violation
    broken = next(each for each in events_of(file.getvalue()) if each["kind"] == "violation")
    show_recording(page, file.getvalue().encode())
    expect(page.locator("#notice")).to_contain_text(broken["text"])
    # Every transition on the way is shown, and the violation is behind the last of them.
    steps = [each for each in events_of(file.getvalue()) if each["kind"] == "enters"]
    shown = presses(page, "t", sum(each["at"] > 0 for each in steps))
    assert len(set(shown)) == len(shown)
    assert f"violation: {broken['invariant']}: {broken['text']}" in press(page, "v")
    expect(page.locator("#list li.here")).to_have_attribute("data-kind", "violation")


def test_a_member_with_a_large_id_is_shown_on_a_telephone(page: Page) -> None:
    recording = RECORDING.read_text()
    for name in ('"member":2,', '"id":2,', '"2":{"status"'):
        assert name in recording
        recording = recording.replace(name, name.replace("2", "70000"))
    page.set_viewport_size({"width": 400, "height": 800})
    show_recording(page, recording.encode())
    page.keyboard.press("End")
    row = page.locator('.row[data-member="70000"]')
    expect(row.locator(".state")).to_have_text("follows")
    for mark in (row.locator(".marker"), page.locator("#states .marker", has_text="70000")):
        assert mark.evaluate(FITS), "its number is wider than its mark"
    members = json.loads(recording.splitlines()[0])["members"]
    expect(page.locator(".row.member")).to_have_count(len(members))
    assert reads_well(page) == []


def folded(events: list[dict[str, Any]], times: list[float]) -> list[dict[str, Any]]:
    """What the model of `quorate top` says at these times."""
    cluster, coming, found = Cluster(), iter(events), list[dict[str, Any]]()
    event = next(coming, None)
    for t in times:
        while event and event["at"] <= t:
            fields = {name: each for name, each in event.items() if name not in COMMON}
            cluster.apply(Event(event["at"], event["member"], event["kind"], fields))
            event = next(coming, None)
        cluster.now = t
        rows = list[list[Any]]()
        for _, each in sorted(cluster.members.items()):
            state, lag = each.state, cluster.lag(each)
            if cluster.is_stale(each):
                state, lag = "", None
            positions = (each.append, each.commit, each.applied)
            steps = [step for step in cluster.steps if step.member == each.member_id]
            last = [[step.before, step.after, step.reason] for step in steps if step.before][-2:]
            rows.append([each.member_id, state, each.term, *positions, lag, last])
        leaders = [each.member_id for each in cluster.leaders]
        voters, margin = cluster.electorate, cluster.spare
        found.append({"leaders": leaders, "margin": margin, "voters": voters, "members": rows})
    return found


def test_the_page_and_top_make_the_same_of_the_same_events(page: Page) -> None:
    """The leader of a simulation dies; a member that reports all the time falls silent."""
    show_recording(page, RECORDING.read_bytes())
    head = json.loads(RECORDING.read_text().splitlines()[0])
    events = events_of(RECORDING.read_text())
    times = [events[-1]["at"] * part / 40 for part in range(1, 41)]
    reports = [
        {"at": n / 5, "member": each, "kind": "status", "status": attrs.asdict(status_of(each))}
        for n in range(1, 26)
        for each in range(2 if n > 7 else 3)
    ]
    # What member 0 did before; it comes once more, at a time that was moved a little differently.
    step = {"before": "FOLLOWER_READY", "after": "CLOSED", "reason": "the log is complete"}
    picture = {"at": 0.1, "member": 0, "kind": "keyframe"}
    kept = [[{"ago": 4.5, **step, "term": 1}], [{"ago": 4.51, **step, "term": 1}]]
    own = {"status": reports[0]["status"]}
    reports[:0] = [{**picture, "members": {"0": {**own, "steps": each}}} for each in kept]
    live: dict[str, Any] = {"source": "live", "cluster": "orders", "reporter": 0, "members": []}
    for its_head, its_events, its_times in (
        (head, events, times),
        (live, reports, [0.5, 1.3, 4.0, 5.0]),
    ):
        shown = page.evaluate(FOLD, [its_head, its_events, its_times])
        assert shown == folded(its_events, its_times)
